"""What `paceline top` shows, made of two answers to `Status`: rates are differences of counters.

Each process says by its own clock (`uptime_us`) when it was asked. A rate is None where there is
nothing to divide: the process was restarted in between, or nothing happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.client_values import ServiceStatus
from paceline.generation import SessionStatus, WorkerStatus

_PASSES = {"verifier": "passes", "drafter": "steps"}
"""What a worker of each role counts as a pass of its model."""

Counters = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker. `busy` is the share of the time in which its engine computed."""

    role: str
    address: str
    connected: bool
    detail: str
    model: str
    device: str
    kv_pages_used: int
    kv_pages_total: int
    live_sessions: int
    waiting_sessions: int
    passes_per_s: float | None
    busy: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """One frame. `window` is the mean over the sessions' verdicts in the interval."""

    model: str
    live_sessions: int
    waiting_sessions: int
    requests_per_s: float | None
    tokens_per_s: float | None
    acceptance_rate: float | None
    window: float | None
    workers: tuple[WorkerFigures, ...]
    sessions: tuple[SessionStatus, ...]


def figures(before: ServiceStatus, after: ServiceStatus) -> Figures:
    """The frame between two answers of one orchestrator."""
    earlier = {(worker.role, worker.address): _counters(worker) for worker in before.workers}
    pairs = [(worker, earlier.get((worker.role, worker.address), {})) for worker in after.workers]
    verifiers = [(old, _counters(worker)) for worker, old in pairs if worker.role == "verifier"]
    workers = tuple(_worker(worker, old) for worker, old in pairs)
    return Figures(
        model=after.model,
        live_sessions=after.live_sessions,
        waiting_sessions=sum(worker.waiting_sessions for worker in workers),
        requests_per_s=_rate(before.counters, after.counters, "requests"),
        tokens_per_s=_rate(before.counters, after.counters, "completion_tokens"),
        acceptance_rate=_ratio(
            sum(_grown(*pair, "accepted_tokens") or 0 for pair in verifiers),
            sum(_grown(*pair, "draft_tokens") or 0 for pair in verifiers),
        ),
        window=_ratio(
            _grown(before.counters, after.counters, "window_tokens") or 0,
            _grown(before.counters, after.counters, "windows") or 0,
        ),
        workers=workers,
        sessions=after.sessions,
    )


def _worker(worker: WorkerStatus, old: Counters) -> WorkerFigures:
    info, new = worker.info, _counters(worker)
    # what is known of a lost worker is what it last said of itself: no rate comes of that
    passes = _rate(old, new, _PASSES.get(worker.role, "passes"))
    busy_us_per_s = _rate(old, new, "busy_us")
    return WorkerFigures(
        role=worker.role,
        address=worker.address,
        connected=worker.is_connected,
        detail=worker.detail,
        model="" if info is None else info.model or info.kind,
        device="" if info is None else info.device,
        kv_pages_used=0 if info is None else info.kv_pages_used,
        kv_pages_total=0 if info is None else info.kv_pages_total,
        live_sessions=0 if info is None else info.live_sessions,
        waiting_sessions=0 if info is None else info.waiting_sessions,
        passes_per_s=passes,
        busy=None if busy_us_per_s is None else min(busy_us_per_s / 1e6, 1.0),
    )


def _counters(worker: WorkerStatus) -> Counters:
    return {} if worker.info is None else worker.info.counters


def _grown(old: Counters, new: Counters, name: str) -> int | None:
    """How much a counter grew; None unless one process answered both times, at two times."""
    if new.get("uptime_us", 0) <= old.get("uptime_us", 0) or "uptime_us" not in old:
        return None
    return new.get(name, 0) - old.get(name, 0)


def _rate(old: Counters, new: Counters, name: str) -> float | None:
    grown = _grown(old, new, name)
    return None if grown is None else grown / (new["uptime_us"] - old["uptime_us"]) * 1e6


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None
