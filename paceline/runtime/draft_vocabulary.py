"""Which of a target's token ids a drafter of fewer ids knows, as the file beside its checkpoint.

Draft id `i` stands for the target's `token_ids[i]`. A target id that has no draft id of its own is
read as its nearest neighbour, and never drafted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ConfigError

FILE_NAME = "paceline_draft.json"
FORMAT = 1

_KEYS = {"format", "target", "layers", "token_ids", "input_ids", "figures"}
_TARGET_KEYS = {"name", "tokenizer_fingerprint", "vocab_size"}


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The ids of a reduced drafter and the target that it was made for.

    `vocab_size` counts the ids of the target's tokenizer, as `Describe` has it. `layers` are those
    of the target that the drafter began as. `token_ids` are target ids, ascending; `input_ids` hold
    one draft id for every target id. `figures` are what its maker measured.

    Raises `ConfigError` naming the key that does not fit the others.
    """

    target_name: str
    tokenizer_fingerprint: str
    vocab_size: int
    layers: tuple[int, ...]
    token_ids: tuple[int, ...]
    input_ids: tuple[int, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise ConfigError(f"target.vocab_size: {self.vocab_size} must be at least 1")
        if not self.layers or min(self.layers) < 0 or not _ascending(self.layers):
            raise ConfigError("layers: must be an ascending list of layers, counted from 0")
        ids = self.token_ids
        if not ids or not _ascending(ids):
            raise ConfigError("token_ids: must be an ascending list of target ids")
        if ids[0] < 0 or ids[-1] >= self.vocab_size:
            wrong = ids[0] if ids[0] < 0 else ids[-1]
            raise ConfigError(
                f"token_ids: {wrong} is no id of a vocabulary of {self.vocab_size} tokens"
            )
        if len(self.input_ids) != self.vocab_size:
            raise ConfigError(
                f"input_ids: {len(self.input_ids)} ids, and target.vocab_size is {self.vocab_size}"
            )
        if min(self.input_ids) < 0 or max(self.input_ids) >= len(ids):
            raise ConfigError(f"input_ids: must be from 0 to {len(ids) - 1}, the draft ids")
        for draft_id, target_id in enumerate(ids):
            if self.input_ids[target_id] != draft_id:
                raise ConfigError(
                    f"input_ids: target id {target_id} is draft id {draft_id} in token_ids and"
                    f" {self.input_ids[target_id]} here"
                )

    @property
    def num_draft_ids(self) -> int:
        """The width of the drafter's embeddings and of its head."""
        return len(self.token_ids)

    def to_draft(self) -> Tensor:
        """Draft id of every target id: int64 `[vocab_size]`, on the CPU."""
        return torch.tensor(self.input_ids, dtype=torch.int64)

    def to_target(self) -> Tensor:
        """Target id of every draft id: int64 `[num_draft_ids]`, on the CPU."""
        return torch.tensor(self.token_ids, dtype=torch.int64)

    @classmethod
    def read(cls, directory: Path) -> DraftVocabulary:
        """Read `paceline_draft.json` of a checkpoint's directory.

        Raises `ConfigError` naming the file and the key that is wrong.
        """
        path = directory / FILE_NAME
        try:
            value: Any = json.loads(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON: {error}") from error
        try:
            return cls._parse(value)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def write(self, directory: Path) -> None:
        """Write `paceline_draft.json` into a directory that exists."""
        value = {
            "format": FORMAT,
            "target": {
                "name": self.target_name,
                "tokenizer_fingerprint": self.tokenizer_fingerprint,
                "vocab_size": self.vocab_size,
            },
            "layers": self.layers,
            "figures": self.figures,
            "token_ids": self.token_ids,
            "input_ids": self.input_ids,
        }
        lines = (f" {json.dumps(key)}: {json.dumps(part)}" for key, part in value.items())
        (directory / FILE_NAME).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def _parse(cls, value: Any) -> DraftVocabulary:
        if not isinstance(value, dict):
            raise ConfigError(f"expected an object, found {type(value).__name__}")
        if value.get("format") != FORMAT:
            raise ConfigError(
                f"format: {value.get('format')!r} is not {FORMAT}, the only one that is known here"
            )
        _check_keys(value, _KEYS, "")
        target = value["target"]
        if not isinstance(target, dict):
            raise ConfigError("target: expected an object")
        _check_keys(target, _TARGET_KEYS, "target.")
        if not isinstance(value["figures"], dict):
            raise ConfigError("figures: expected an object")
        return cls(
            target_name=_text(target["name"], "target.name"),
            tokenizer_fingerprint=_text(
                target["tokenizer_fingerprint"], "target.tokenizer_fingerprint"
            ),
            vocab_size=_number(target["vocab_size"], "target.vocab_size"),
            layers=_numbers(value["layers"], "layers"),
            token_ids=_numbers(value["token_ids"], "token_ids"),
            input_ids=_numbers(value["input_ids"], "input_ids"),
            figures=value["figures"],
        )


def _check_keys(value: Mapping[str, Any], keys: set[str], prefix: str) -> None:
    if missing := sorted(keys - value.keys()):
        raise ConfigError(f"{prefix}{missing[0]}: missing")
    if unknown := sorted(value.keys() - keys):
        raise ConfigError(f"{prefix}{unknown[0]}: unknown key")


def _ascending(numbers: tuple[int, ...]) -> bool:
    return all(one < next_one for one, next_one in pairwise(numbers))


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key}: expected a text, found {value!r}")
    return value


def _number(value: Any, key: str) -> int:
    if type(value) is not int:
        raise ConfigError(f"{key}: expected a whole number, found {value!r}")
    return value


def _numbers(value: Any, key: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{key}: expected a list of whole numbers")
    return tuple(_number(item, key) for item in value)
