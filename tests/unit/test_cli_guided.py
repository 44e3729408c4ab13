"""`paceline generate --guided-…`: the schema from a file or as it stands, the rest as given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scripted_orchestrator import ScriptedOrchestrator, serving
from typer.testing import CliRunner, Result

from paceline.cli.app import app

SCHEMA = '{"type": "string", "title": "naïve"}'


@pytest.fixture
def server() -> Iterator[ScriptedOrchestrator]:
    with serving(ScriptedOrchestrator()) as orchestrator:
        yield orchestrator


def generate(server: ScriptedOrchestrator, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["generate", "hi", *arguments, "--address", server.address])


def test_a_schema_may_stand_in_the_command_or_in_a_file(
    server: ScriptedOrchestrator, tmp_path: Path
) -> None:
    """Both reach the server as the same text."""
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA, encoding="utf-8")
    assert generate(server, "--guided-json", f" {SCHEMA}").exit_code == 0
    assert generate(server, "--guided-json", str(file)).exit_code == 0
    assert [request.guided_json.strip() for request in server.requests] == [SCHEMA, SCHEMA]


def test_a_pattern_and_choices_are_sent_as_given(server: ScriptedOrchestrator) -> None:
    """The choices in their order."""
    generate(server, "--guided-regex", r"\d+")
    generate(server, "--guided-choice", "yes", "--guided-choice", "no, never")
    assert server.requests[0].guided_regex == r"\d+"
    assert server.requests[1].guided_choice == ["yes", "no, never"]


def test_a_schema_file_that_cannot_be_read_is_named(
    server: ScriptedOrchestrator, tmp_path: Path
) -> None:
    """Nothing is sent."""
    missing = tmp_path / "none.json"
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe")
    for file, reason in ((missing, "No such file"), (binary, "decode")):
        result = generate(server, "--guided-json", str(file))
        assert result.exit_code == 2
        words = " ".join(result.stderr.replace("│", " ").split())
        assert "--guided-json" in words
        assert reason in words
    assert server.requests == []
