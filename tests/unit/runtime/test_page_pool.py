"""Pages are never lost, never held twice, and promises are kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.errors import InvalidArgumentError, ResourceExhaustedError
from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable


class PoolMachine(RuleBasedStateMachine):
    """Random opening, growth, truncation and freeing against a plain count."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(num_pages=12, page_size=3)
        self.tables: list[tuple[PageTable, int]] = []

    @rule(max_tokens=st.integers(1, 40))
    def open_table(self, max_tokens: int) -> None:
        room = 12 - sum(-(-limit // 3) for _, limit in self.tables)
        assert self.pool.available_pages == room
        if -(-max_tokens // 3) > room:
            with pytest.raises(ResourceExhaustedError):
                self.pool.open_table(max_tokens)
        else:
            self.tables.append((self.pool.open_table(max_tokens), max_tokens))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        table, limit = data.draw(st.sampled_from(self.tables))
        table.grow(data.draw(st.integers(0, limit - table.length)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        table, _ = data.draw(st.sampled_from(self.tables))
        length = data.draw(st.integers(0, table.length))
        slots = [table.slot(position) for position in range(length)]
        table.truncate(length)
        assert [table.slot(position) for position in range(length)] == slots

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, _ = self.tables.pop(index)
        table.free()
        table.free()
        assert (table.length, table.pages) == (0, [])

    @invariant()
    def no_page_is_lost_or_shared(self) -> None:
        self.pool.check_integrity()
        held = [page for table, _ in self.tables for page in table.pages]
        assert len(held) == len(set(held)) == self.pool.used_pages
        for table, _ in self.tables:
            assert len(table.pages) == self.pool.pages_for(table.length)

    @invariant()
    def no_two_tokens_share_a_slot(self) -> None:
        slots = [t.slot(position) for t, _ in self.tables for position in range(t.length)]
        assert len(slots) == len(set(slots))
        assert all(0 <= slot < 36 for slot in slots)

    def teardown(self) -> None:
        for table, _ in self.tables:
            table.free()
        assert (self.pool.used_pages, self.pool.available_pages) == (0, 12)


PoolMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, derandomize=True, deadline=None
)
test_any_history_of_tables_keeps_the_books = PoolMachine.TestCase


@settings(max_examples=50, derandomize=True, deadline=None)
@given(num_tokens=st.integers(0, 200), page_size=st.integers(1, 20))
def test_pages_for_is_the_smallest_number_that_holds_the_tokens(
    num_tokens: int, page_size: int
) -> None:
    pages = PagePool(1, page_size).pages_for(num_tokens)

    assert pages * page_size >= num_tokens > (pages - 1) * page_size or (num_tokens, pages) == (
        0,
        0,
    )


def test_growth_within_the_reservation_never_fails_however_full_the_pool_is() -> None:
    pool = PagePool(num_pages=4, page_size=2)
    first, second = pool.open_table(4), pool.open_table(4)
    with pytest.raises(ResourceExhaustedError, match="1 pages needed, 0 of 4 free"):
        pool.open_table(1)

    for _ in range(4):
        first.grow(1)
        second.grow(1)
        first.truncate(first.length - 1)
        first.grow(1)

    assert pool.used_pages == 4


def test_growth_past_the_reservation_is_a_bug_and_takes_no_page() -> None:
    pool = PagePool(num_pages=4, page_size=2)
    table = pool.open_table(2)

    with pytest.raises(AssertionError, match="reservation"):
        table.grow(3)

    assert (table.length, pool.used_pages) == (0, 0)


def test_a_freed_table_does_not_grow() -> None:
    table = PagePool(num_pages=4, page_size=2).open_table(2)
    table.free()

    with pytest.raises(AssertionError):
        table.grow(1)


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    """The message names both sides of the comparison."""
    pool = PagePool(num_pages=4, page_size=2)

    pool.check_possible(8)
    with pytest.raises(InvalidArgumentError, match="need 5 KV pages of 2 tokens, the pool has 4"):
        pool.check_possible(9)
