"""Which workers an orchestrator is to use: the value that the cluster tells it. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """Addresses (HOST:PORT) of the workers; those that are not named are on their way out."""

    version: int
    """Rises with every change, so that a set that arrives late is known to be old."""
    verifiers: tuple[str, ...]
    drafters: tuple[str, ...]
