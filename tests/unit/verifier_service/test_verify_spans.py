"""The verifier's spans: queue, prefill, and passes that serve several sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from verifier_harness import PROMPT, VerifierBench, block, opening

from paceline.sampling.params import SamplingParams
from paceline.telemetry.level import Level
from paceline.telemetry.span import Span
from paceline.telemetry.trace_context import TraceContext
from paceline.telemetry.tracing import Tracing
from paceline.types import CloseSession, SessionError, SessionSpans, Verdict
from verifier_service.traces import MAX_LINKS, VerifierTraces


class KeptSpans:
    """A collector that keeps what it is given."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def samples(self, parent: TraceContext | None, trace_id: int) -> bool:
        return True

    def export(self, span: Span) -> None:
        self.spans.append(span)

    def stop(self, timeout_s: float) -> None:
        pass

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def kept() -> KeptSpans:
    return KeptSpans()


def bench_of(kept: KeptSpans, **options: Any) -> VerifierBench:
    bench = VerifierBench(**options)
    tracing = Tracing("paceline-verifier", Level.TOKEN, exports=kept)
    bench.verifier._traces = VerifierTraces(tracing)
    return bench


def context(trace_id: int, level: Level = Level.BLOCK, **changes: Any) -> dict[str, str]:
    return TraceContext(trace_id, 7, is_sampled=True, level=level, **changes).carrier()


def test_one_pass_serves_many_sessions_and_each_is_linked_with_it(kept: KeptSpans) -> None:
    bench = bench_of(kept)
    for session_id in (1, 2, 3):
        bench.post(opening(session_id, speculation=False, trace_context=context(session_id)))
    bench.step()
    (ragged,) = kept.named("pass")
    verifies = kept.named("verify")
    assert [span.trace_id for span in verifies] == [1, 2, 3]
    assert ragged.trace_id == 1
    assert {(link.trace_id, link.span_id) for link in ragged.links} == {
        (span.trace_id, span.span_id) for span in verifies
    }
    for span in verifies:
        assert [(link.trace_id, link.span_id) for link in span.links] == [(1, ragged.span_id)]
        assert span.parent_id == 7
    assert ragged.attributes["paceline.pass.sessions"] == 3


def test_a_pass_names_a_bounded_number_of_sessions(kept: KeptSpans) -> None:
    bench = bench_of(kept, num_pages=4096)
    for session_id in range(1, MAX_LINKS + 6):
        bench.post(opening(session_id, speculation=False, trace_context=context(session_id)))
    bench.step()
    (ragged,) = kept.named("pass")
    assert len(ragged.links) == MAX_LINKS
    assert ragged.attributes["paceline.pass.sessions"] == MAX_LINKS + 5
    assert len(kept.named("verify")) == MAX_LINKS + 5


def test_a_prompt_read_in_parts_is_one_prefill_of_several_passes(kept: KeptSpans) -> None:
    bench = bench_of(kept, max_batch_tokens=4)
    prompt = tuple(range(1, 11))
    bench.post(opening(token_ids=prompt, speculation=False, trace_context=context(1)))
    bench.step()
    bench.step()
    assert kept.named("prefill") == []
    assert len(kept.named("queue")) == 1
    bench.step()
    (prefill,) = kept.named("prefill")
    assert prefill.attributes == {"paceline.prefill.tokens": 10, "paceline.prefill.passes": 3}


def test_the_request_level_has_no_passes(kept: KeptSpans) -> None:
    bench = bench_of(kept)
    bench.post(opening(speculation=False, trace_context=context(1, Level.REQUEST)))
    bench.step()
    bench.post(CloseSession(1))
    assert [span.name for span in kept.spans] == ["queue", "prefill", "session"]


def test_the_spans_of_the_last_pass_come_back_before_its_verdict(kept: KeptSpans) -> None:
    bench = bench_of(kept)
    sampling = SamplingParams(temperature=0, max_tokens=2)
    carrier = context(1, returns_spans=True)
    bench.post(opening(speculation=False, sampling=sampling, trace_context=carrier))
    bench.step()
    spans, verdict = bench.step()
    assert isinstance(spans, SessionSpans)
    assert spans.is_last
    assert isinstance(verdict, Verdict)
    names = [span.name for span in spans.spans]
    assert names == ["queue", "prefill", "verify", "pass", "verify", "session", "pass"]


def test_a_refused_session_ends_its_spans_with_the_reason(kept: KeptSpans) -> None:
    bench = bench_of(kept)
    bench.post(opening(speculation=True, trace_context=context(1)))
    bench.step()
    (error,) = bench.post(block(len(PROMPT) + 1, [99]))
    assert isinstance(error, SessionError)
    (session,) = kept.named("session")
    assert "token_ids" in session.error
    assert not bench.verifier._traces


def test_a_failed_pass_leaves_no_half_made_spans(
    kept: KeptSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(kept)
    bench.post(opening(1, speculation=False, trace_context=context(1)))

    def broken(chunks: Sequence[Any]) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(bench.runner, "forward", broken)
    (error,) = bench.step()
    assert isinstance(error, SessionError)
    assert [span.name for span in kept.spans] == ["queue", "prefill", "session"]
    assert all("unexpected RuntimeError" in span.error for span in kept.spans[1:])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_target_probabilities_travel_only_where_a_token_trace_asks(
    kept: KeptSpans, temperature: float
) -> None:
    """And only where they decided: a greedy choice has no law but its own."""
    bench = bench_of(kept)
    sampling = SamplingParams(temperature=temperature, max_tokens=9)
    for session_id, carrier in ((1, context(1, Level.TOKEN)), (2, context(2)), (3, {})):
        bench.post(opening(session_id, speculation=False, sampling=sampling, trace_context=carrier))
    found = {reply.session_id: reply.target_probs for reply in bench.step()}
    assert len(found[1]) == (1 if temperature else 0)
    assert all(0 < prob <= 1 for prob in found[1])
    assert found[2] == found[3] == ()
