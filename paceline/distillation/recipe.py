"""What a drafter is made with: the settings of the data and of the training, and their files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DataSettings:
    """What decides the answers of a target.

    `num_prompts`, and `num_own_questions` that the target asks itself, are answered with at most
    `max_answer_tokens`, at the `temperatures` in turn; prompts of more than `max_prompt_tokens` are
    left out. The target's `num_top` most likely ids are kept for each token. `num_live` answers are
    written at a time.
    """

    num_prompts: int = 1920
    num_own_questions: int = 0
    max_prompt_tokens: int = 512
    max_answer_tokens: int = 256
    temperatures: tuple[float, ...] = (0.0, 0.6, 0.0, 1.0)
    num_top: int = 32
    num_live: int = 128
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """What a student follows from, its data given.

    It begins as the target's `layers` (None: its first three and its last) over `num_draft_ids`
    ids, takes `steps` of about `tokens_per_step` tokens, and is stored with `quantization`; from
    the share `rounded_from` of the steps on it is trained with weights rounded as they will be
    stored. `compute_dtype` is that of its matrix products; `auto` is bfloat16 where it is fast.
    """

    layers: tuple[int, ...] | None = None
    num_draft_ids: int = 8192
    steps: int = 2000
    tokens_per_step: int = 3200
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    quantization: str = "nf4"
    rounded_from: float = 0.7
    compute_dtype: str = "auto"
    checkpoint_steps: int = 100
    seed: int = 0


def keep_recipe(path: Path, recipe: Mapping[str, Any], *, free: Collection[str] = ()) -> None:
    """Write a stage's recipe, or check that the one that is there says the same.

    What is in `free` may differ. Raises `ConfigError` naming the first other that does.
    """
    wanted: dict[str, Any] = json.loads(json.dumps(recipe))
    if path.exists():
        _compare(path, {key: value for key, value in wanted.items() if key not in free})
    started = path.with_suffix(".part")
    started.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
    os.replace(started, path)


def recipe_directory(work: Path, recipe: Mapping[str, Any], *, free: Collection[str]) -> Path:
    """A directory in `work` for what follows from a recipe, made if it is new, so that several
    recipes can be tried over the same data. What is in `free` makes no other one."""
    deciding = {key: value for key, value in recipe.items() if key not in free}
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
    place = work / f"student-{digest[:12]}"
    place.mkdir(exist_ok=True)
    keep_recipe(place / "recipe.json", recipe, free=free)
    return place


def _compare(path: Path, wanted: Mapping[str, Any]) -> None:
    try:
        found: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    for key, value in wanted.items():
        there = found.get(key) if isinstance(found, dict) else found
        if there != value:
            raise ConfigError(
                f"{key}: {value!r} was asked for and {path} began with {there!r};"
                " use another --work directory to start anew"
            )
