"""`paceline scale` without a cluster: what it asks for, and what it refuses."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.config import Config
from paceline.errors import PlacementError

Asked = list[tuple[Config, Mapping[str, int], float | None]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What a deployment was asked for; seven verifiers are too many for it."""
    wishes: Asked = []

    def scale(config: Config, wish: Mapping[str, int], *, timeout_s: float | None) -> str:
        wishes.append((config, wish, timeout_s))
        if wish.get("verifier", 0) > 6:
            raise PlacementError("Needed: verifier 6: GPU 1. Available: no node")
        return "started verifier 2"

    module: Any = types.ModuleType("orchestrator.cluster_main")
    module.scale = scale
    monkeypatch.setitem(sys.modules, "orchestrator.cluster_main", module)
    return wishes


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["scale", *arguments])


def test_one_role_is_scaled_where_the_options_say(asked: Asked) -> None:
    result = invoke("verifier", "3", "--ray-address", "10.0.0.1:6379", "--timeout", "9")
    assert (result.exit_code, result.stdout) == (0, "started verifier 2\n")
    ((config, wish, timeout_s),) = asked
    assert (config.cluster.ray_address, wish, timeout_s) == ("10.0.0.1:6379", {"verifier": 3}, 9)


def test_a_file_alone_asks_for_all_its_numbers(asked: Asked, tmp_path: Path) -> None:
    file = tmp_path / "paceline.yaml"
    file.write_text("cluster: {namespace: mine, drafter: {replicas: 4}}\n")
    assert invoke("-c", str(file)).exit_code == 0
    ((config, wish, _),) = asked
    assert config.cluster.namespace == "mine"
    assert wish == {"drafter": 4, "verifier": 1, "orchestrator": 1}


def test_a_refusal_is_one_line_and_code_1(asked: Asked) -> None:
    result = invoke("verifier", "7")
    assert result.exit_code == 1
    assert result.stderr == (
        "paceline: error: FAILED_PRECONDITION: Needed: verifier 6: GPU 1. Available: no node\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("drafter",),
        ("gpu", "3"),
        ("drafter", "many"),
        ("drafter", "65"),
        ("drafter", "3", "--timeout", "nan"),
    ],
)
def test_half_a_wish_is_wrong_usage(asked: Asked, arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2
    assert asked == []
