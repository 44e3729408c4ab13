"""When the device has computed what was launched on it.

A real device computes while the host goes on, and makes it wait where it reads a result. An
emulated one is the same with a clock: it says here how to wait for its pass, and whoever reads a
result waits first. So what the host does between launching a pass and reading from it takes no time
of its own, on an emulated device as on a real one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class _Launched(threading.local):
    wait: Callable[[], None] | None = None
    ended_at: float = 0.0


_launched = _Launched()


def launched(wait: Callable[[], None]) -> None:
    """A pass has been launched by this thread; `wait` returns when it has been computed.

    One before it is waited for first.
    """
    wait_for_device()
    _launched.wait = wait


def wait_for_device() -> None:
    """Return when what this thread launched last has been computed. At once on a real device,
    which waits by itself where a result is read."""
    wait, _launched.wait = _launched.wait, None
    if wait is not None:
        wait()
        _launched.ended_at = time.perf_counter()


def device_ended_at() -> float:
    """When this thread last waited for a pass to end, by `time.perf_counter`; 0.0 if never."""
    return _launched.ended_at
