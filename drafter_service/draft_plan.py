"""How far a session drafts, and how sure it has to be: what advances may change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import InvalidArgumentError
from paceline.types import Advance, OpenSession


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Window and block length, and their like for one source; `Advance` says what each means."""

    window: int
    block_length: int
    num_drawn: int
    draw_window: int | None = None
    min_confidence: float = 0.0
    min_copy_confidence: float = 0.0

    @classmethod
    def of(cls, opening: OpenSession) -> DraftPlan:
        """What a session begins with."""
        block_length = opening.num_speculative_tokens
        return cls(opening.window, block_length, num_drawn=block_length)

    def adjusted(self, event: Advance, *, max_window: int) -> DraftPlan:
        """With what an advance says. Raises `InvalidArgumentError` on what is out of range."""
        block_length = _within(event, "num_speculative_tokens", 1)
        num_drawn = _within(event, "num_drawn_tokens", 1)
        changes = {
            "window": _within(event, "window", 0, max_window),
            "block_length": block_length,
            "num_drawn": block_length if num_drawn is None else num_drawn,
            "draw_window": _within(event, "draw_window", 0),
            "min_confidence": _within(event, "min_confidence", 0, 1),
            "min_copy_confidence": _within(event, "min_copy_confidence", 0, 1),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **given) if given else self

    @property
    def has_limits(self) -> bool:
        """Whether blocks end where the drafter is unsure."""
        return self.min_confidence > 0.0 or self.min_copy_confidence > 0.0

    @property
    def most_drawn(self) -> int:
        """Tokens of a full block that a model draws."""
        return min(self.block_length, self.num_drawn)


def _within(event: Advance, field: str, least: int, most: int | None = None) -> Any:
    """A field's value if it is given."""
    value = getattr(event, field)
    if value is not None and not least <= value <= (value if most is None else most):
        expected = f"below {least}" if most is None else f"outside {least} to {most}"
        raise InvalidArgumentError(field, f"{value} is {expected}")
    return value
