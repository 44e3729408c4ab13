"""Which of many spans of a kind to keep, so that long answers stay usable in a viewer."""

from __future__ import annotations


class Thinning:
    """Keeps the first half of `limit`, and of the others every so many that `limit` is kept.

    `expected` is how many may come at most; were there more, none of them is kept.
    """

    def __init__(self, limit: int, expected: int) -> None:
        self.num_left_out = 0
        self._head = limit if expected <= limit else limit // 2
        rest = limit - self._head
        self.stride = -(-(expected - self._head) // rest) if rest > 0 else 0
        """How many beyond the first ones share a place; 0: none has any."""
        self._limit = limit
        self._num_seen = 0
        self._num_kept = 0

    def starts_new(self) -> bool:
        """Count one more; whether it gets a span of its own."""
        index = self._num_seen
        self._num_seen += 1
        behind = index - self._head
        is_kept = behind < 0 or (
            self.stride > 0 and behind % self.stride == 0 and self._num_kept < self._limit
        )
        if is_kept:
            self._num_kept += 1
        else:
            self.num_left_out += 1
        return is_kept
