"""The queue for KV pages: in order, for a bounded time, and with numbers in every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidArgumentError, ResourceExhaustedError
from paceline.runtime.admission import AdmissionQueue
from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable


def queue_over(pool: PagePool, *, waits_s: float = 5.0, sessions: int = 10) -> AdmissionQueue[str]:
    return AdmissionQueue(pool, max_waiting_s=waits_s, max_waiting_sessions=sessions)


def test_a_session_that_fits_is_admitted_at_once() -> None:
    pool = PagePool(4, 4)
    queue = queue_over(pool, sessions=0)
    queue.enter("a", 16, now=0.0)
    ((key, table),) = queue.admit()
    assert (key, len(queue), pool.available_pages) == ("a", 0, 0)
    table.grow(16)
    assert queue.next_expiry() is None


def test_whoever_came_first_is_admitted_first() -> None:
    """A small session behind a large one waits too: else the large one might wait for ever."""
    pool = PagePool(4, 4)
    queue = queue_over(pool)
    queue.enter("a", 8, now=0.0)
    ((_, table),) = queue.admit()
    queue.enter("large", 12, now=0.0)
    queue.enter("small", 4, now=0.0)
    assert queue.admit() == []
    table.free()
    assert [key for key, _ in queue.admit()] == ["large", "small"]


def test_leaving_lets_the_next_one_in() -> None:
    pool = PagePool(4, 4)
    queue = queue_over(pool)
    queue.enter("a", 8, now=0.0)
    queue.admit()
    queue.enter("large", 12, now=0.0)
    queue.enter("small", 4, now=0.0)
    queue.leave("large")
    queue.leave("nobody")
    assert [key for key, _ in queue.admit()] == ["small"]


def test_waiting_ends_after_its_time_with_the_numbers() -> None:
    pool = PagePool(4, 4)
    queue = queue_over(pool, waits_s=2.5)
    queue.enter("a", 8, now=0.0)
    queue.admit()
    queue.enter("b", 12, now=1.0)
    queue.enter("c", 4, now=2.0)
    assert queue.next_expiry() == 3.5
    assert queue.expire(3.49) == []
    ((key, error),) = queue.expire(3.5)
    assert (key, error.code) == ("b", "RESOURCE_EXHAUSTED")
    assert str(error) == "no room in the KV pool after 2.5 s: 3 pages needed, 2 of 4 free"
    assert queue.next_expiry() == 4.5
    assert [key for key, _ in queue.admit()] == ["c"]


def test_what_can_never_fit_is_refused_at_once() -> None:
    queue = queue_over(PagePool(4, 4))
    with pytest.raises(InvalidArgumentError, match="need 5 KV pages of 4 tokens, the pool has 4"):
        queue.enter("a", 17, now=0.0)
    assert len(queue) == 0


def test_a_full_queue_refuses_whom_it_would_let_wait() -> None:
    queue = queue_over(PagePool(4, 4), sessions=2)
    queue.enter("a", 16, now=0.0)
    queue.admit()
    queue.enter("b", 4, now=0.0)
    queue.enter("c", 4, now=0.0)
    with pytest.raises(ResourceExhaustedError, match=r"2 sessions already wait .* the limit is 2"):
        queue.enter("d", 4, now=0.0)
    assert len(queue) == 2


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_order_and_pages_hold_under_any_use(data: st.DataObject) -> None:
    """Admissions come in the order of arrival, and every page is accounted for."""
    pool = PagePool(6, 4)
    queue: AdmissionQueue[int] = AdmissionQueue(pool, max_waiting_s=3, max_waiting_sessions=4)
    waiting: list[int] = []
    tables: dict[int, PageTable] = {}
    for now in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["enter", "leave", "free", "expire"]))
        if action == "enter":
            try:
                queue.enter(now, data.draw(st.integers(1, 24)), float(now))
                waiting.append(now)
            except ResourceExhaustedError:
                assert len(waiting) == 4
        elif action == "leave" and waiting:
            key = data.draw(st.sampled_from(waiting))
            queue.leave(key)
            waiting.remove(key)
        elif action == "free" and tables:
            tables.pop(data.draw(st.sampled_from(sorted(tables)))).free()
        elif action == "expire":
            expired = [key for key, _ in queue.expire(float(now))]
            assert expired == [key for key in waiting if key + 3 <= now]
            waiting = [key for key in waiting if key not in expired]
        admitted = queue.admit()
        assert [key for key, _ in admitted] == waiting[: len(admitted)]
        del waiting[: len(admitted)]
        for key, table in admitted:
            tables[key] = table
            table.grow(data.draw(st.integers(0, 1)))
        assert len(queue) == len(waiting)
        assert queue.next_expiry() == (min(waiting) + 3 if waiting else None)
        pool.check_integrity()
    for table in tables.values():
        table.free()
    assert pool.available_pages == 6
