"""`paceline top`: rates from two answers, frames against a scripted orchestrator."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from rich.console import Console
from support.pipeline import worker_info
from support.scripted_orchestrator import ScriptedOrchestrator, serving
from typer.testing import CliRunner, Result

from paceline.cli.app import app
from paceline.cli.top import frame
from paceline.cli.top_figures import figures
from paceline.client_values import ServiceStatus
from paceline.generation import SessionStatus, WorkerStatus
from protos import common_pb2, orchestrator_pb2

TIMEOUT_S = 60
COMMAND = [sys.executable, "-c", "from paceline.cli import main; main()"]


def worker(role: str, address: str = "h:1", *, connected: bool = True, **counters: int) -> Any:
    info = replace(
        worker_info(role, 5),
        kv_pages_total=8,
        kv_pages_used=3,
        live_sessions=2,
        waiting_sessions=1,
        counters=counters,
    )
    return WorkerStatus(role, address, connected, "" if connected else "gone", info)


def status(*workers: WorkerStatus, sessions: Any = (), **counters: int) -> ServiceStatus:
    return ServiceStatus("target", 512, 2, workers, counters, tuple(sessions))


def test_rates_are_differences_by_each_process_own_clock() -> None:
    before = status(
        worker("verifier", uptime_us=10**6, passes=5, busy_us=0, draft_tokens=4, accepted_tokens=4),
        worker("drafter", uptime_us=0, steps=0, busy_us=10),
        uptime_us=2 * 10**6,
        completion_tokens=100,
        requests=1,
        windows=10,
        window_tokens=100,
    )
    after = status(
        worker(
            "verifier",
            uptime_us=3 * 10**6,
            passes=25,
            busy_us=500_000,
            draft_tokens=14,
            accepted_tokens=9,
        ),
        worker("drafter", uptime_us=4 * 10**6, steps=8, busy_us=10 + 4 * 10**6),
        uptime_us=4 * 10**6,
        completion_tokens=160,
        requests=2,
        windows=20,
        window_tokens=160,
    )
    shown = figures(before, after)
    assert (shown.tokens_per_s, shown.requests_per_s) == (30, 0.5)
    assert (shown.acceptance_rate, shown.window) == (0.5, 6)
    verifier, drafter = shown.workers
    assert (verifier.passes_per_s, verifier.busy) == (10, 0.25)
    assert (drafter.passes_per_s, drafter.busy) == (2, 1.0)
    assert (shown.live_sessions, shown.waiting_sessions) == (2, 2)


def test_acceptance_is_that_of_all_verifiers_together() -> None:
    before = status(*(worker("verifier", a, uptime_us=1) for a in ("a:1", "b:1")), uptime_us=1)
    after = status(
        worker("verifier", "b:1", uptime_us=2, draft_tokens=30, accepted_tokens=10),
        worker("verifier", "a:1", uptime_us=2, draft_tokens=10, accepted_tokens=10),
        uptime_us=2,
    )
    assert figures(before, after).acceptance_rate == 0.5


@pytest.mark.parametrize("before_us", [5, 9])
def test_a_process_that_was_restarted_or_did_not_answer_has_no_rates(before_us: int) -> None:
    before = status(worker("verifier", uptime_us=before_us, passes=100), uptime_us=before_us)
    after = status(worker("verifier", uptime_us=5, passes=1), uptime_us=5, completion_tokens=3)
    shown = figures(before, after)
    assert shown.tokens_per_s is None
    assert shown.workers[0].passes_per_s is None
    assert shown.workers[0].busy is None


def test_a_worker_that_is_new_has_no_rates_yet() -> None:
    after = status(worker("verifier", uptime_us=10**6, passes=9), uptime_us=2)
    assert figures(status(uptime_us=1), after).workers[0].passes_per_s is None


def test_nothing_drafted_is_no_acceptance_of_zero() -> None:
    shown = figures(status(uptime_us=1), status(uptime_us=2, completion_tokens=0))
    assert (shown.acceptance_rate, shown.window, shown.tokens_per_s) == (None, None, 0)


def text_of(shown: Any) -> str:
    console = Console(width=160, force_terminal=False)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def test_a_frame_shows_workers_and_sessions() -> None:
    session = SessionStatus("00ff", "ipv4:[x]", 1500, 11, 42, 30, 20, 15, 12)
    one = status(worker("verifier"), worker("drafter", "h:2", connected=False), sessions=[session])
    text = text_of(frame(figures(one, one), "h:50050", "it is\ngone"))
    assert "h:50050  target" in text
    assert "2 live, 2 waiting · – tokens/s" in text
    assert "no answer: it is" in text
    assert re.search(r"verifier +h:1 +connected +scripted +cpu +3/8 +2 live, 1 waiting", text)
    assert re.search(r"drafter +h:2 +gone ", text)
    assert re.search(r"00ff +ipv4:\[x\] +1\.5 s +11 +42 +75% +12", text)


def test_a_frame_lists_twenty_sessions_and_says_how_many_more_there_are() -> None:
    session = SessionStatus("00ff", "peer", 1, 1, 1, 0, 0, 0, 0)
    one = replace(status(sessions=[session] * 30), live_sessions=300)
    text = text_of(frame(figures(one, one), "h:1"))
    assert text.count("00ff") == 20
    assert "and 280 more" in text


# --- the command ----------------------------------------------------------------------------------


class CountingOrchestrator(ScriptedOrchestrator):
    """Each answer to `Status` is one second and 50 tokens later."""

    num_asked = 0

    def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.error is not None:
            context.abort(*self.error)
        self.num_asked += 1
        description = common_pb2.WorkerDescription(
            kind="verifier",
            model="big",
            device="cpu",
            kv_pages_total=8,
            kv_pages_used=3,
            counters={"uptime_us": self.num_asked * 10**6, "passes": self.num_asked * 7},
        )
        return orchestrator_pb2.StatusResponse(
            model="big",
            live_sessions=1,
            workers=[
                orchestrator_pb2.WorkerStatus(
                    role="verifier", address="h:1", connected=True, description=description
                )
            ],
            counters={
                "uptime_us": self.num_asked * 10**6,
                "completion_tokens": self.num_asked * 50,
            },
            sessions=[orchestrator_pb2.SessionStatus(session="00ff", completion_tokens=9)],
        )


@pytest.fixture
def server() -> Iterator[CountingOrchestrator]:
    with serving(CountingOrchestrator()) as orchestrator:
        assert isinstance(orchestrator, CountingOrchestrator)
        yield orchestrator


def top(address: str, *arguments: str) -> Result:
    command = ["top", "--interval", "0.1", "--address", address, *arguments]
    return CliRunner().invoke(app, command)


def test_once_as_json_is_exactly_one_object(server: CountingOrchestrator) -> None:
    result = top(server.address, "--once", "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert (value["tokens_per_s"], value["model"]) == (50, "big")
    assert value["workers"][0]["passes_per_s"] == 7
    assert value["workers"][0]["kv_pages_used"] == 3
    assert value["sessions"][0] == {
        "session": "00ff",
        "peer": "",
        "age_ms": 0,
        "prompt_tokens": 0,
        "completion_tokens": 9,
        "drafted": 0,
        "judged": 0,
        "accepted": 0,
        "window": 0,
    }
    assert server.num_asked == 2


def test_once_without_a_terminal_is_plain_text(server: CountingOrchestrator) -> None:
    result = top(server.address, "--once")
    assert result.exit_code == 0
    assert "50.0 tokens/s" in result.stdout
    assert "\x1b" not in result.stdout


def test_nothing_that_listens_is_one_line() -> None:
    for arguments in ([], ["--once"], ["--json"]):
        result = top("127.0.0.1:1", *arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("paceline: error: UNAVAILABLE: ")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("interval", ["0", "-1", "x"])
def test_an_interval_that_is_none_is_wrong_usage(interval: str) -> None:
    assert CliRunner().invoke(app, ["top", "--interval", interval]).exit_code == 2


def start(server: CountingOrchestrator, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "top", "--interval", "0.1", "--address", server.address, *arguments]
    return subprocess.Popen(command, **streams)


def test_the_live_view_refreshes_survives_a_lost_answer_and_ends_cleanly_on_ctrl_c(
    server: CountingOrchestrator,
) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    process = start(server, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    try:
        seen = read_until(ours, "tokens/s", "50.0 tokens/s", "00ff")
        assert "\x1b[?1049h" in seen, "no screen of its own"
        server.error = (grpc.StatusCode.UNAVAILABLE, "away for a moment")
        read_until(ours, "no answer", "away for a moment")
        server.error = None
        read_until(ours, "50.0 tokens/s")
        process.send_signal(signal.SIGINT)
        rest = read_until(ours, "\x1b[?1049l")  # the terminal is as it was
        assert "Traceback" not in rest
        assert process.wait(TIMEOUT_S) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def read_until(descriptor: int, *wanted: str) -> str:
    """What the terminal shows until all of `wanted` were there."""
    seen = ""
    deadline = time.monotonic() + TIMEOUT_S
    while not all(one in seen for one in wanted):
        ready, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
        assert ready, f"not shown: {wanted} in {seen!r}"
        seen += os.read(descriptor, 65536).decode(errors="replace")
    return seen


def test_without_a_terminal_frames_follow_each_other_until_ctrl_c(
    server: CountingOrchestrator,
) -> None:
    process = start(server, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        frames = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert [one["tokens_per_s"] for one in frames] == [None, 50, 50]
    assert process.returncode == 130
    assert errors == b""
