"""Results of a long benchmark as JSON lines, written as it goes: a second start goes on there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.bench.report import Row, write_text
from paceline.errors import ConfigError


class ResultsFile:
    """Rows by the key of the step that gave them; the first line says how they were measured."""

    def __init__(self, path: Path | None, measured_with: Mapping[str, Any]) -> None:
        """Without a path nothing is kept."""
        self._path = path
        self._header = json.loads(json.dumps({"measured_with": measured_with}))
        self.rows: dict[str, list[Row]] = {}

    def load(self) -> None:
        """Take over what is there. Raises `ConfigError` if it was measured otherwise."""
        if self._path is None:
            return
        if self._path.is_dir():
            raise ConfigError(f"--results: {self._path} is a directory")
        if not self._path.exists():
            write_text(self._path, json.dumps(self._header) + "\n")
            return
        header, *lines = self._read(self._path)
        if header != self._header:
            raise ConfigError(
                f"{self._path} was measured with other options: {_difference(header, self._header)}"
            )
        for line in lines:
            self.rows[line["key"]] = line["rows"]

    def add(self, key: str, rows: list[Row]) -> None:
        """Keep the rows of one step."""
        self.rows[key] = rows
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "rows": rows}) + "\n")

    @staticmethod
    def _read(path: Path) -> list[dict[str, Any]]:
        """Its lines; a last one that was cut off while it was written is dropped."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"cannot read results {path}: {reason}") from error
        whole, _, cut = text.rpartition("\n")
        if cut:
            path.write_text(whole + "\n", encoding="utf-8")
        try:
            lines = [json.loads(line) for line in whole.split("\n") if line]
        except ValueError as error:
            raise ConfigError(f"{path} is not a results file: {error}") from error
        header = lines[0] if lines else None
        if not isinstance(header, dict) or not isinstance(header.get("measured_with"), dict):
            raise ConfigError(f"{path} is not a results file: its first line says nothing of it")
        return lines


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    before, now = theirs["measured_with"], ours["measured_with"]
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return ", ".join(f"{key} {before.get(key)} there, {now.get(key)} now" for key in changed)
