"""Which pages hold a session's tokens. Rollback is truncation of the table; nothing is copied.

Only of a draft that branched, a few slots move: those of the path that came true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from paceline.runtime.page_pool import PagePool


class PageTable:
    """Maps positions `0 .. length - 1` of one session to slots of the pool.

    Position p lies in slot `pages[p // page_size] * page_size + p % page_size`.

    The first `len(keys)` pages are sealed: full, of final tokens, and perhaps shared with other
    tables. Nothing is ever written to them and truncation never reaches them, so whatever a table
    writes lies in pages of its own and sharing needs no copies.

    A fork shares the full pages before it too, sealed or not, and copies the one that was begun.
    Who is to write to those again, behind a rollback, drops the fork first.
    """

    def __init__(self, pool: PagePool, max_pages: int) -> None:
        self._pool = pool
        self._max_pages = max_pages
        self.pages: list[int] = []
        self.keys: list[bytes] = []
        self.length = 0
        self.closed = False

    @property
    def sealed_length(self) -> int:
        """Tokens in sealed pages."""
        return len(self.keys) * self._pool.page_size

    def adopt(self, key: bytes) -> bool:
        """Append the page of that key, sealed, if there is one and all pages before it are."""
        page = self._pool.find_page(key)
        if page is None:
            return False
        assert self.length == self.sealed_length
        assert len(self.pages) < self._max_pages, "grown past its reservation"
        self._pool.share_page(page)
        self.pages.append(page)
        self.keys.append(key)
        self.length = self.sealed_length
        return True

    def seal(self, key: bytes) -> None:
        """Seal the next page, which is full, so that others find it by its key."""
        page = self.pages[len(self.keys)]
        self._pool.set_key(page, key)
        self.keys.append(key)
        assert self.sealed_length <= self.length, "a page must be full to be sealed"

    def disown(self) -> None:
        """Let none of the pages be found any more: what they hold is not to be trusted."""
        self._pool.drop_keys(self.pages)

    def grow(self, num_tokens: int) -> None:
        """Make room for the next `num_tokens`. Never fails within what the table reserved."""
        length = self.length + num_tokens
        needed = self._pool.pages_for(length)
        assert not self.closed
        assert needed <= self._max_pages, "grown past its reservation"
        while len(self.pages) < needed:
            self.pages.append(self._pool.take_page())
        self.length = length

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on; whole pages return to the table's reservation."""
        assert self.sealed_length <= length <= self.length
        keep = self._pool.pages_for(length)
        dropped = self.pages[keep:]
        del self.pages[keep:]
        if dropped:
            self._pool.give_back(dropped, still_promised=True)
        self.length = length

    def keep(self, start: int, nodes: Sequence[int]) -> list[tuple[int, int]]:
        """Of the tokens from `start` on keep some, closed up, and forget the rest.

        `nodes` count from `start`, upwards. Returns the slots whose content must move for it, as
        (from, to); what is moved later never lies where something was moved to.
        """
        moves = [
            (self.slot(start + node), self.slot(start + index))
            for index, node in enumerate(nodes)
            if node != index
        ]
        self.truncate(start + len(nodes))
        return moves

    def fork(self, length: int, num_tokens: int) -> tuple[PageTable, list[tuple[int, int]]]:
        """A table of the first `length` tokens that may grow by `num_tokens`.

        It shares full pages, and has a page of its own for the rest. Returns it with the page whose
        content must be copied for it, as (from, to), if there is one. Raises
        `ResourceExhaustedError` without room.
        """
        assert self.sealed_length <= length <= self.length
        page_size = self._pool.page_size
        num_shared = length // page_size
        max_pages = self._pool.pages_for(length + num_tokens)
        self._pool.promise(max_pages - num_shared)
        shared = self.pages[:num_shared]
        self._pool.hold_again(shared)
        branch = PageTable(self._pool, max_pages)
        branch.pages, branch.keys = shared, list(self.keys)
        branch.length = num_shared * page_size
        branch.grow(length - branch.length)
        begun = range(num_shared, len(branch.pages))
        return branch, [(self.pages[index], branch.pages[index]) for index in begun]

    def graft(self, branch: PageTable) -> None:
        """Hold from now on what a fork of this table holds, which is closed by that."""
        assert len(branch.pages) <= self._max_pages
        self._pool.release_promise(branch._max_pages - len(branch.pages))
        self._pool.give_back(self.pages, still_promised=True)
        self._pool.release_promise(len(branch.pages))
        self.pages, self.length = branch.pages, branch.length
        branch.pages, branch.keys, branch.length, branch.closed = [], [], 0, True

    def free(self) -> None:
        """Return all pages and the rest of the reservation. Idempotent."""
        if self.closed:
            return
        self._pool.give_back(self.pages, still_promised=False)
        self._pool.release_promise(self._max_pages - len(self.pages))
        self.pages = []
        self.keys = []
        self.length = 0
        self.closed = True

    def slot(self, position: int) -> int:
        """The slot of one position."""
        page_size = self._pool.page_size
        return self.pages[position // page_size] * page_size + position % page_size


def fork_all(
    table: PageTable,
    lengths: Sequence[int],
    num_tokens: int,
    *,
    copy: Callable[[Sequence[tuple[int, int]]], None],
) -> list[PageTable]:
    """Forks at all these lengths, or as many of the first as there is room for.

    `copy` is called once, with the pages whose content is to be copied, as (from, to).
    """
    branches: list[PageTable] = []
    pages: list[tuple[int, int]] = []
    try:
        for length in lengths:
            try:
                branch, begun = table.fork(length, num_tokens)
            except ResourceExhaustedError:
                break
            branches.append(branch)
            pages += begun
        copy(pages)
    except BaseException:
        for branch in branches:
            branch.free()
        raise
    return branches
