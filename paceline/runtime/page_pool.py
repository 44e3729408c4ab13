"""Exact accounting of KV pages: which are free, used or promised. Knows nothing of tensors."""

from __future__ import annotations

from paceline.errors import InvalidArgumentError, ResourceExhaustedError
from paceline.runtime.page_table import PageTable


class PagePool:
    """Pages of one worker. A table reserves its worst case when opened, so growth never fails.

    Page `i` holds slots `i * page_size` to `(i + 1) * page_size - 1` of the KV tensors.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._promised = 0  # reserved by open tables and not yet handed out

    @property
    def used_pages(self) -> int:
        """Pages that hold tokens."""
        return self.num_pages - len(self._free)

    @property
    def available_pages(self) -> int:
        """Pages that a new table may reserve."""
        return len(self._free) - self._promised

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def check_possible(self, num_tokens: int) -> None:
        """Raise `InvalidArgumentError` if a table of that length could never be opened."""
        needed = self.pages_for(num_tokens)
        if needed > self.num_pages:
            raise InvalidArgumentError(
                "max_tokens",
                f"prompt and output need {needed} KV pages of {self.page_size} tokens,"
                f" the pool has {self.num_pages}",
            )

    def open_table(self, max_tokens: int) -> PageTable:
        """A table that may grow to `max_tokens`. Raises `ResourceExhaustedError` without room."""
        needed = self.pages_for(max_tokens)
        if needed > self.available_pages:
            raise ResourceExhaustedError(
                f"KV pool: {needed} pages needed, {self.available_pages} of {self.num_pages} free"
            )
        self._promised += needed
        return PageTable(self, needed)

    def take_page(self) -> int:
        """Hand a promised page to its table."""
        self._promised -= 1
        return self._free.pop()

    def give_back(self, pages: list[int], *, still_promised: bool) -> None:
        """Return pages, either kept for their table's later growth or free for anyone."""
        self._free.extend(reversed(pages))
        if still_promised:
            self._promised += len(pages)

    def release_promise(self, num_pages: int) -> None:
        """Give up pages that a closing table had reserved and never used."""
        self._promised -= num_pages

    def check_integrity(self) -> None:
        """Assert that no page is lost or held twice."""
        assert len(set(self._free)) == len(self._free) <= self.num_pages
        assert 0 <= self._promised <= len(self._free)
