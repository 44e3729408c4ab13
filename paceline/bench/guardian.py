"""Ends a benchmark's processes when the benchmark itself is gone, however it went.

Runs as `python -m paceline.bench.guardian FOLDER` in a session of its own. Process ids come on
standard input, `+PID` to watch and `-PID` for one that has ended. At the end of input, which even
SIGKILL of the benchmark brings about, those that are left get SIGTERM, and SIGKILL if they do not
heed it; then the folder of their configuration goes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

GRACE_S = 5.0
"""From SIGTERM to SIGKILL."""
_POLL_S = 0.05


def watched(lines: Iterable[str]) -> set[int]:
    """The process ids that are left at the end of input."""
    pids: set[int] = set()
    for line in lines:
        sign, pid = line[0], int(line[1:])
        (pids.add if sign == "+" else pids.discard)(pid)
    return pids


def end_all(pids: set[int]) -> None:
    """SIGTERM to each, then SIGKILL to those that are still there after `GRACE_S`."""
    left = {pid for pid in pids if _signal(pid, signal.SIGTERM)}
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = {pid for pid in left if _signal(pid, 0)}
    for pid in left:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> bool:
    """Whether there was such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    # The benchmark decides when the end is; a terminal's Ctrl-C reaches it, not its guardian.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_all(watched(sys.stdin))
    shutil.rmtree(sys.argv[1], ignore_errors=True)
