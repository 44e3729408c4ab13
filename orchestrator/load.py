"""How busy a worker is, as far as an orchestrator knows, and which worker that speaks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from paceline.types import WorkerInfo

AFFINITY_SESSIONS = 4
AFFINITY_SHARE = 0.25
"""How many sessions more than the least busy worker, and which share more, KV is worth."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker said of itself, less what was ours at that moment: what others keep there.

    Ours is known exactly at any time, so only the others' part ages between two reports.
    """

    other_sessions: int = 0
    other_tokens: int = 0
    total_tokens: int = 0
    """Size of the KV pool; 0 where there is none, or nothing is known."""
    is_full: bool = False
    """Sessions wait there for room."""

    @classmethod
    def of(cls, info: WorkerInfo, *, own_sessions: int, own_tokens: int) -> Report:
        """`own_tokens` are those that our sessions may come to, whether they have or not."""
        reserved_tokens = info.kv_pages_reserved * info.kv_page_size
        return cls(
            other_sessions=max(0, info.live_sessions - own_sessions),
            other_tokens=max(0, reserved_tokens - own_tokens),
            total_tokens=info.kv_pages_total * info.kv_page_size,
            is_full=info.waiting_sessions > 0,
        )


class Loaded(Protocol):
    """What the choice needs to know of a worker."""

    @property
    def load(self) -> int:
        """Live sessions, of all orchestrators."""

    @property
    def room_tokens(self) -> float:
        """Tokens for which the KV pool has room; infinite where there is no pool."""


L = TypeVar("L", bound=Loaded)


def room_tokens(report: Report, own_tokens: int) -> float:
    """Room in the KV pool after a report, when our sessions may come to `own_tokens`."""
    if report.total_tokens == 0:
        return math.inf
    if report.is_full:
        return 0.0
    return float(report.total_tokens - report.other_tokens - own_tokens)


def choose(workers: Sequence[L], num_tokens: int, favourite: L | None = None) -> L | None:
    """The worker for a session that may come to `num_tokens`; None without workers.

    1. Those with room for it in their KV pool, or all where none has: it waits in a queue then.
    2. Of these the one with the fewest sessions, the first of equals,
    3. unless the favourite, where the session's prefix lies, is among them and has at most
       max(4, a quarter) sessions more than that one. A pass costs little more for four sessions
       more, and recomputing a prefix costs many passes; but no popular prefix may pile everything
       up on one worker.
    """
    fitting = [worker for worker in workers if worker.room_tokens >= num_tokens] or list(workers)
    least = min(fitting, key=lambda worker: worker.load, default=None)
    if least is None or favourite is None or all(worker is not favourite for worker in fitting):
        return least
    bound = least.load + max(AFFINITY_SESSIONS, AFFINITY_SHARE * least.load)
    return favourite if favourite.load <= bound else least
