"""Reading a YAML file whose keys may stand once only."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from paceline.errors import ConfigError

_MERGE_TAG = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Of two equal keys YAML's own loader takes the last: settings would be lost in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[Any, yaml.Node] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE_TAG or not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in first:
                raise yaml.constructor.ConstructorError(
                    f"{key_node.value}: the key stands here",
                    first[key_node.value].start_mark,
                    "and again here",
                    key_node.start_mark,
                )
            first[key_node.value] = key_node
        return super().construct_mapping(node, deep)


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
    except (yaml.YAMLError, ValueError) as error:  # no date, no number
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
