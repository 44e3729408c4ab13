"""The map between a target's ids and those of a drafter that knows fewer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.runtime.draft_vocabulary import FILE_NAME, DraftVocabulary

VOCABULARY = DraftVocabulary(
    target_name="a target",
    tokenizer_fingerprint="f00d",
    vocab_size=6,
    layers=(0, 4),
    token_ids=(1, 3, 4),
    input_ids=(0, 0, 2, 1, 2, 1),
    figures={"agreement": 0.5},
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    VOCABULARY.write(tmp_path)
    assert DraftVocabulary.read(tmp_path) == VOCABULARY


def test_the_two_maps_are_tensors_and_inverse_on_the_ids_that_are_known() -> None:
    to_draft, to_target = VOCABULARY.to_draft(), VOCABULARY.to_target()
    assert to_draft.tolist() == [0, 0, 2, 1, 2, 1]
    assert to_target.tolist() == [1, 3, 4]
    assert to_draft[to_target].tolist() == [0, 1, 2]
    assert VOCABULARY.num_draft_ids == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, r"target\.vocab_size: 0"),
        ({"layers": ()}, "layers: must be an ascending list"),
        ({"layers": (4, 0)}, "layers: must be an ascending list"),
        ({"layers": (-1, 0)}, "layers: must be an ascending list"),
        ({"token_ids": ()}, "token_ids: must be an ascending list"),
        ({"token_ids": (1, 4, 3)}, "token_ids: must be an ascending list"),
        ({"token_ids": (1, 3, 6)}, "token_ids: 6 is no id of a vocabulary of 6 tokens"),
        ({"token_ids": (-2, 3, 4)}, "token_ids: -2 is no id"),
        ({"input_ids": (0, 0, 2, 1, 2)}, r"input_ids: 5 ids, and target\.vocab_size is 6"),
        ({"input_ids": (0, 0, 3, 1, 2, 1)}, "input_ids: must be from 0 to 2"),
        ({"input_ids": (-1, 0, 2, 1, 2, 1)}, "input_ids: must be from 0 to 2"),
        ({"input_ids": (0, 0, 2, 2, 2, 1)}, "target id 3 is draft id 1 in token_ids and 2 here"),
    ],
)
def test_what_does_not_fit_together_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(VOCABULARY, **changes)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 2, "format: 2 is not 1"),
        (("target",), [], "target: expected an object"),
        (("target", "name"), 3, r"target\.name: expected a text, found 3"),
        (("target", "vocab_size"), "6", r"target\.vocab_size: expected a whole number"),
        (("target", "colour"), "red", r"target\.colour: unknown key"),
        (("layers",), 2, "layers: expected a list"),
        (("layers",), [0, True], "layers: expected a whole number, found True"),
        (("figures",), None, "figures: expected an object"),
        (("tokens",), [], "tokens: unknown key"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it_and_the_key(
    tmp_path: Path, path: tuple[str, ...], value: Any, message: str
) -> None:
    VOCABULARY.write(tmp_path)
    file = tmp_path / FILE_NAME
    document = json.loads(file.read_text())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=rf"{FILE_NAME}: {message}"):
        DraftVocabulary.read(tmp_path)


@pytest.mark.parametrize("key", ["target", "layers", "token_ids", "input_ids", "figures"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    VOCABULARY.write(tmp_path)
    file = tmp_path / FILE_NAME
    document = json.loads(file.read_text())
    del document[key]
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=f"{key}: missing"):
        DraftVocabulary.read(tmp_path)


def test_a_missing_file_and_one_that_is_no_json_are_errors_that_name_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"cannot read .*{FILE_NAME}: No such file"):
        DraftVocabulary.read(tmp_path)
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ConfigError, match=rf"{FILE_NAME} is not valid JSON"):
        DraftVocabulary.read(tmp_path)
    (tmp_path / FILE_NAME).write_text("[]")
    with pytest.raises(ConfigError, match=rf"{FILE_NAME}: expected an object, found list"):
        DraftVocabulary.read(tmp_path)
