"""Reading a YAML file whose keys may stand once only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from paceline.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Of two equal keys YAML's own loader takes the last: settings would be lost in silence."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_keys(node, set())
        return node


def _check_keys(node: yaml.Node, seen: set[int]) -> None:
    """Raise `ConstructorError` for a mapping with a key that stands twice."""
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))  # an anchor's node is there as often as it is referred to
    first: dict[tuple[str, str], yaml.Node] = {}
    for entry in node.value:
        if not isinstance(node, yaml.MappingNode):
            _check_keys(entry, seen)
            continue
        key, value = entry
        if isinstance(key, yaml.ScalarNode):
            known = first.setdefault((key.tag, key.value), key)
            if known is not key:
                raise yaml.constructor.ConstructorError(
                    f"{key.value}: the key stands here",
                    known.start_mark,
                    "and again here",
                    key.start_mark,
                )
        _check_keys(value, seen)


def read_yaml(path: Path) -> Any:
    """What a file says; None if it is empty. Raises `ConfigError` naming the file and the place."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from error
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError as error:
        raise ConfigError(f"{path} is not valid YAML: it is nested too deeply") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:  # no date, no number
        raise ConfigError(f"{path} is not valid YAML: {_problem(error)}") from error


def _problem(error: Exception) -> str:
    """What is wrong, and where."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error)
    places = ((error.context, error.context_mark), (error.problem, error.problem_mark))
    return ", ".join(
        f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark else what
        for what, mark in places
        if what
    )
