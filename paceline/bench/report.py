"""What every benchmark gives: one value, written as JSON, as Markdown and as plots.

The JSON is described by `data/report.schema.json`; `SCHEMA_VERSION` rises when a field changes its
meaning or goes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from paceline.bench.machine import Machine
from paceline.errors import ConfigError

SCHEMA_VERSION = 1
SCHEMA_FILE = Path(__file__).parent / "data" / "report.schema.json"

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of `results` as people read them: (heading, key, format) a column."""

    title: str
    columns: Sequence[tuple[str, str, str]]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one colour of bars."""

    label: str
    xs: Sequence[float | str]
    ys: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure; `name` is its file's. Text on the x axis makes bars. Labels have their units."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    guide: float | None = None
    """A horizontal line to compare with."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one benchmark. `results` are flat rows; `summary` is what they come to."""

    benchmark: str
    machine: Machine
    configuration: Mapping[str, Any]
    results: Sequence[Row]
    summary: Mapping[str, Any]
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    created: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def as_json(self) -> dict[str, Any]:
        """The JSON value; numbers that are not finite become null."""
        value = {
            "schema_version": SCHEMA_VERSION,
            "benchmark": self.benchmark,
            "created": self.created.isoformat(timespec="seconds"),
            "machine": asdict(self.machine),
            "configuration": dict(self.configuration),
            "results": [dict(row) for row in self.results],
            "summary": dict(self.summary),
        }
        finite: dict[str, Any] = _finite(value)
        return finite

    def as_markdown(self) -> str:
        """Title, tables, machine, configuration: what is committed."""
        parts = [f"# paceline bench {self.benchmark}", *(_markdown(table) for table in self.tables)]
        if self.summary:
            lines = (f"- {name}: {_shown(value)}" for name, value in self.summary.items())
            parts.append("## Summary\n\n" + "\n".join(lines))
        parts.append("## Machine\n\n" + _machine_lines(self.machine, self.created))
        configuration = json.dumps(_finite(self.configuration), indent=2, ensure_ascii=False)
        parts.append(f"## Configuration\n\n```json\n{configuration}\n```")
        return "\n\n".join(parts) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file, and its folder if it is missing. Raises `ConfigError` naming the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def format_cell(value: Any, style: str) -> str:
    """A cell of a table; nothing for what was not measured."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "\\|").replace("\n", " ")
    return format(value, style)


def _markdown(table: Table) -> str:
    headings = [heading for heading, _, _ in table.columns]
    lines = [f"## {table.title}\n", f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    for row in table.rows:
        cells = (format_cell(row.get(key), style) for _, key, style in table.columns)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _machine_lines(machine: Machine, created: datetime) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    lines = [
        f"- CPU: {machine.cpu}, {machine.cores} cores",
        f"- memory: {machine.memory_bytes / 2**30:.1f} GiB",
        f"- GPU: {'; '.join(machine.gpus) or 'none'}",
        f"- system: {machine.system}, Python {machine.python}",
        f"- versions: {versions}",
        f"- commit: {machine.commit or 'unknown'}",
        f"- date: {created.isoformat(timespec='seconds')}",
    ]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items()) or "none"
    return format_cell(value, ".4g")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
