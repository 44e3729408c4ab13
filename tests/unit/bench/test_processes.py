"""Nothing that a benchmark started outlives it, however it ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paceline.bench import guardian, processes
from paceline.bench.processes import ProcessGroup, all_or_none, peak_of, serving
from paceline.errors import ConfigError, PacelineError, StartupError

SUPPORT = Path(__file__).parents[2] / "support"
PATIENCE_S = 60.0


def gone(pids: list[int]) -> bool:
    """Whether all of these end within `PATIENCE_S`."""
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, left = psutil.wait_procs(alive, timeout=PATIENCE_S)
    return not left


@pytest.mark.parametrize(
    ("number", "codes"),
    [
        (signal.SIGINT, {130}),
        (signal.SIGTERM, {143}),
        (signal.SIGKILL, {-signal.SIGKILL}),
    ],
)
def test_no_process_outlives_a_benchmark(number: signal.Signals, codes: set[int]) -> None:
    """Ctrl-C, SIGTERM and SIGKILL; one of the processes does not heed SIGTERM."""
    bench = subprocess.Popen(
        [sys.executable, str(SUPPORT / "guarded_sleepers.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert bench.stdout is not None
    *numbers, folder = bench.stdout.readline().split()
    pids = [int(pid) for pid in numbers]
    assert Path(folder).is_dir()
    assert len(pids) == 3
    assert all(psutil.pid_exists(pid) for pid in pids)
    bench.send_signal(number)
    assert bench.wait(PATIENCE_S) in codes
    bench.stdout.close()
    assert gone(pids)
    assert not Path(folder).exists()


def test_a_guardian_watches_those_that_have_not_ended() -> None:
    assert guardian.watched(["+12\n", "+13\n", "-12\n", "+14\n"]) == {13, 14}
    guardian.end_all(set())


async def test_a_process_that_fails_says_why() -> None:
    async with ProcessGroup() as group:
        code = "import sys; sys.exit('paceline: error: model.path: x does not exist')"
        process = await group.start("verifier", ("-c", code))
        with pytest.raises(StartupError) as caught:
            await process.wait_address()
    assert str(caught.value) == "verifier did not start: model.path: x does not exist"


async def test_a_wrong_document_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"verifier\.mode: unknown key"):
        async with serving({"verifier": {"mode": 1}}):
            pass


async def test_when_one_start_fails_the_others_end_first() -> None:
    ended = asyncio.Event()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise PacelineError("no")

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(PacelineError, match="no"):
        await all_or_none(goes_on(), fails())
    assert ended.is_set()


async def test_peak_memory_is_that_of_the_process() -> None:
    async with ProcessGroup() as group:
        code = (
            "import sys, time; b = b'x' * 64_000_000; del b; "
            "sys.stderr.write('x listening on here\\n'); sys.stderr.flush(); time.sleep(600)"
        )
        process = await group.start("x", ("-c", code))
        assert await process.wait_address() == "here"
        peak = peak_of(process.pid)
    assert peak is not None
    assert 64e6 < peak < 300e6
    assert peak_of(process.pid) is None
    assert processes.peak_of(2**22 + 1) is None
