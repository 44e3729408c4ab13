"""The queue of sessions that wait, in order and for a bounded time, for KV pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from paceline.errors import ResourceExhaustedError
from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Waiting:
    max_tokens: int
    gives_up_at: float
    prefix: Sequence[bytes]


class AdmissionQueue(Generic[K]):
    """First come, first served: a session behind one that does not fit waits too."""

    def __init__(self, pool: PagePool, *, max_waiting_s: float, max_waiting_sessions: int) -> None:
        self._pool = pool
        self._max_waiting_s = max_waiting_s
        self._max_waiting_sessions = max_waiting_sessions
        self._waiting: OrderedDict[K, _Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, key: K, max_tokens: int, now: float, *, prefix: Sequence[bytes] = ()) -> None:
        """Queue a session that may grow to `max_tokens`; `prefix` are its first pages' keys.

        Raises `InvalidArgumentError` if it can never fit, `ResourceExhaustedError` if the queue
        is full and the session would have to wait.
        """
        self._pool.check_possible(max_tokens)
        needed = self._pool.pages_needed(max_tokens, prefix)
        must_wait = self._waiting or needed > self._pool.available_pages
        if must_wait and len(self._waiting) >= self._max_waiting_sessions:
            raise ResourceExhaustedError(
                f"{len(self._waiting)} sessions already wait for KV pages, the limit is"
                f" {self._max_waiting_sessions}"
            )
        self._waiting[key] = _Waiting(max_tokens, now + self._max_waiting_s, prefix)

    def leave(self, key: K) -> None:
        """Forget a session that no longer wants to wait. Unknown keys are fine."""
        self._waiting.pop(key, None)

    def admit(self) -> list[tuple[K, PageTable]]:
        """Open tables for the sessions at the head of the queue, as far as they fit."""
        admitted = []
        while self._waiting:
            key, entry = next(iter(self._waiting.items()))
            needed = self._pool.pages_needed(entry.max_tokens, entry.prefix)
            if needed > self._pool.available_pages:
                break
            del self._waiting[key]
            admitted.append((key, self._pool.open_table(entry.max_tokens, entry.prefix)))
        return admitted

    def expire(self, now: float) -> list[tuple[K, ResourceExhaustedError]]:
        """Remove the sessions whose time is up, each with the error to answer."""
        expired = [key for key, entry in self._waiting.items() if entry.gives_up_at <= now]
        return [(key, self._refusal(self._waiting.pop(key))) for key in expired]

    def next_expiry(self) -> float | None:
        """When the first waiting session gives up; None if nobody waits."""
        return min((entry.gives_up_at for entry in self._waiting.values()), default=None)

    def _refusal(self, entry: _Waiting) -> ResourceExhaustedError:
        needed = self._pool.pages_needed(entry.max_tokens, entry.prefix)
        return ResourceExhaustedError(
            f"no room in the KV pool after {self._max_waiting_s:g} s: {needed} pages needed,"
            f" {self._pool.available_pages} of {self._pool.num_pages} free"
        )
