"""The one thread of a worker that owns its model: it alone touches sessions, KV pages and tensors.

The event loop posts events and receives replies; it never computes.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeAlias, TypeVar

from paceline.device_clock import wait_for_device
from paceline.errors import PacelineError
from paceline.types import SessionId

logger = logging.getLogger(__name__)

LinkId: TypeAlias = int
SessionKey: TypeAlias = tuple[LinkId, SessionId]

E = TypeVar("E")
R = TypeVar("R")
E_contra = TypeVar("E_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class DeviceLostError(Exception):
    """Nothing can be computed any more; only another process may.

    An engine raises it from `step`, and its thread ends.
    """


class FailureCount:
    """Tells a device that is gone for good from a session that cannot be computed.

    A GPU that has met an illegal access fails every pass from then on, while the process looks
    healthy, has the least load of all and is given every session.
    """

    LIMIT = 32
    """A request that cannot be computed is offered four times; this is eight of those."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def succeeded(self) -> None:
        """A pass was computed."""
        self._in_a_row = 0

    def failed(self, error: Exception) -> None:
        """A pass of one session failed. Raises `DeviceLostError` if so many did in a row."""
        self._in_a_row += 1
        if self._in_a_row >= self.LIMIT:
            raise DeviceLostError(f"{self._in_a_row} passes failed in a row") from error


class Engine(Protocol[E_contra, R_co]):
    """A worker's state machine; single-threaded and free of I/O, so tests drive it by hand."""

    def handle(self, link: LinkId, event: E_contra, now: float) -> Sequence[tuple[LinkId, R_co]]:
        """Take an event that arrived at `now`; return replies that need no pass.

        Never raises for bad input.
        """
        ...

    def close_link(self, link: LinkId) -> None:
        """Free all sessions of a link."""
        ...

    def step(self, now: float) -> Sequence[tuple[LinkId, R_co]]:
        """Schedule, run, judge: one pass over the sessions that are ready."""
        ...

    def next_step_at(self, now: float) -> float | None:
        """When `step` has something to do: `now` or earlier, a later time, or None."""
        ...

    def fail_all(self, error: Exception) -> Sequence[tuple[LinkId, R_co]]:
        """Answer every session with an error and free it, after a bug in `step`."""
        ...


class EngineLink(Generic[E]):
    """One link's handle on the engine. Safe to use from any thread."""

    def __init__(self, post: Callable[[Sequence[E]], None], close: Callable[[], None]) -> None:
        self._post = post
        self._close = close
        self._closed = False

    def post(self, events: Sequence[E]) -> None:
        """Hand events to the engine, in order."""
        if not self._closed:
            self._post(events)

    def close(self) -> None:
        """Free all of the link's sessions. Idempotent."""
        if not self._closed:
            self._closed = True
            self._close()


class EngineThread(Generic[E, R]):
    """Runs an engine: drain events, step, deliver replies, sleep until there is work."""

    def __init__(
        self, engine: Engine[E, R], *, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.busy_s = 0.0
        """Seconds spent in steps."""
        self.ended: Future[None] = Future()
        """Done when the thread has ended; with an error if it was not asked to."""
        self.ended.set_running_or_notify_cancel()
        self._engine = engine
        self._clock = clock
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._links: dict[LinkId, Callable[[Sequence[R]], None]] = {}
        self._link_ids = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the current step, free all sessions and end the thread. Idempotent."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def has_no_mail(self) -> bool:
        """Whether nobody waits for the step that is being computed to end."""
        return self._inbox.empty()

    def call(self, work: Callable[[], None]) -> Future[None]:
        """Run something on the thread, before or between steps."""
        done: Future[None] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                work()
            except Exception as error:  # handed on to the caller
                done.set_exception(error)
            else:
                done.set_result(None)

        self._inbox.put(run)
        return done

    def attach(self, deliver: Callable[[Sequence[R]], None]) -> EngineLink[E]:
        """Open a link; `deliver` gets its replies, on the engine thread."""
        link = next(self._link_ids)
        self._inbox.put(lambda: self._links.__setitem__(link, deliver))
        return EngineLink(
            post=lambda events: self._post(link, events),
            close=lambda: self._inbox.put(lambda: self._detach(link)),
        )

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            for link in list(self._links):  # its own end may come too late to be heard
                self._detach(link)
        except BaseException as error:
            logger.critical("the engine has ended", exc_info=True)
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def _turn(self) -> bool:
        """Drain, step, deliver; False when it is time to stop.

        A fault of ours, wherever it is, ends the sessions with an error and never the thread; only
        a device that is gone does.
        """
        try:
            if not self._drain_inbox():
                return False
            now = self._clock()
            due = self._engine.next_step_at(now)
            if due is not None and due <= now:
                self._deliver(self._step(now))
        except DeviceLostError as error:
            self._deliver(self._engine.fail_all(error))
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            logger.exception("the engine failed; its sessions are answered with an error")
            fault = error if isinstance(error, Exception) else PacelineError(repr(error))
            self._deliver(self._engine.fail_all(fault))
        return True

    def _drain_inbox(self) -> bool:
        """Run what was posted, waiting until there is work. False when it is time to stop."""
        timeout = self._time_to_next_step()
        try:
            command = self._inbox.get(timeout=timeout) if timeout != 0 else self._inbox.get_nowait()
            while command is not None:
                command()
                wait_for_device()  # for a pass that no step reads from
                command = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False

    def _time_to_next_step(self) -> float | None:
        now = self._clock()
        due = self._engine.next_step_at(now)
        return None if due is None else min(max(0.0, due - now), threading.TIMEOUT_MAX)

    def _step(self, now: float) -> Sequence[tuple[LinkId, R]]:
        try:
            replies = self._engine.step(now)
            wait_for_device()  # for a pass of which nothing was read
            return replies
        finally:
            self.busy_s += self._clock() - now

    def _post(self, link: LinkId, events: Sequence[E]) -> None:
        arrived = self._clock()  # while a pass runs, events wait: that time counts as queueing
        self._inbox.put(lambda: self._handle(link, events, arrived))

    def _handle(self, link: LinkId, events: Sequence[E], arrived: float) -> None:
        if link in self._links:
            for event in events:
                self._deliver(self._engine.handle(link, event, arrived))

    def _detach(self, link: LinkId) -> None:
        self._links.pop(link, None)
        self._engine.close_link(link)

    def _deliver(self, replies: Sequence[tuple[LinkId, R]]) -> None:
        by_link: dict[LinkId, list[R]] = {}
        for link, reply in replies:
            by_link.setdefault(link, []).append(reply)
        for link, batch in by_link.items():
            deliver = self._links.get(link)
            if deliver is not None:
                deliver(batch)
