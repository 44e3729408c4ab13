"""`paceline bench`: what is wrong is said in one line, before anything is started."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paceline.bench.report import Chart, Report, Series, Table
from paceline.cli import bench_options
from paceline.cli.app import app

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("bench", *arguments))


@pytest.mark.parametrize("command", ["latency", "sweep", "load", "compare"])
def test_help_has_examples_and_the_reports(command: str) -> None:
    text = ANSI.sub("", bench(command, "--help").output)
    assert f"paceline bench {command}" in text
    assert "Examples:" in text
    for option in ("--json", "--markdown", "--plots"):
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["latency", "--prompts", "none.jsonl"], "cannot read prompts none.jsonl: No such file"),
        (["compare", "--prompts", "none.jsonl"], "cannot read prompts none.jsonl: No such file"),
        (["load", "--prompts", "none.jsonl"], "cannot read prompts none.jsonl: No such file"),
        (["load", "--config", "none.yaml"], "cannot read configuration none.yaml: No such file"),
        (["load", "--rate", "1,x"], "--rate 1,x: could not convert"),
        (["load", "--rate", "0"], "--rate 0: every number must be above 0"),
        (["load", "--clients", "2.5"], "--clients 2.5: invalid literal"),
        (["load", "--address", "a:1", "-c", "x"], "only one may be given"),
        (["sweep", "--alpha", "0.5,1.5"], "--alpha 0.5,1.5: 1.5 is not from 0.0 to 1"),
        (["sweep", "--quick", "--gamma", "0"], "--gamma 0: 0 is not from 1 to 32"),
        (["sweep", "--quick", "--full"], "only one may be given"),
        (["sweep", "--quick", "--rtt-ms", "5"], "only one may be given"),
        (["sweep", "--alpha", "0.5", "--part", "recover"], "--alpha: is of the grid, and --part"),
        (
            ["load", "--timeout", "5"],
            "--timeout: is for a running orchestrator",
        ),
        (["load", "--clients", "128"], "--clients 128: some would have none of --requests 64"),
        (["sweep", "--alpha", "0.6,0.01"], "--alpha 0.6,0.01: 0.01 is neither 0, 1 nor from 0.03"),
        (["sweep", "--part", "recover", "--gamma", "3"], "--gamma: is of the grid, and --part"),
        (["latency", "--draft-model", "x"], "--draft-model: needs --drafter model"),
        (["latency", "--draft-quantization", "nf4"], "--draft-quantization: needs --drafter"),
        (["latency", "--json", "/dev/null/x.json"], "--json /dev/null/x.json: cannot make /dev/nu"),
        (["sweep", "--markdown", "/"], "--markdown /: cannot be written"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], problem: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("paceline: error: ")
    assert problem in line


def test_a_load_on_a_port_where_nothing_listens_is_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = bench("load", "--address", f"127.0.0.1:{unused.getsockname()[1]}")
    assert result.exit_code == 1
    assert result.stderr.startswith("paceline: error: UNAVAILABLE: ")
    assert len(result.stderr.splitlines()) == 1


def test_an_unknown_part_or_quantization_is_wrong_usage() -> None:
    for arguments in (["sweep", "--part", "x"], ["latency", "--quantization", "int3"]):
        result = bench(*arguments)
        assert result.exit_code == 2
        assert arguments[-1] in ANSI.sub("", result.stderr)


def test_a_report_is_printed_and_written_to_every_file_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"suite": "a", "system": "b", "tokens_per_s": 2.0}
    report = Report(
        "compare",
        bench_options.machine(),
        {},
        [row],
        {},
        [Table("Systems", [("system", "system", "")], [row])],
        [Chart("one", "One", "x (s)", "y (ms)", [Series("a", [1.0], [2.0])])],
    )
    paths = [tmp_path / "new" / name for name in ("r.json", "r.md", "plots")]
    bench_options.give(report, *paths)
    assert json.loads(paths[0].read_text())["results"] == [row]
    assert paths[1].read_text() == capsys.readouterr().out == report.as_markdown()
    assert sorted(path.name for path in paths[2].iterdir()) == ["one.png", "one.svg"]
