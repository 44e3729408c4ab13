"""The bars and marks that one request's spans are drawn as, in ms from the request's start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields

from paceline.generation import TraceSpan

TOLERANCE_MS = 1.0
"""How far a span may lie outside the request before it is told; scheduling alone may do so much."""

LANES = (
    "prefill drafter",
    "prefill verifier",
    "draft",
    "waste",
    "wire",
    "queue",
    "verify",
    "lost",
)
"""In the order in which they are drawn."""

_DRAFTER = "paceline-drafter"


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of one lane. `detail` tells it in words; `num_tokens` may be 0."""

    start_ms: float
    end_ms: float
    num_tokens: int
    detail: str

    @property
    def duration_ms(self) -> float:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Lane:
    """What one part of the system did, in order of start; bars may overlap."""

    name: str
    bars: tuple[Bar, ...]

    @property
    def num_tokens(self) -> int:
        return sum(bar.num_tokens for bar in self.bars)

    @property
    def total_ms(self) -> float:
        """Durations summed; overlapping bars count each."""
        return sum(bar.duration_ms for bar in self.bars)

    def covered_ms(self, start_ms: float, end_ms: float) -> float:
        """How much of a time at least one bar covers."""
        covered, reached = 0.0, start_ms
        for bar in self.bars:
            first, last = max(bar.start_ms, reached), min(bar.end_ms, end_ms)
            if first < last:
                covered += last - first
                reached = last
        return covered


@dataclass(frozen=True, slots=True)
class Split:
    """Where latency went, in ms; see "Where a token's time went" in `docs/tracing.md`."""

    draft: float = 0.0
    wire: float = 0.0
    queue: float = 0.0
    verify: float = 0.0
    emit: float = 0.0

    @classmethod
    def sum_of(cls, splits: Iterable[Split]) -> Split:
        parts = list(zip(*map(astuple, splits), strict=True))
        return cls(*map(sum, parts)) if parts else cls()

    @property
    def total(self) -> float:
        return sum(part for _, part in self.items())

    def over(self, count: int) -> Split:
        """The share of one of `count`."""
        return Split(*(part / count for part in astuple(self)))

    def items(self) -> Iterator[tuple[str, float]]:
        """Each part's name and ms."""
        for part in fields(self):
            yield part.name, float(getattr(self, part.name))


@dataclass(frozen=True, slots=True)
class Mark:
    """The delivery of a token; beyond the server's cap of token spans, of several.

    `origin` is empty where several share the mark.
    """

    at_ms: float
    num_tokens: int
    origin: str
    split: Split
    detail: str


@dataclass(frozen=True, slots=True)
class Outside:
    """Spans that lay outside the request by more than `TOLERANCE_MS`, and by how much at most."""

    num_spans: int = 0
    before_ms: float = 0.0
    after_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Frame:
    """The request's own time, into which everything is put."""

    start_ns: int
    end_ns: int
    prepared_ns: int
    """The end of `prepare`, before which nothing was on its way."""

    @classmethod
    def of(cls, spans: Sequence[TraceSpan]) -> Frame:
        requests = [span for span in spans if span.name == "generate"] or spans
        start_ns = min(span.start_ns for span in requests)
        prepared = [span.end_ns for span in spans if span.name == "prepare"]
        return cls(start_ns, max(span.end_ns for span in requests), max([start_ns, *prepared]))

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6

    def at(self, time_ns: int) -> float:
        """ms since the request's start, clamped into it."""
        return (min(max(time_ns, self.start_ns), self.end_ns) - self.start_ns) / 1e6

    def bar(self, start_ns: int, end_ns: int, num_tokens: int, detail: str) -> Bar:
        return Bar(self.at(start_ns), self.at(max(start_ns, end_ns)), num_tokens, detail)

    def outside(self, spans: Iterable[TraceSpan]) -> Outside:
        beyond = [
            ((self.start_ns - span.start_ns) / 1e6, (span.end_ns - self.end_ns) / 1e6)
            for span in spans
        ]
        beyond = [pair for pair in beyond if max(pair) > TOLERANCE_MS]
        if not beyond:
            return Outside()
        befores, afters = zip(*beyond, strict=True)
        return Outside(len(beyond), max(0.0, *befores), max(0.0, *afters))


def bars_of(span: TraceSpan, frame: Frame) -> Iterator[tuple[str, Bar]]:
    """The bars of one span, and the lanes that they lie in."""
    whole = (span.start_ns, span.end_ns)
    match span.name:
        case "prefill":
            role = _role(span)
            tokens = _count(span, "prefill.tokens")
            passes = _count(span, "prefill.passes")
            detail = f"{role} reads the prompt: {_tokens(tokens)}, passes: {passes}"
            yield f"prefill {role}", frame.bar(*whole, tokens, detail)
        case "draft":
            yield from _draft_bars(span, frame)
        case "token":
            wire_ns = round(number(span, "paceline.wire_ms") * 1e6)
            if wire_ns > 0:
                is_first = span.start_ns <= frame.start_ns
                start_ns = max(span.start_ns, frame.prepared_ns) if is_first else span.start_ns
                end_ns = min(start_ns + wire_ns, span.end_ns)
                detail = f"before token {_count(span, 'token.index')}"
                yield "wire", frame.bar(start_ns, end_ns, 0, detail)
        case "queue":
            yield "queue", frame.bar(*whole, 0, f"a session waits on the {_role(span)}")
        case "verify":
            queue_ns = round(number(span, "paceline.queue_ms") * 1e6)
            if queue_ns > 0:
                bar = frame.bar(
                    span.start_ns - queue_ns, span.start_ns, 0, "drafts wait for a pass"
                )
                yield "queue", bar
            tokens = _count(span, "tokens")
            detail = (
                f"{_tokens(tokens)} committed, {_count(span, 'accepted')} of "
                f"{_count(span, 'judged')} judged accepted; {_count(span, 'pass.rows')} rows and "
                f"{_count(span, 'pass.sessions')} sessions in the pass"
            )
            yield "verify", frame.bar(*whole, tokens, detail)
        case "lost":
            role = str(span.attributes.get("paceline.role", "worker"))
            error = str(span.attributes.get("error.message", ""))
            yield "lost", frame.bar(*whole, 0, f"{role} lost: {error}")


def _draft_bars(span: TraceSpan, frame: Frame) -> Iterator[tuple[str, Bar]]:
    drawn, accepted = _count(span, "draft.tokens"), _count(span, "draft.accepted")
    base, epoch = _count(span, "base"), _count(span, "epoch")
    share = accepted / drawn if drawn else 0.0
    kept_until_ns = span.start_ns + round((span.end_ns - span.start_ns) * share)
    block = f"block at {base} of epoch {epoch}"
    if accepted:
        detail = f"{block}: {accepted} of {_tokens(drawn)} kept"
        yield "draft", frame.bar(span.start_ns, kept_until_ns, accepted, detail)
    if accepted < drawn:
        detail = f"{block}: {drawn - accepted} of {_tokens(drawn)} thrown away"
        if span.attributes.get("paceline.draft.state") == "unsent":
            detail += " unsent"
        yield "waste", frame.bar(kept_until_ns, span.end_ns, drawn - accepted, detail)


def mark_of(span: TraceSpan, frame: Frame, texts: Sequence[str]) -> Mark:
    index = _count(span, "token.index")
    count = _count(span, "token.count") or 1
    split = Split(*(number(span, f"paceline.{part.name}_ms") for part in fields(Split)))
    origin = str(span.attributes.get("paceline.token.origin", ""))
    name = f"token {index}" if count == 1 else f"tokens {index} to {index + count - 1}"
    # with several answers the texts would have to be told apart
    known = texts[index : index + count] if "paceline.answer" not in span.attributes else ()
    text = "".join(known) or str(span.attributes.get("paceline.token.text", ""))
    parts = [f"{part} {ms:.1f}" for part, ms in split.items() if ms > 0.0]
    detail = " ".join(filter(None, (name, origin, repr(text) if text else "")))
    if parts:
        detail += f": {' + '.join(parts)} ms"
    return Mark(frame.at(span.end_ns), count, origin, split, detail)


def _role(span: TraceSpan) -> str:
    return "drafter" if span.service == _DRAFTER else "verifier"


def _count(span: TraceSpan, key: str) -> int:
    return round(number(span, f"paceline.{key}"))


def number(span: TraceSpan, key: str) -> float:
    value = span.attributes.get(key, 0)
    return 0.0 if isinstance(value, str) else float(value)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
