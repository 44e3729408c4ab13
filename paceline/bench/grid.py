"""Which points a sweep measures: products of device costs, network, acceptance and load."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.config.models import acceptance_rate
from paceline.errors import ConfigError

LIMITS: dict[str, tuple[float, float]] = {
    "alpha": (0.0, 1.0),
    "gamma": (1, 32),
    "rtt-ms": (0.0, 10_000.0),
    "concurrency": (1, 1024),
    "verify-ms": (0.0, 60_000.0),
    "draft-ms": (0.0, 60_000.0),
    "knee-tokens": (0, 1_000_000),
    "second-guess": (0.0, 1.0),
}
"""Smallest and largest value of every option of a grid."""


SECOND_GUESS = 0.6
"""Where nothing else is asked for: 0.634 was measured along greedy texts of SmolLM2 with its nf4
copy (docs/decisions)."""
THIRD_BY_SECOND = 0.7
"""How often the third guess is right where the second is not, by how often the second is: there one
of both is at 0.800, so that the third is at 0.45."""


@dataclass(frozen=True, slots=True)
class Point:
    """One deployment under one load. `round_trip_ms` lies between orchestrator and verifier."""

    acceptance: float
    round_trip_ms: float = 0.0
    concurrency: int = 1
    verify_ms: float = 30.0
    draft_ms: float = 3.0
    knee_tokens: int = 0
    """Of the target; 0 is a device that is never bound by computing."""
    second_guess: float = SECOND_GUESS
    """How often the drafter's next likeliest token is right where its likeliest is wrong."""

    @property
    def third_guess(self) -> float:
        """How often the one after it is where both are."""
        return THIRD_BY_SECOND * self.second_guess

    def as_row(self) -> dict[str, Any]:
        """Its columns."""
        return asdict(self)

    @property
    def label(self) -> str:
        """What people read."""
        knee = f", knee {self.knee_tokens}" if self.knee_tokens else ""
        if self.second_guess != SECOND_GUESS:
            knee += f", second guess {self.second_guess:g}"
        return (
            f"α {self.acceptance:g}, RTT {self.round_trip_ms:g} ms, {self.concurrency} sessions,"
            f" {self.verify_ms:g}/{self.draft_ms:g} ms{knee}"
        )


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of these."""

    acceptances: Sequence[float]
    round_trips_ms: Sequence[float] = (0.0,)
    concurrencies: Sequence[int] = (1,)
    verifies_ms: Sequence[float] = (30.0,)
    drafts_ms: Sequence[float] = (3.0,)
    knees_tokens: Sequence[int] = (0,)
    second_guesses: Sequence[float] = (SECOND_GUESS,)

    def points(self) -> list[Point]:
        """In order, the acceptance rate changing last but fastest."""
        product = itertools.product(
            self.second_guesses,
            self.verifies_ms,
            self.drafts_ms,
            self.knees_tokens,
            self.concurrencies,
            self.round_trips_ms,
            self.acceptances,
        )
        return [
            Point(acceptance, rtt_ms, concurrency, verify_ms, draft_ms, knee_tokens, second_guess)
            for second_guess, verify_ms, draft_ms, knee_tokens, concurrency, rtt_ms, acceptance in (
                product
            )
        ]


def points_of(grids: Iterable[Grid]) -> list[Point]:
    """The points of several grids, each once."""
    return list(dict.fromkeys(point for grid in grids for point in grid.points()))


QUICK = (
    Grid((0.6, 0.9), (0.0, 20.0)),
    Grid((0.0,)),
    Grid((0.8,), concurrencies=(8,)),
)
"""About two minutes with one repeat of 64 tokens."""
FULL = (
    Grid((0.0, 0.3, 0.6, 0.8, 0.9), (0.0, 5.0, 20.0)),
    Grid((0.6, 0.9), (0.0, 20.0), (8, 32)),
    Grid((0.8,), (0.0,), (8, 64), knees_tokens=(64,)),  # bound by computing
    Grid((0.8,), (0.0,), drafts_ms=(10.0, 40.0)),  # a drafter slower than the target
)
"""Hours or so: all that must hold, with their neighbours."""
QUICK_GAMMAS = (2, 4, 8)
FULL_GAMMAS = (1, 2, 3, 4, 6, 8)


def parse_numbers(option: str, text: str) -> list[float]:
    """The numbers of `--OPTION 0.6,0.8,0.9`, within `LIMITS`; whole ones where the limits are.

    Raises `ConfigError` naming the option, the entry and the limits.
    """
    low, high = LIMITS[option]
    is_whole = isinstance(low, int)
    numbers = []
    for entry in text.split(","):
        try:
            number = int(entry) if is_whole else float(entry)
        except ValueError:
            kind = "a whole number" if is_whole else "a number"
            raise ConfigError(f"--{option} {text}: {entry.strip()!r} is not {kind}") from None
        if not low <= number <= high:
            raise ConfigError(f"--{option} {text}: {entry.strip()} is not from {low} to {high:g}")
        if option == "alpha":
            try:
                acceptance_rate(number)
            except ValueError as error:
                raise ConfigError(f"--{option} {text}: {error}") from error
        numbers.append(number)
    return list(dict.fromkeys(numbers))
