"""The engine's thread: order, batches, timing, faults and the end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from paceline.device_clock import launched
from paceline.runtime.engine_thread import (
    DeviceLostError,
    EngineThread,
    FailureCount,
    LinkId,
)

PATIENCE_S = 10.0
"""How long a test waits for another thread before it fails; never slept through."""


class FakeEngine:
    """Records what it is given; steps when a test has asked for it."""

    def __init__(self) -> None:
        self.events: list[tuple[LinkId, Any]] = []
        self.closed: list[LinkId] = []
        self.threads: set[int] = set()
        self.due: float | None = None
        self.num_asked = 0
        self.stepped_at: list[float] = []
        self.replies: list[tuple[LinkId, Any]] = []
        self.answers: dict[Any, list[tuple[LinkId, Any]]] = {}
        self.fault: Exception | None = None

    def handle(self, link: LinkId, event: Any, now: float) -> Sequence[tuple[LinkId, Any]]:
        self.threads.add(threading.get_ident())
        self.events.append((link, event))
        if callable(event):
            event()
        return self.answers.get(event, [])

    def close_link(self, link: LinkId) -> None:
        self.closed.append(link)

    def step(self, now: float) -> Sequence[tuple[LinkId, Any]]:
        self.threads.add(threading.get_ident())
        self.stepped_at.append(now)
        self.due = None
        if self.fault is not None:
            raise self.fault
        return self.replies

    def next_step_at(self, now: float) -> float | None:
        self.num_asked += 1
        return self.due

    def fail_all(self, error: Exception) -> Sequence[tuple[LinkId, Any]]:
        return [(link, f"failed: {error}") for link in sorted({link for link, _ in self.events})]


class Bench:
    """A running thread over a fake engine."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.thread: EngineThread[Any, Any] = EngineThread(self.engine, name="test-engine")

    def attach(self) -> tuple[Any, queue.SimpleQueue[list[Any]]]:
        delivered: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        return self.thread.attach(lambda replies: delivered.put(list(replies))), delivered

    def settle(self) -> None:
        """Wait until everything posted so far has been handled."""
        done = threading.Event()
        self.thread.attach(lambda replies: None).post([done.set])
        assert done.wait(PATIENCE_S)

    def step(self, replies: list[tuple[LinkId, Any]]) -> Callable[[], None]:
        """An event that makes the engine step at once and answer with `replies`."""

        def arrange() -> None:
            self.engine.due, self.engine.replies = 0.0, replies

        return arrange


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.thread.start()
    yield bench
    bench.thread.stop()


def test_events_of_a_link_are_handled_in_order_on_one_thread(bench: Bench) -> None:
    links = [bench.attach()[0] for _ in range(3)]

    def post(link: Any) -> None:
        for start in range(0, 60, 3):
            link.post([start, start + 1, start + 2])

    posting = [threading.Thread(target=post, args=(link,)) for link in links]
    for thread in posting:
        thread.start()
    for thread in posting:
        thread.join()
    bench.settle()
    for link_id in (1, 2, 3):
        assert [event for link, event in bench.engine.events if link == link_id] == list(range(60))
    assert bench.engine.threads.isdisjoint({threading.get_ident()})
    assert len(bench.engine.threads) == 1


def test_work_is_done_on_the_thread_and_its_error_is_the_callers(bench: Bench) -> None:
    threads: list[int] = []
    bench.thread.call(lambda: threads.append(threading.get_ident())).result(PATIENCE_S)
    bench.settle()
    link, _ = bench.attach()
    link.post([1])
    bench.settle()
    assert set(threads) == bench.engine.threads

    def fail() -> None:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        bench.thread.call(fail).result(PATIENCE_S)
    bench.settle()


def test_work_that_nobody_waits_for_any_more_is_not_done(bench: Bench) -> None:
    """A start that was cancelled is no fault of the engine."""
    begun, may_end = threading.Event(), threading.Event()
    bench.thread.call(lambda: begun.set() or may_end.wait(PATIENCE_S) or None)
    assert begun.wait(PATIENCE_S)
    done: list[int] = []
    assert bench.thread.call(lambda: done.append(1)).cancel()
    may_end.set()
    bench.settle()
    assert done == []


def test_a_step_is_delivered_as_one_batch_a_link(bench: Bench) -> None:
    """DESIGN 3: one ragged pass gives one message, however many sessions it served."""
    (first, to_first), (_, to_second) = bench.attach(), bench.attach()
    first.post([bench.step([(1, "a"), (2, "b"), (1, "c"), (2, "d"), (9, "nobody")])])
    assert to_first.get(timeout=PATIENCE_S) == ["a", "c"]
    assert to_second.get(timeout=PATIENCE_S) == ["b", "d"]
    bench.settle()
    assert to_first.empty()
    assert to_second.empty()


def test_a_reply_to_an_event_needs_no_step(bench: Bench) -> None:
    link, delivered = bench.attach()
    bench.engine.answers["bad"] = [(1, "error")]
    link.post(["good", "bad"])
    assert delivered.get(timeout=PATIENCE_S) == ["error"]
    assert bench.engine.stepped_at == []


def test_closing_a_link_frees_its_sessions_once_and_silences_it(bench: Bench) -> None:
    """G01: what was posted before is handled, what comes after goes nowhere."""
    (link, delivered), (other, to_other) = bench.attach(), bench.attach()
    link.post(["before"])
    link.close()
    link.close()
    link.post(["after"])
    other.post([bench.step([(1, "late"), (2, "heard")])])
    assert to_other.get(timeout=PATIENCE_S) == ["heard"]
    bench.settle()
    assert bench.engine.closed == [1]
    assert [event for link_id, event in bench.engine.events if link_id == 1] == ["before"]
    assert delivered.empty()


def test_a_step_that_raises_answers_all_sessions_and_the_thread_lives(bench: Bench) -> None:
    link, delivered = bench.attach()
    bench.engine.fault = RuntimeError("a bug of ours")
    link.post([bench.step([])])
    assert delivered.get(timeout=PATIENCE_S) == ["failed: a bug of ours"]
    bench.engine.fault = None
    link.post([bench.step([(1, "alive")])])
    assert delivered.get(timeout=PATIENCE_S) == ["alive"]


@pytest.mark.parametrize("method", ["handle", "close_link", "next_step_at"])
def test_a_fault_anywhere_in_the_engine_leaves_no_dead_thread(bench: Bench, method: str) -> None:
    """H01: a worker whose thread is gone would look healthy, and its callers wait for ever."""
    link, delivered = bench.attach()
    link.post(["known"])
    bench.settle()
    plain = getattr(bench.engine, method)
    faults = iter([True])

    def fails_once(*arguments: Any) -> Any:
        if next(faults, False):
            raise RuntimeError("a bug of ours")
        return plain(*arguments)

    setattr(bench.engine, method, fails_once)
    other, _ = bench.attach()
    other.post(["event"])
    other.close()
    assert delivered.get(timeout=PATIENCE_S) == ["failed: a bug of ours"]
    link.post([bench.step([(1, "alive")])])
    assert delivered.get(timeout=PATIENCE_S) == ["alive"]


class Panic(BaseException):  # as libraries in Rust raise it
    pass


def test_a_panic_of_a_library_answers_all_sessions_and_the_thread_lives(bench: Bench) -> None:
    """H01: it is no Exception."""
    link, delivered = bench.attach()
    bench.engine.fault = Panic("index out of range")
    link.post([bench.step([])])
    assert delivered.get(timeout=PATIENCE_S) == ["failed: Panic('index out of range')"]
    bench.engine.fault = None
    link.post([bench.step([(1, "alive")])])
    assert delivered.get(timeout=PATIENCE_S) == ["alive"]
    assert not bench.thread.ended.done()


def test_who_waits_for_the_thread_hears_when_not_even_a_failure_could_be_told(
    bench: Bench,
) -> None:
    """H01: a worker whose thread is gone must not look healthy."""
    link, _ = bench.attach()
    bench.engine.fault = RuntimeError("a bug of ours")
    bench.engine.fail_all = None  # type: ignore[assignment,method-assign]
    link.post([bench.step([])])
    assert isinstance(bench.thread.ended.exception(PATIENCE_S), TypeError)


def test_a_device_that_is_gone_ends_the_thread_and_its_sessions_hear_so(bench: Bench) -> None:
    link, delivered = bench.attach()
    bench.engine.fault = DeviceLostError("8 passes failed in a row")
    link.post([bench.step([])])
    assert delivered.get(timeout=PATIENCE_S) == ["failed: 8 passes failed in a row"]
    assert isinstance(bench.thread.ended.exception(PATIENCE_S), DeviceLostError)


def test_failures_count_in_a_row_only() -> None:
    failures, fault = FailureCount(), RuntimeError("an illegal memory access")
    for _ in range(3):
        for _ in range(FailureCount.LIMIT - 1):
            failures.failed(fault)
        failures.succeeded()
    for _ in range(FailureCount.LIMIT - 1):
        failures.failed(fault)
    with pytest.raises(DeviceLostError, match=r"\d+ passes failed in a row"):
        failures.failed(fault)


def test_a_stop_is_a_regular_end(bench: Bench) -> None:
    bench.thread.stop()
    assert bench.thread.ended.result(PATIENCE_S) is None


def test_stopping_joins_the_thread_after_what_was_posted(bench: Bench) -> None:
    link, _ = bench.attach()
    link.post([1, 2])
    bench.thread.stop()
    assert [event for _, event in bench.engine.events] == [1, 2]
    assert not bench.thread._thread.is_alive()
    bench.thread.stop()
    link.post([3])
    link.close()


def test_stopping_waits_for_the_step_under_way(bench: Bench) -> None:
    link, delivered = bench.attach()
    stepping, may_end = threading.Event(), threading.Event()
    plain = bench.engine.step

    def step(now: float) -> Sequence[tuple[LinkId, Any]]:
        stepping.set()
        assert may_end.wait(PATIENCE_S)
        return plain(now)

    bench.engine.step = step  # type: ignore[method-assign]
    link.post([bench.step([(1, "done")])])
    assert stepping.wait(PATIENCE_S)
    stopping = threading.Thread(target=bench.thread.stop)
    stopping.start()
    may_end.set()
    stopping.join(PATIENCE_S)
    assert delivered.get(timeout=PATIENCE_S) == ["done"]


def test_a_step_can_see_whether_anyone_waits_for_its_end(bench: Bench) -> None:
    link, delivered = bench.attach()
    seen: list[bool] = []
    plain = bench.engine.step

    def step(now: float) -> Sequence[tuple[LinkId, Any]]:
        seen.append(bench.thread.has_no_mail())
        link.post(["another"])
        seen.append(bench.thread.has_no_mail())
        return plain(now)

    bench.engine.step = step  # type: ignore[method-assign]
    link.post([bench.step([(1, "done")])])
    assert delivered.get(timeout=PATIENCE_S) == ["done"]
    assert seen == [True, False]


def test_replies_leave_when_the_device_has_computed_them(bench: Bench) -> None:
    link, delivered = bench.attach()
    waited: list[int] = []
    plain = bench.engine.step

    def step(now: float) -> Sequence[tuple[LinkId, Any]]:
        launched(lambda: waited.append(delivered.qsize()))
        return plain(now)

    bench.engine.step = step  # type: ignore[method-assign]
    link.post([bench.step([(1, "done")])])
    assert delivered.get(timeout=PATIENCE_S) == ["done"]
    assert waited == [0]


def test_stopping_frees_the_sessions_of_links_that_are_still_open(bench: Bench) -> None:
    bench.thread.attach(lambda replies: None)
    bench.thread.attach(lambda replies: None).close()
    bench.thread.stop()
    assert sorted(bench.engine.closed) == [1, 2]


def test_a_thread_that_never_started_can_be_stopped() -> None:
    Bench().thread.stop()


# --- timing, on a clock of the test's own ---------------------------------------------------------


class FakeInbox:
    """Stands where the thread's queue stands: waiting moves the clock instead of taking time."""

    def __init__(self, bench: TimedBench) -> None:
        self.bench = bench
        self.waits: list[float | None] = []
        self.arrivals: list[tuple[float, Callable[[], None]]] = []

    def get(self, timeout: float | None = None) -> Callable[[], None] | None:
        self.waits.append(timeout)
        ends = float("inf") if timeout is None else self.bench.now + timeout
        if self.arrivals and self.arrivals[0][0] <= ends:
            at, command = self.arrivals.pop(0)
            self.bench.now = max(self.bench.now, at)
            return command
        if timeout is None:
            return None  # nothing will ever come: stop
        self.bench.now = ends
        raise queue.Empty

    def get_nowait(self) -> Callable[[], None] | None:
        if self.arrivals and self.arrivals[0][0] <= self.bench.now:
            return self.arrivals.pop(0)[1]
        raise queue.Empty


class TimedBench:
    """A thread's loop, run by the test itself."""

    def __init__(self) -> None:
        self.now = 100.0
        self.engine = FakeEngine()
        self.thread: EngineThread[Any, Any] = EngineThread(
            self.engine, name="t", clock=lambda: self.now
        )
        self.inbox = FakeInbox(self)
        self.thread._inbox = self.inbox  # type: ignore[assignment]

    def at(self, when: float, command: Callable[[], None]) -> None:
        self.inbox.arrivals.append((when, command))

    def due(self, when: float) -> Callable[[], None]:
        def arrange() -> None:
            self.engine.due = when

        return arrange


def test_an_idle_thread_waits_without_waking() -> None:
    bench = TimedBench()
    bench.thread._run()
    assert bench.inbox.waits == [None]
    assert bench.engine.stepped_at == []


def test_a_step_that_is_due_later_is_waited_for_once() -> None:
    bench = TimedBench()
    bench.at(101.0, bench.due(103.5))
    bench.thread._run()
    assert bench.engine.stepped_at == [103.5]
    assert bench.inbox.waits == [None, 2.5, None]
    assert bench.engine.num_asked <= 6, "no busy loop"


def test_a_step_that_is_due_in_ages_is_waited_for_as_long_as_can_be() -> None:
    """A queue cannot wait for more seconds than that: it would raise, and all sessions end."""
    bench = TimedBench()
    bench.at(101.0, bench.due(1e30))
    bench.at(102.0, bench.due(103.0))
    bench.thread._run()
    assert bench.inbox.waits[1] == threading.TIMEOUT_MAX
    assert bench.engine.stepped_at == [103.0]


def test_an_event_in_the_meantime_is_handled_at_once() -> None:
    bench = TimedBench()
    heard: list[float] = []
    bench.at(101.0, bench.due(105.0))
    bench.at(102.0, lambda: heard.append(bench.now))
    bench.thread._run()
    assert heard == [102.0]
    assert bench.engine.stepped_at == [105.0]
    assert bench.inbox.waits == [None, 4.0, 3.0, None]


def test_a_step_that_is_due_runs_after_the_events_that_are_there() -> None:
    """Blocks that have arrived join the pass that is about to run."""
    bench = TimedBench()
    order: list[str] = []
    plain = bench.engine.step

    def step(now: float) -> Sequence[tuple[LinkId, Any]]:
        order.append("step")
        return plain(now)

    bench.engine.step = step  # type: ignore[method-assign]
    bench.at(101.0, bench.due(0.0))
    bench.at(101.0, lambda: order.append("event"))
    bench.thread._run()
    assert order == ["event", "step"]


def test_the_time_spent_in_steps_is_counted() -> None:
    bench = TimedBench()
    plain = bench.engine.step

    def step(now: float) -> Sequence[tuple[LinkId, Any]]:
        bench.now += 0.25
        return plain(now)

    bench.engine.step = step  # type: ignore[method-assign]
    bench.at(101.0, bench.due(101.0))
    bench.at(102.0, bench.due(102.0))
    bench.thread._run()
    assert bench.thread.busy_s == 0.5
