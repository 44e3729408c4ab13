"""One span a delivered token: its latency as the client saw it, and where that time went."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.telemetry.recorder import Recorder
from paceline.telemetry.span import Attribute
from paceline.telemetry.thinning import Thinning
from paceline.types import Origin, Verdict

PARTS = ("draft", "wire", "queue", "verify", "emit")


@dataclass(frozen=True, slots=True)
class VerdictNote:
    """A verdict as it arrived, and the drafts that it judged."""

    verdict: Verdict
    arrived_ns: int
    draft_ns: int
    """Time spent drafting the blocks that it was the first to judge."""
    blocks: tuple[int | None, ...]
    """The block, by its base position, that each committed token was drafted in."""
    draft_probs: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class DeliveredToken:
    """A token on its way to the client: the `index`-th of a verdict's."""

    note: VerdictNote
    index: int
    text: str

    @property
    def origin(self) -> Origin | None:
        verdict = self.note.verdict
        is_accepted = self.index < verdict.accepted_length
        return Origin.ACCEPTED if is_accepted else verdict.next_origin


def split_ns(note: VerdictNote, start_ns: int, end_ns: int, prepared_ns: int = 0) -> list[int]:
    """Where the time from `start_ns` to `end_ns` went, in the order of `PARTS`; adds up exactly.

    Parts are measured apart and overlap with what went before, so they are laid backwards from the
    end, each as far as there is time left: the delivery, the pass, the wait for it, the drafting.
    What remains is the wire's: messages on their way, and drafts or a verifier waited for.
    `prepared_ns` of the start were the orchestrator's own.
    """
    left = max(0, end_ns - start_ns)
    timings = note.verdict.timings

    def take(wanted: int) -> int:
        nonlocal left
        taken = min(left, max(0, wanted))
        left -= taken
        return taken

    emit = take(end_ns - max(note.arrived_ns, start_ns))
    emit += take(prepared_ns)
    verify = take((timings.forward_us + timings.judge_us) * 1000)
    queue = take(timings.queue_us * 1000)
    draft = take(note.draft_ns)
    return [draft, left, queue, verify, emit]


class TokenSpans:
    """The token spans of one answer. Beyond the cap several tokens share a span."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        started_ns: int,
        max_spans: int,
        max_tokens: int,
        answer: int | None,
        record_text: bool,
    ) -> None:
        self._recorder = recorder
        self._thinning = Thinning(max_spans, expected=max_tokens)
        self._last_ns = started_ns
        self._prepared_ns = 0
        self._answer = answer
        self._record_text = record_text
        self._num_delivered = 0
        self._group: list[DeliveredToken] = []
        self._group_start_ns = started_ns
        self._group_split = [0] * len(PARTS)
        self._group_index = 0

    @property
    def num_left_out(self) -> int:
        """Tokens without a span of their own."""
        return self._thinning.num_left_out

    def prepared(self, duration_ns: int) -> None:
        """How long the orchestrator took before it asked anybody."""
        self._prepared_ns = duration_ns

    def delivered(self, tokens: list[DeliveredToken], at_ns: int) -> None:
        """These tokens reached the client together."""
        for token in tokens:
            start_ns, self._last_ns = self._last_ns, max(self._last_ns, at_ns)
            split = split_ns(token.note, start_ns, self._last_ns, self._prepared_ns)
            self._prepared_ns = 0
            if self._thinning.starts_new():
                self.flush()
                self._group_start_ns = start_ns
                self._group_index = self._num_delivered
                self._group = [token]
                self._group_split = split
            elif self._group and self._thinning.stride:
                self._group.append(token)
                pairs = zip(self._group_split, split, strict=True)
                self._group_split = [total + part for total, part in pairs]
            self._num_delivered += 1
            self._group_end_ns = self._last_ns

    def flush(self) -> None:
        """Record the tokens that are held for a span they share."""
        tokens, self._group = self._group, []
        if not tokens:
            return
        attributes = self._attributes(tokens)
        for part, duration_ns in zip(PARTS, self._group_split, strict=True):
            attributes[f"paceline.{part}_ms"] = duration_ns / 1e6
        self._recorder.add("token", self._group_start_ns, self._group_end_ns, attributes)

    def _attributes(self, tokens: list[DeliveredToken]) -> dict[str, Attribute]:
        attributes: dict[str, Attribute] = {"paceline.token.index": self._group_index}
        if self._answer is not None:
            attributes["paceline.answer"] = self._answer
        if self._record_text:
            attributes["paceline.token.text"] = "".join(token.text for token in tokens)[:200]
        if len(tokens) > 1:
            accepted = sum(token.origin is Origin.ACCEPTED for token in tokens)
            attributes["paceline.token.count"] = len(tokens)
            attributes["paceline.accepted"] = accepted
            return attributes
        (token,) = tokens
        note, index = token.note, token.index
        attributes["paceline.token.id"] = note.verdict.token_ids[index]
        attributes["paceline.epoch"] = note.verdict.epoch
        if token.origin is not None:
            attributes["paceline.token.origin"] = token.origin.value
        block = note.blocks[index]
        if block is not None:
            attributes["paceline.block"] = block
        draft_prob = note.draft_probs[index]
        if draft_prob is not None:
            attributes["paceline.token.draft_prob"] = draft_prob
        if note.verdict.target_probs:
            attributes["paceline.token.target_prob"] = note.verdict.target_probs[index]
        return attributes
