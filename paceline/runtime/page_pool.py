"""Exact accounting of KV pages: which are free, used or promised. Knows nothing of tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from paceline.errors import InvalidArgumentError, ResourceExhaustedError
from paceline.runtime.page_table import PageTable


class PagePool:
    """Pages of one worker. A table reserves its worst case when opened, so growth never fails.

    Page `i` holds slots `i * page_size` to `(i + 1) * page_size - 1` of the KV tensors.

    A page that has a key says by it what it holds (`prefix_cache.py`), so that several tables can
    share it. When the last of them lets go the page is room like any other, but it can be found by
    its key until the room is needed: those that rested longest go first.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_evicted = 0
        """Resting pages that were taken for other tokens, in all."""
        self._free = list(range(num_pages - 1, -1, -1))
        self._resting: OrderedDict[int, None] = OrderedDict()  # keyed, held by no table
        self._promised = 0  # reserved by open tables and not yet handed out
        self._num_holders = [0] * num_pages
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def used_pages(self) -> int:
        """Pages that hold tokens of an open table."""
        return self.num_pages - self._room

    @property
    def reserved_pages(self) -> int:
        """Pages that open tables hold or may yet come to."""
        return self.num_pages - self.available_pages

    @property
    def resting_pages(self) -> int:
        """Pages that no table holds and that can still be found by their key."""
        return len(self._resting)

    @property
    def available_pages(self) -> int:
        """Pages that a new table may reserve."""
        return self._room - self._promised

    @property
    def _room(self) -> int:
        return len(self._free) + len(self._resting)

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

    def pages_needed(self, max_tokens: int, keys: Sequence[bytes] = ()) -> int:
        """Room for a table whose first pages have `keys`: those that others hold take none."""
        held = [page for page in self._known_pages(keys) if self._num_holders[page]]
        return self.pages_for(max_tokens) - len(held)

    def open_table(self, max_tokens: int, keys: Sequence[bytes] = ()) -> PageTable:
        """A table that may grow to `max_tokens`, begun with the pages of `keys` as far as known.

        Raises `ResourceExhaustedError` without room.
        """
        self.check_room(self.pages_needed(max_tokens, keys))
        self._promised += self.pages_for(max_tokens)  # each page that is taken over repays one
        table = PageTable(self, self.pages_for(max_tokens))
        for key, _ in zip(keys, self._known_pages(keys), strict=False):
            table.adopt(key)
        return table

    def promise(self, num_pages: int) -> None:
        """Reserve room beside what open tables have. Raises `ResourceExhaustedError` without."""
        self.check_room(num_pages)
        self._promised += num_pages

    def check_room(self, num_pages: int) -> None:
        """Raise `ResourceExhaustedError` if so many pages cannot be reserved."""
        if num_pages > self.available_pages:
            raise ResourceExhaustedError(
                f"KV pool: {num_pages} pages needed, {self.available_pages} of {self.num_pages}"
                " free"
            )

    def hold_again(self, pages: Sequence[int]) -> None:
        """One more table holds pages that are held already."""
        for page in pages:
            assert self._num_holders[page]
            self._num_holders[page] += 1

    def take_page(self) -> int:
        """Hand a promised page to its table; its old content is forgotten."""
        self._promised -= 1
        page = self._free.pop() if self._free else self._evict()
        self._num_holders[page] = 1
        return page

    def share_page(self, page: int) -> None:
        """Hand a page found by its key to one more table, in place of a page promised to it."""
        self._promised -= 1
        self._resting.pop(page, None)
        self._num_holders[page] += 1

    def give_back(self, pages: list[int], *, still_promised: bool) -> None:
        """Return pages, either kept for their table's later growth or free for anyone."""
        if still_promised:
            self._promised += len(pages)
        for page in reversed(pages):  # those before a page outlast it: it is of no use without them
            self._num_holders[page] -= 1
            if self._num_holders[page]:
                continue
            if page in self._key_of:
                self._resting[page] = None
            else:
                self._free.append(page)

    def release_promise(self, num_pages: int) -> None:
        """Give up pages that a closing table had reserved and never used."""
        self._promised -= num_pages

    # --- pages by what they hold ------------------------------------------------------------

    def _known_pages(self, keys: Sequence[bytes]) -> Iterator[int]:
        """The pages of the first keys, up to one that is unknown."""
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                return
            yield page

    def find_page(self, key: bytes) -> int | None:
        """The page of that key, held or resting."""
        return self._page_of.get(key)

    def set_key(self, page: int, key: bytes) -> None:
        """Let a held page be found. Where another page has the key already, that one stays it."""
        assert self._num_holders[page]
        assert page not in self._key_of
        if key not in self._page_of:
            self._key_of[page] = key
            self._page_of[key] = page

    def drop_keys(self, pages: list[int]) -> None:
        """Let held pages no longer be found. Those that had no key are fine."""
        for page in pages:
            key = self._key_of.pop(page, None)
            if key is not None:
                del self._page_of[key]

    def _evict(self) -> int:
        page, _ = self._resting.popitem(last=False)
        self.num_evicted += 1
        self.drop_keys([page])
        return page

    def check_integrity(self) -> None:
        """Assert that no page is lost, held twice or found by a key that is not its own."""
        free, resting = set(self._free), set(self._resting)
        held = {page for page, holders in enumerate(self._num_holders) if holders}
        assert len(free) == len(self._free)
        assert len(free) + len(resting) + len(held) == self.num_pages
        assert free | resting | held == set(range(self.num_pages))
        assert min(self._num_holders, default=0) >= 0
        assert resting <= self._key_of.keys() <= resting | held
        assert self._page_of == {key: page for page, key in self._key_of.items()}
        assert 0 <= self._promised <= self._room
