"""Draft tokens of one session that went unjudged."""

from __future__ import annotations


class Discards:
    """Counts them until somebody takes the counts; for the reasons see `DISCARD_REASONS`."""

    def __init__(self) -> None:
        self._in_vain = 0
        self.by_reason: dict[str, int] = {}

    def add(self, num_tokens: int, reason: str, *, in_vain: bool = True) -> None:
        """So many went unjudged; in vain unless they were right all the same."""
        if num_tokens:
            self._in_vain += num_tokens if in_vain else 0
            self.by_reason[reason] = self.by_reason.get(reason, 0) + num_tokens

    def take_in_vain(self) -> int:
        """How many were in vain since the last call."""
        taken, self._in_vain = self._in_vain, 0
        return taken

    def take_by_reason(self) -> dict[str, int]:
        """How many there were since the last call, by reason."""
        taken, self.by_reason = self.by_reason, {}
        return taken
