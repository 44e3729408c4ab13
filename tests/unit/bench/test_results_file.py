"""Results of a long benchmark survive its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.bench.results_file import ResultsFile
from paceline.errors import ConfigError

OPTIONS = {"max_tokens": 8, "gammas": [2, 4]}


def opened(path: Path | None, options: dict[str, Any] | None = None) -> ResultsFile:
    file = ResultsFile(path, options or OPTIONS)
    file.load()
    return file


def test_a_second_start_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.jsonl"
    first = opened(path)
    first.add("a", [{"x": 1}])
    first.add("b", [])
    assert opened(path).rows == {"a": [{"x": 1}], "b": []}


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    opened(path).add("a", [{"x": 1}])
    with path.open("a") as file:
        file.write('{"key": "b", "ro')
    second = opened(path)
    assert list(second.rows) == ["a"]
    second.add("b", [{"x": 2}])
    assert list(opened(path).rows) == ["a", "b"]


def test_results_of_other_options_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    opened(path)
    with pytest.raises(ConfigError, match="max_tokens 8 there, 9 now") as caught:
        opened(path, {**OPTIONS, "max_tokens": 9})
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["no json\n", "{}\n", "\n", "3\n", '{"measured_with": 3}\n'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a results file"):
        opened(path)


def test_without_a_path_nothing_is_written() -> None:
    file = opened(None)
    file.add("a", [{"x": 1}])
    assert file.rows == {"a": [{"x": 1}]}


def test_what_is_no_text_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        opened(tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        opened(path)
