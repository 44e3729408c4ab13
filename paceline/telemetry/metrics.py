"""What the two workers count. `docs/operations.md` says what each metric tells.

Every method is called on the engine thread, a few times a pass; what they count is read on other
threads. Without `export` they only count, for `Describe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from opentelemetry.metrics import Meter

from paceline.telemetry.instruments import FAST_S, SIZES, Instruments, Reading, by, off, one
from paceline.types import Verdict, WorkerInfo

NUM_POSITIONS = 16
"""Positions in a block with a label of their own; the last one stands for all further ones too."""
DISCARD_REASONS = ("stale", "rejected", "mismatch", "known", "outcome", "off", "ended")
"""Why a draft token that reached the verifier was not judged: its epoch had passed; a draft before
it was rejected; it differs from, or agrees with, what was committed there without waiting for it;
it was made ahead for a rejection that did not come; speculation was switched off; its session had
ended."""


class VerifierMetrics:
    """What a verifier does."""

    service = "verifier"

    def __init__(self) -> None:
        self.counters: dict[str, int] = dict.fromkeys(
            ("passes", "rows", "draft_tokens", "accepted_tokens", "committed_tokens"), 0
        )
        """`draft_tokens` are the judged ones."""
        self.num_received = 0
        """Draft tokens that arrived."""
        self._queue_us = 0
        self.discards = dict.fromkeys(DISCARD_REASONS, 0)
        """Draft tokens that went unjudged, by reason."""
        # how often so many drafts were judged and accepted: positions are summed up when read
        self._judged: dict[int, int] = {}
        self._accepted: dict[int, int] = {}
        self._make_histograms(off(self.service))

    def export(self, meter: Meter) -> None:
        """Show what is counted from here on through `meter`. Call it once, before the work."""
        make = Instruments(meter, self.service)
        self._make_histograms(make)
        counters = self.counters
        make.counter(
            "passes", "{pass}", "Forward passes of the target.", lambda: one(counters["passes"])
        )
        make.counter(
            "queue",
            "s",
            "Time that sessions were ready and waited for a pass, summed over them.",
            lambda: one(self._queue_us / 1e6),
        )
        make.counter(
            "draft_tokens",
            "{token}",
            "Draft tokens that arrived.",
            lambda: one(self.num_received),
        )
        make.counter(
            "judged_tokens",
            "{token}",
            "Draft tokens that a pass judged, by position among those of their pass.",
            lambda: by("position", by_position(self._judged)),
        )
        make.counter(
            "accepted_tokens",
            "{token}",
            "Draft tokens that the target accepted, by position among those of their pass.",
            lambda: by("position", by_position(self._accepted)),
        )
        make.counter(
            "discarded_tokens",
            "{token}",
            "Draft tokens that arrived and were not judged, by reason.",
            lambda: by("reason", dict(self.discards)),
        )
        make.counter(
            "committed_tokens",
            "{token}",
            "Tokens that became final.",
            lambda: one(counters["committed_tokens"]),
        )

    def _make_histograms(self, make: Instruments) -> None:
        self._pass_s = make.histogram(
            "pass.duration", "s", "Forward and judge time of a pass.", FAST_S
        )
        self._pass_rows = make.histogram("pass.rows", "{row}", "Input tokens of a pass.", SIZES)
        self._pass_sessions = make.histogram(
            "pass.sessions", "{session}", "Sessions that shared a pass.", SIZES
        )

    def passed(self, *, seconds: float, rows: int, sessions: int) -> None:
        """A pass ended."""
        self.counters["passes"] += 1
        self.counters["rows"] += rows
        self._pass_s.record(seconds)
        self._pass_rows.record(rows)
        self._pass_sessions.record(sessions)

    def received(self, num_tokens: int) -> None:
        """A block arrived, for a session that lives or has ended."""
        self.num_received += num_tokens

    def judged(self, verdict: Verdict) -> None:
        """A pass decided for one session."""
        num_judged, num_accepted = verdict.num_judged, verdict.accepted_length
        self.counters["draft_tokens"] += num_judged
        self.counters["accepted_tokens"] += num_accepted
        self.counters["committed_tokens"] += len(verdict.token_ids)
        self._queue_us += verdict.timings.queue_us
        self._judged[num_judged] = self._judged.get(num_judged, 0) + 1
        self._accepted[num_accepted] = self._accepted.get(num_accepted, 0) + 1

    def discarded(self, num_tokens: int, reason: str) -> None:
        """Draft tokens will not be judged; `reason` is one of `DISCARD_REASONS`."""
        self.discards[reason] += num_tokens


class DrafterMetrics:
    """What a drafter does."""

    service = "drafter"

    def __init__(self) -> None:
        self.counters: dict[str, int] = dict.fromkeys(
            ("steps", "blocks", "draft_tokens", "outcomes_used"), 0
        )
        self._num_rolled_back = 0
        self._make_histograms(off(self.service))

    def export(self, meter: Meter) -> None:
        """Show what is counted from here on through `meter`. Call it once, before the work."""
        make = Instruments(meter, self.service)
        self._make_histograms(make)
        counters = self.counters
        make.counter("steps", "{step}", "Drafting steps.", lambda: one(counters["steps"]))
        make.counter("blocks", "{block}", "Draft blocks sent.", lambda: one(counters["blocks"]))
        make.counter(
            "draft_tokens", "{token}", "Draft tokens sent.", lambda: one(counters["draft_tokens"])
        )
        make.counter(
            "outcomes_used",
            "{outcome}",
            "Rejections for whose token drafts had been made ahead.",
            lambda: one(counters["outcomes_used"]),
        )
        make.counter(
            "rolled_back_tokens",
            "{token}",
            "Drafts, sent or not, that an advance made void.",
            lambda: one(self._num_rolled_back),
        )

    def _make_histograms(self, make: Instruments) -> None:
        self._step_s = make.histogram("step.duration", "s", "Time of a drafting step.", FAST_S)
        self._step_sessions = make.histogram(
            "step.sessions", "{session}", "Sessions that shared a drafting step.", SIZES
        )

    def stepped(self, *, seconds: float, sessions: int, steps: int = 1) -> None:
        """So many steps drafted for so many sessions, in `seconds` together."""
        self.counters["steps"] += steps
        for _ in range(steps):
            self._step_s.record(seconds / steps)
            self._step_sessions.record(sessions)

    def sent(self, num_tokens: int) -> None:
        """A block was sent."""
        self.counters["blocks"] += 1
        self.counters["draft_tokens"] += num_tokens

    def came_true(self) -> None:
        """A draft was rejected for a token behind which drafts had been made ahead."""
        self.counters["outcomes_used"] += 1

    def rolled_back(self, num_tokens: int) -> None:
        """So many drafts became void."""
        self._num_rolled_back += num_tokens


def export_worker(
    meter: Meter, service: str, *, describe: Callable[[], WorkerInfo], busy_s: Callable[[], float]
) -> None:
    """Show how full a worker is, from its own description, and how busy its engine."""
    make = Instruments(meter, service)
    make.counter("engine.busy", "s", "Time that the engine computed.", lambda: one(busy_s()))
    for name, unit, description, field in (
        (
            "kv.used_pages",
            "{page}",
            "KV pages that open sessions hold.",
            "kv_pages_used",
        ),
        ("kv.total_pages", "{page}", "Pages of the KV pool.", "kv_pages_total"),
        (
            "live_sessions",
            "{session}",
            "Sessions that are open, waiting included.",
            "live_sessions",
        ),
        ("waiting_sessions", "{session}", "Sessions that wait for KV pages.", "waiting_sessions"),
    ):
        make.gauge(name, unit, description, partial(_field_of, describe, field))
    for name, unit, description, key in (
        (
            "prefix.reused_tokens",
            "{token}",
            "Prompt tokens whose KV an earlier session had left in the cache.",
            "prefix_tokens_reused",
        ),
        (
            "prefix.computed_tokens",
            "{token}",
            "Prompt tokens that a pass computed.",
            "prefix_tokens_computed",
        ),
        (
            "prefix.evicted_pages",
            "{page}",
            "Pages kept for later sessions that were given up for open ones.",
            "prefix_pages_evicted",
        ),
    ):
        make.counter(name, unit, description, partial(_counter_of, describe, key))


def _field_of(describe: Callable[[], WorkerInfo], field: str) -> Reading:
    return one(getattr(describe(), field))


def _counter_of(describe: Callable[[], WorkerInfo], key: str) -> Reading:
    """Nothing of a worker that has no such counter: one that copies keeps no KV."""
    counters = describe().counters
    return one(counters[key]) if key in counters else []


def by_position(lengths: Mapping[int, int]) -> dict[str, float]:
    """How many runs reach each position from 1 on; `lengths` says how many have each length.

    Positions from `NUM_POSITIONS` on are one, which counts every token beyond.
    """
    totals = dict.fromkeys(range(1, NUM_POSITIONS + 1), 0)
    for length, count in list(lengths.items()):  # the engine adds to it meanwhile
        for position in range(1, min(length, NUM_POSITIONS - 1) + 1):
            totals[position] += count
        totals[NUM_POSITIONS] += count * max(0, length - NUM_POSITIONS + 1)
    names = [*map(str, range(1, NUM_POSITIONS)), f"{NUM_POSITIONS}+"]
    return dict(zip(names, totals.values(), strict=True))
