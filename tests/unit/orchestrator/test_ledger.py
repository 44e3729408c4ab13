"""How an answer is counted and logged, however it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from support.metrics import Meters

from orchestrator.ledger import Account, Ledger
from orchestrator.session import SessionCounts
from paceline.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError
from paceline.generation import OutputToken
from paceline.logs import set_context
from paceline.telemetry.orchestrator_metrics import OrchestratorMetrics, OrchestratorState
from paceline.types import FinishReason, Origin

PROMPT = (1, 2, 3)
STATE = OrchestratorState(
    live_sessions=2,
    workers={"verifier": 2, "drafter": 1},
    connected_workers={"verifier": 1, "drafter": 0},
)


@pytest.fixture(autouse=True)
def _no_context_is_left() -> Iterator[None]:
    """What a task's lines belong to ends with the task; a test has none of its own."""
    yield
    set_context(session="", trace_id="")


class Bench:
    """A ledger whose answers the test plays."""

    def __init__(self) -> None:
        self.meters = Meters()
        self.metrics = OrchestratorMetrics()
        self.metrics.export(self.meters.meter, lambda: STATE)
        self.ledger = Ledger(self.metrics)
        self.counts = SessionCounts()
        self.relay: Any = SimpleNamespace(
            session=SimpleNamespace(counts=self.counts), first_token_s=None, window=12, trace_id=""
        )
        self.reply: Any = SimpleNamespace(finish_reason=None, num_delivered=0)

    @contextmanager
    def answer(self, trace_id: str = "") -> Iterator[Account]:
        made: Any = SimpleNamespace(prompt=PROMPT)
        self.relay.trace_id = trace_id
        with self.ledger.answer(made, self.relay, self.reply, peer="ipv4:127.0.0.1:9") as account:
            yield account

    def deliver(self, account: Account, *origins: Origin) -> None:
        self.relay.first_token_s = 0.25
        self.reply.num_delivered += len(origins)
        account.delivers([OutputToken(5, "secret", origin) for origin in origins])

    def values(self, name: str) -> dict[str, float]:
        return self.meters.values(f"paceline.orchestrator.{name}")

    def count(self, name: str) -> int:
        return self.meters.count(f"paceline.orchestrator.{name}")


def test_an_answer_is_counted_as_it_goes() -> None:
    bench = Bench()
    with bench.answer() as account:
        bench.deliver(account, Origin.PREFILL)
        bench.counts.drafted, bench.counts.dropped = 8, 2
        bench.deliver(account, Origin.ACCEPTED, Origin.ACCEPTED, Origin.BONUS)
        assert bench.values("draft_tokens") == {"": 8}
        assert bench.values("dropped_tokens") == {"": 2}
        bench.counts.drafted, bench.counts.reopenings = 9, 1
        bench.deliver(account)  # a verdict whose text is held back
        assert bench.values("draft_tokens") == {"": 9}
        assert bench.count("inter_token_latency") == 1
        bench.reply.finish_reason = FinishReason.STOP
    origins = bench.values("completion_tokens")
    assert origins == {
        "prefill": 1,
        "accepted": 2,
        "recovered": 0,
        "bonus": 1,
        "autoregressive": 0,
    }
    assert bench.values("prompt_tokens") == {"": 3}
    assert bench.values("session_reopenings") == {"": 1}
    for name in ("time_to_first_token", "time_per_output_token", "request.duration"):
        assert bench.count(name) == 1
    assert bench.count("window") == 3
    assert bench.metrics.counters["window_tokens"] == 36


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "length"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
        (UnavailableError("gone"), "error"),
        (ZeroDivisionError(), "error"),
    ],
)
def test_every_end_is_counted_once_and_logged_once(
    error: BaseException | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    caplog.set_level(logging.INFO, logger="orchestrator")
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, bench.answer() as account:
        bench.deliver(account, Origin.PREFILL)
        bench.reply.finish_reason = FinishReason.LENGTH
        if error is not None:
            raise error
    requests = bench.values("requests")
    assert requests.pop(reason) == 1
    assert set(requests.values()) == {0}
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.fields["finish_reason"] == reason  # type: ignore[attr-defined]
    assert bench.ledger.statuses(10) == []


def test_the_line_of_a_request_has_its_figures_and_no_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    caplog.set_level(logging.INFO, logger="orchestrator")
    with bench.answer(trace_id="ab" * 16) as account:
        bench.deliver(account, Origin.PREFILL, Origin.BONUS)
        bench.counts.drafted, bench.counts.judged, bench.counts.accepted = 9, 8, 6
        bench.counts.passes = 3
        (status,) = bench.ledger.statuses(10)
        bench.reply.finish_reason = FinishReason.STOP
    (record,) = caplog.records
    fields = dict(record.fields)  # type: ignore[attr-defined]
    assert fields.pop("total_ms") >= 0
    assert fields == {
        "session": status.session,
        "trace_id": "ab" * 16,
        "finish_reason": "stop",
        "peer": "ipv4:127.0.0.1:9",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "first_token_ms": 250.0,
        "drafted": 9,
        "judged": 8,
        "accepted": 6,
        "passes": 3,
    }


def test_what_is_not_known_is_left_out_of_the_line(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    caplog.set_level(logging.INFO, logger="orchestrator")
    with pytest.raises(ResourceExhaustedError), bench.answer(trace_id=""):
        raise ResourceExhaustedError("no room")
    (record,) = caplog.records
    fields = record.fields  # type: ignore[attr-defined]
    assert fields["error"] == "RESOURCE_EXHAUSTED"
    assert not {"trace_id", "first_token_ms"} & set(fields)


def test_a_refused_request_is_counted_by_its_status_and_is_no_answer() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgumentError), bench.ledger.admission():
        raise InvalidArgumentError("top_p", "is above 1")
    assert bench.values("refused_requests")["INVALID_ARGUMENT"] == 1
    assert sum(bench.values("requests").values()) == 0


def test_the_oldest_live_answers_are_told_up_to_a_limit() -> None:
    bench = Bench()
    with bench.answer() as first, bench.answer(), bench.answer():
        bench.deliver(first, Origin.PREFILL)
        statuses = bench.ledger.statuses(2)
    assert len(statuses) == 2
    assert statuses[0].session == first.status().session
    assert (statuses[0].prompt_tokens, statuses[0].completion_tokens) == (3, 1)
    assert statuses[0].window == 12


def test_without_a_drafter_there_is_no_window_to_count() -> None:
    bench = Bench()
    bench.relay.window = None
    with bench.answer() as account:
        bench.deliver(account, Origin.PREFILL)
        assert account.status().window == 0
    assert bench.metrics.counters["windows"] == 0


def test_how_things_are_is_read_when_asked() -> None:
    bench = Bench()
    assert bench.values("live_sessions") == {"": 2}
    assert bench.values("workers") == {"verifier": 2, "drafter": 1}
    assert bench.values("connected_workers") == {"verifier": 1, "drafter": 0}
