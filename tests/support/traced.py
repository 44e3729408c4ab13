"""What every complete trace of a request must fulfil, and a pair to trace."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from support.otlp_receiver import ReceivedSpan
from support.services import settings

from paceline.client import GenerateResult

PROMPT = list(range(20, 40))
SERVICES = {"paceline-orchestrator", "paceline-drafter", "paceline-verifier"}
PARTS = ("draft", "wire", "queue", "verify", "emit")


def model(**fields: Any) -> dict[str, Any]:
    return {"kind": "synthetic", "vocab_size": 128, "seed": 3, **fields}


def traced_pair(
    endpoint: str | None,
    *,
    acceptance: float = 0.7,
    target_ms: float = 2.0,
    draft_ms: float = 0.5,
    sections: dict[str, Any] | None = None,
    **traces: Any,
) -> dict[str, Any]:
    """A synthetic pair on emulated devices, traced at level token unless told otherwise."""
    given = {"level": "token", "endpoint": endpoint, **traces}
    return settings(
        verifier={"model": model(base_ms=target_ms)},
        drafter={"kind": "model", "model": model(acceptance=acceptance, base_ms=draft_ms)},
        telemetry={"traces": given},
        **(sections or {}),
    )


def by_name(spans: Sequence[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return [span for span in spans if span.name == name]


def only(spans: Sequence[ReceivedSpan], name: str) -> ReceivedSpan:
    (span,) = by_name(spans, name)
    return span


def check_trace(
    spans: Sequence[ReceivedSpan], result: GenerateResult, *, parent_id: str = ""
) -> None:
    """One whole trace at level token of an answer that drafts took part in."""
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == len(spans)
    assert {span.service for span in spans} == SERVICES
    root = only(spans, "generate")
    assert root.parent_id == parent_id
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    assert all(span.start_ns <= span.end_ns for span in spans)
    assert not any(span.error for span in spans)
    check_tokens(spans, result)
    check_workers(spans, result)
    about = root.attributes
    assert about["gen_ai.usage.output_tokens"] == len(result.token_ids)
    assert about["gen_ai.response.finish_reasons"] == [result.finish_reason]
    assert about["paceline.drafted"] == result.stats.drafted
    assert about["paceline.accepted"] == result.stats.accepted


def check_tokens(spans: Sequence[ReceivedSpan], result: GenerateResult) -> None:
    """Token spans are the tokens delivered; they follow each other without a gap."""
    root = only(spans, "generate")
    tokens = sorted(by_name(spans, "token"), key=lambda s: s.attributes["paceline.token.index"])
    assert [t.attributes["paceline.token.id"] for t in tokens] == result.token_ids
    assert [t.attributes["paceline.token.origin"] for t in tokens] == result.origins
    check_durations(tokens, root)


def check_durations(tokens: Sequence[ReceivedSpan], root: ReceivedSpan) -> None:
    """They sum to the stream's, and each splits into its parts within 1 ms."""
    assert tokens[0].start_ns == root.start_ns
    assert all(left.end_ns == right.start_ns for left, right in pairwise(tokens))
    assert tokens[-1].end_ns <= root.end_ns
    for token in tokens:
        parts = [token.attributes[f"paceline.{part}_ms"] for part in PARTS]
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(token.ms, abs=1e-3)


def check_workers(spans: Sequence[ReceivedSpan], result: GenerateResult) -> None:
    """Queue, prefill and session on each worker; all drafts and passes, and their fate."""
    for service in ("paceline-drafter", "paceline-verifier"):
        own = [span for span in spans if span.service == service]
        session = only(own, "session")
        for name in ("queue", "prefill"):
            phase = only(own, name)
            assert session.start_ns <= phase.start_ns <= phase.end_ns <= session.end_ns
    passes = {span.span_id for span in by_name(spans, "pass")}
    verifies = by_name(spans, "verify")
    assert len(verifies) == len(passes) == result.stats.passes
    assert {link for span in verifies for _, link in span.links} == passes
    judged = sum(span.attributes["paceline.judged"] for span in verifies)
    assert judged == result.stats.judged
    drafts = by_name(spans, "draft")
    for span in drafts:
        about = span.attributes
        kept = about["paceline.draft.accepted"] + about["paceline.draft.discarded"]
        assert kept == about["paceline.draft.tokens"] > 0
    sent = [span for span in drafts if span.attributes["paceline.draft.state"] != "unsent"]
    assert sum(s.attributes["paceline.draft.tokens"] for s in sent) == result.stats.drafted
    accepted = sum(span.attributes["paceline.draft.accepted"] for span in drafts)
    assert accepted >= result.stats.accepted  # one may equal a bonus without being judged
