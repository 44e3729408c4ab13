"""Reports: one value as JSON that its schema admits, as Markdown, and as plots."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paceline.bench.machine import Machine, describe_machine
from paceline.bench.plots import write_charts
from paceline.bench.report import (
    SCHEMA_FILE,
    Chart,
    Report,
    Series,
    Table,
    format_cell,
    write_text,
)
from paceline.errors import ConfigError

MACHINE = Machine("A CPU", 2, 8 * 2**30, ("A GPU",), "Linux", "3.11", {"torch": "2"}, "abc-dirty")
ROW = {
    "suite": "general",
    "system": "paceline | ngram",
    "tokens_per_s": 12.345,
    "over_generate": math.nan,
    "same_outputs": True,
}
COLUMNS = [
    ("system", "system", ""),
    ("tokens/s", "tokens_per_s", ".1f"),
    ("/ generate", "over_generate", ".2f"),
    ("absent", "absent", "d"),
]
CHARTS = [
    Chart("speed", "Speed", "α", "tokens/s", [Series("a", [0.5, 0.9], [1.0, 2.0])], guide=1.0),
    Chart(
        "systems",
        "Systems",
        "system",
        "tokens/s",
        [Series("general", ["x", "y"], [1.0, 2.0]), Series("copying", ["x", "y"], [2.0, 4.0])],
    ),
]


def report(**fields: Any) -> Report:
    given: dict[str, Any] = {
        "benchmark": "compare",
        "machine": MACHINE,
        "configuration": {"max_tokens": 8, "path": Path("a")},
        "results": [ROW],
        "summary": {"ratio": 1.23456, "errors": {"UNAVAILABLE": 2}},
        "tables": [Table("Systems", COLUMNS, [ROW])],
        "charts": CHARTS,
        "created": datetime(2025, 1, 2, tzinfo=timezone.utc),
    }
    return Report(**{**given, **fields})


def schema() -> Any:
    return json.loads(SCHEMA_FILE.read_text())


def test_the_json_is_what_its_schema_admits() -> None:
    value = report().as_json()
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(value, schema())
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert value["schema_version"] == 1
    assert value["results"][0]["over_generate"] is None
    assert value["created"] == "2025-01-02T00:00:00+00:00"


def test_a_row_without_a_promised_field_is_refused() -> None:
    value = report(results=[{"suite": "general", "system": "paceline"}]).as_json()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**report().as_json(), "schema_version": 2}, schema())


def test_the_markdown_has_table_summary_machine_and_configuration() -> None:
    """Golden: what is committed under benchmarks/results."""
    assert report().as_markdown() == (
        "# paceline bench compare\n\n"
        "## Systems\n\n"
        "| system | tokens/s | / generate | absent |\n"
        "|---|---|---|---|\n"
        "| paceline \\| ngram | 12.3 | – | – |\n\n"
        "## Summary\n\n"
        "- ratio: 1.235\n"
        "- errors: UNAVAILABLE 2\n\n"
        "## Machine\n\n"
        "- CPU: A CPU, 2 cores\n"
        "- memory: 8.0 GiB\n"
        "- GPU: A GPU\n"
        "- system: Linux, Python 3.11\n"
        "- versions: torch 2\n"
        "- commit: abc-dirty\n"
        "- date: 2025-01-02T00:00:00+00:00\n\n"
        "## Configuration\n\n"
        "```json\n"
        "{\n"
        '  "max_tokens": 8,\n'
        '  "path": "a"\n'
        "}\n"
        "```\n"
    )


def test_cells_show_yes_no_and_nothing() -> None:
    assert [format_cell(value, "d") for value in (True, None, 3)] == ["True", "–", "3"]
    assert format_cell("a\nb", "") == "a b"


def test_every_chart_becomes_a_png_and_an_svg_with_its_labels(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "plots"
    written = write_charts(CHARTS, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "speed.png",
        "speed.svg",
        "systems.png",
        "systems.svg",
    ]
    assert sorted(written) == sorted(folder.iterdir())
    assert (folder / "speed.png").read_bytes().startswith(b"\x89PNG")
    drawn = (folder / "systems.svg").read_text()
    for text in ("Systems", "system", "tokens/s", "general", "copying"):
        assert f">{text}<" in drawn


def test_the_same_chart_gives_the_same_svg(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_charts(CHARTS[:1], tmp_path / name)
    assert (tmp_path / "a/speed.svg").read_bytes() == (tmp_path / "b/speed.svg").read_bytes()


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=str(file)):
        write_text(file / "report.json", "")
    with pytest.raises(ConfigError, match=str(file)):
        write_charts(CHARTS, file)


def test_this_machine_is_described() -> None:
    machine = describe_machine()
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.memory_bytes > 2**28
    assert {"paceline", "torch", "grpcio"} <= set(machine.versions)
    jsonschema.validate(report(machine=machine).as_json(), schema())
