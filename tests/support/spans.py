"""Hand-made spans of one request, as they come back to a caller."""

from __future__ import annotations

from typing import Any

from paceline.generation import TraceSpan

T0_NS = 1_700_000_000_000_000_000
ORCHESTRATOR, DRAFTER, VERIFIER = (
    f"paceline-{role}" for role in ("orchestrator", "drafter", "verifier")
)


def span(
    service: str, name: str, start_ms: float, end_ms: float, **attributes: str | int | float
) -> TraceSpan:
    """A span by ms since `T0_NS`; `draft__tokens=1` is the attribute `paceline.draft.tokens`."""
    about = {f"paceline.{key.replace('__', '.')}": value for key, value in attributes.items()}
    start_ns, end_ns = (T0_NS + round(ms * 1e6) for ms in (start_ms, end_ms))
    return TraceSpan(name, service, "1" * 32, "2" * 16, "", start_ns, end_ns, about)


def token(index: int, start_ms: float, end_ms: float, origin: str, **parts: float) -> TraceSpan:
    """A token's span; `parts` are the split in ms."""
    about: dict[str, Any] = {f"{part}_ms": ms for part, ms in parts.items()}
    about |= {"token__index": index, "token__origin": origin}
    return span(ORCHESTRATOR, "token", start_ms, end_ms, **about)


def draft(start_ms: float, end_ms: float, base: int, num: int, accepted: int, **more: Any) -> Any:
    about = {"draft__tokens": num, "draft__accepted": accepted, "base": base, "epoch": 0, **more}
    return span(DRAFTER, "draft", start_ms, end_ms, **about)


def verify(start_ms: float, end_ms: float, **about: Any) -> TraceSpan:
    return span(VERIFIER, "verify", start_ms, end_ms, **about)


def alone() -> list[TraceSpan]:
    """100 ms without a drafter: a prompt of 17 tokens, and two of the target's own."""
    return [
        span(ORCHESTRATOR, "generate", 0, 100),
        span(ORCHESTRATOR, "prepare", 0, 2),
        span(VERIFIER, "queue", 5, 6),
        span(VERIFIER, "prefill", 6, 26, prefill__tokens=17, prefill__passes=1),
        verify(6, 26, tokens=1, judged=0, accepted=0, queue_ms=0.0),
        token(0, 0, 30, "prefill", wire=5.0, verify=20.0, emit=5.0),
        verify(76, 94, tokens=1, judged=0, accepted=0, queue_ms=0.0),
        span(VERIFIER, "session", 5, 120),
    ]


def drafted() -> list[TraceSpan]:
    """The same with a drafter: two blocks judged in one pass, and one that was never sent."""
    rest = [token(index, 80, 80, "accepted") for index in range(2, 6)]
    return [
        *alone(),
        span(DRAFTER, "queue", 5, 8),
        span(DRAFTER, "prefill", 8, 18, prefill__tokens=17, prefill__passes=2),
        draft(30, 40, 4, 4, 4),
        draft(40, 50, 8, 4, 1),
        draft(50, 60, 12, 2, 0, draft__state="unsent"),
        span(ORCHESTRATOR, "discard", 61, 61, draft__discarded=4),
        verify(55, 75, tokens=6, judged=8, accepted=5, queue_ms=5.0),
        token(1, 30, 80, "accepted", draft=20.0, wire=2.0, queue=5.0, verify=20.0, emit=3.0),
        *rest,
        token(6, 80, 80, "recovered"),
        token(7, 80, 98, "autoregressive", wire=4.0, verify=12.0, emit=2.0),
    ]
