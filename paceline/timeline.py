"""One request's spans as lanes of bars, in ms from its start: what is drawn of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.generation import TraceSpan
from paceline.timeline_bars import (
    LANES,
    Bar,
    Frame,
    Lane,
    Mark,
    Outside,
    Split,
    bars_of,
    mark_of,
    number,
)

__all__ = ["LANES", "Bar", "Lane", "Mark", "Outside", "Split", "Timeline"]

_DRAWN = ("prefill", "draft", "token", "queue", "verify", "lost")
_LEFT_OUT = ("paceline.token_spans.left_out", "paceline.block_spans.left_out")


@dataclass(frozen=True, slots=True)
class Timeline:
    """A request, or a stretch of it, from `start_ms` to `end_ms` since the call's arrival."""

    start_ms: float = 0.0
    end_ms: float = 0.0
    lanes: tuple[Lane, ...] = ()
    marks: tuple[Mark, ...] = ()
    outside: Outside = field(default_factory=Outside)
    num_left_out: int = 0
    """Spans and tokens that the services thinned out: lanes may miss bars, marks share tokens."""

    @classmethod
    def of(cls, spans: Sequence[TraceSpan], texts: Sequence[str] = ()) -> Timeline:
        """The timeline of one request, of which `texts` are the tokens, if known.

        The request lasts as long as its `generate` span, by the orchestrator's clock; without one,
        as long as its spans. Workers' spans are by the workers' clocks: bars are clamped into the
        request, and `outside` says what stuck out.

        - prefill, one lane a worker: its `prefill` spans.
        - draft and waste: every `draft` span, divided. A block's tokens are drawn one after the
          other, so the accepted ones had the first `accepted / tokens` of its time; the rest was
          waste. `discard` spans are of blocks that have a `draft` span, and are not counted again.
        - wire: a token's `wire_ms`, laid where the split lays it, from the start of the token's
          latency (of the first: from the end of `prepare`). It is what draft, queue, verify and
          emit do not explain, by the orchestrator's clock alone: messages on their way, and waiting
          for drafts. Drafts for later tokens may well be drawn meanwhile.
        - queue: `queue` spans, for the start of a session on a worker, and before each `verify`
          span what its `queue_ms` says, for a pass.
        - verify: this request's part of every pass; the first is also the end of the prefill.
        - lost: `lost` spans: a worker lost.

        Lanes without bars are left out.
        """
        if not spans:
            return cls()
        frame = Frame.of(spans)
        lanes: dict[str, list[Bar]] = {name: [] for name in LANES}
        for span in spans:
            for name, bar in bars_of(span, frame):
                lanes[name].append(bar)
        ordered = {name: sorted(bars, key=lambda b: b.start_ms) for name, bars in lanes.items()}
        tokens = [span for span in spans if span.name == "token"]
        tokens.sort(key=lambda s: (s.end_ns, number(s, "paceline.token.index")))
        return cls(
            0.0,
            frame.duration_ms,
            tuple(Lane(name, tuple(bars)) for name, bars in ordered.items() if bars),
            tuple(mark_of(span, frame, texts) for span in tokens),
            frame.outside(span for span in spans if span.name in _DRAWN),
            sum(round(number(s, key)) for s in spans for key in _LEFT_OUT),
        )

    @property
    def duration_ms(self) -> float:
        return self.end_ms - self.start_ms

    @property
    def num_tokens(self) -> int:
        return sum(mark.num_tokens for mark in self.marks)

    @property
    def split(self) -> Split:
        """Where the mean latency of a token went; nothing without tokens."""
        total = Split.sum_of(mark.split for mark in self.marks)
        return total.over(self.num_tokens) if self.num_tokens else total

    def between(self, start_ms: float, end_ms: float) -> Timeline:
        """A stretch of it: bars are cut to it, tokens are those delivered within.

        Raises `ValueError` if nothing of it lies there.
        """
        start_ms, end_ms = max(start_ms, self.start_ms), min(end_ms, self.end_ms)
        if start_ms >= end_ms:
            raise ValueError(f"the request took {self.end_ms:.1f} ms")
        lanes = []
        for lane in self.lanes:
            bars = tuple(
                replace(bar, start_ms=max(bar.start_ms, start_ms), end_ms=min(bar.end_ms, end_ms))
                for bar in lane.bars
                if bar.start_ms < end_ms and bar.end_ms > start_ms
            )
            if bars:
                lanes.append(Lane(lane.name, bars))
        marks = tuple(mark for mark in self.marks if start_ms <= mark.at_ms <= end_ms)
        return replace(self, start_ms=start_ms, end_ms=end_ms, lanes=tuple(lanes), marks=marks)
