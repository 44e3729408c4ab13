"""A service's `__main__`: one line when it listens, one line when it cannot, clean exits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import paceline.rpc.main
from paceline.config import Config
from paceline.errors import StartupError

HERE = Path(__file__).parent
TIMEOUT_S = 60


@contextmanager
def service(mode: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "service_script.py"), mode, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[2]}"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().rstrip("\n")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_service_with_code_zero(number: signal.Signals) -> None:
    with service("good", "--listen", "127.0.0.1:0") as process:
        line = first_line(process)
        prefix = "drafter listening on 127.0.0.1:"
        assert line.startswith(prefix)
        socket.create_connection(("127.0.0.1", int(line.removeprefix(prefix))), 5).close()
        process.send_signal(number)
        code, errors = finish(process)
    assert code == 0
    assert "stopping with 10 s" in errors
    assert "Traceback" not in errors


def test_a_second_signal_ends_it_at_once() -> None:
    with service("stuck", "--listen", "127.0.0.1:0") as process:
        first_line(process)
        process.send_signal(signal.SIGTERM)
        assert first_line(process) == "stopping with 10 s"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGINT


def test_a_signal_during_a_slow_start_ends_it() -> None:
    with service("slow-start") as process:
        assert first_line(process) == "starting"
        process.send_signal(signal.SIGTERM)
        assert finish(process)[0] == 0


def test_a_startup_error_is_one_line_and_code_two() -> None:
    with service("startup-error") as process:
        code, errors = finish(process)
    assert code == 2
    assert errors == "paceline: error: cannot load the model: no such directory\n"


def test_a_port_in_use_is_one_line_and_code_two() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with service("good", "--listen", address) as process:
            code, errors = finish(process)
    assert code == 2
    assert errors == f"paceline: error: listen: {address} is already in use\n"


def test_a_service_that_ends_by_itself_exits_with_one_and_says_why() -> None:
    with service("dies", "--listen", "127.0.0.1:0") as process:
        code, errors = finish(process)
    assert code == 1
    assert "the service ended by itself" in errors
    assert "ZeroDivisionError: the engine died" in errors
    assert "stopping with 0 s" in errors


def test_configuration_comes_from_the_file_and_its_errors_name_the_key(tmp_path: Path) -> None:
    path = tmp_path / "paceline.yaml"
    path.write_text("drafter: {listen: '127.0.0.1:0'}\n")
    with service("good", "-c", str(path)) as process:
        assert first_line(process).startswith("drafter listening on 127.0.0.1:")
    path.write_text("drafter: {lisen: '127.0.0.1:0'}\n")
    with service("good", "-c", str(path)) as process:
        code, errors = finish(process)
    assert code == 2
    assert errors == f"paceline: error: {path}: drafter.lisen: unknown key\n"
    with service("good", "--listen", "nonsense") as process:
        code, errors = finish(process)
    assert code == 2
    assert errors.startswith("paceline: error: --listen: drafter.listen: ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], ("warning", "json")), (["--log-level", "debug"], ("debug", "json"))],
)
def test_logs_are_as_configured_and_the_flag_wins(
    arguments: list[str],
    expected: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never_starts(_config: Config) -> Any:
        raise StartupError("enough")

    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(paceline.rpc.main, "setup_logging", lambda *given: asked.append(given))
    path = tmp_path / "paceline.yaml"
    path.write_text("telemetry: {logs: {level: warning, format: json}}\n")
    assert (
        paceline.rpc.main.run_service("drafter", never_starts, ["-c", str(path), *arguments]) == 2
    )
    assert asked == [expected]
