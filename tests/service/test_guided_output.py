"""Structured output over gRPC from a model with a padded head; its drafts obey the grammar too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.services import running, settings

from paceline.errors import InvalidArgumentError

PROMPT = "The answer is "
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "id": {"type": "string", "pattern": "^[a-f]{8}$"}},
    "required": ["ok", "id"],
    "additionalProperties": False,
}
PATTERN = r"[a-d]{20}(-[0-9]{3}){2}"
CHOICES = ["yes, of course", "no, never"]


async def test_guided_text_matches_under_every_rule(tiny_dir: Callable[..., Path]) -> None:
    """Drafts of the same weights under the same grammar are accepted."""
    directory = tiny_dir()
    async with running(settings(directory, directory)) as stack:
        for rule in ("rejection", "block", "coupled"):
            how: dict[str, Any] = {"prompt": PROMPT, "acceptance": rule, "seed": 3}
            how["max_tokens"] = 200
            described = await stack.generate(**how, guided_json=SCHEMA)
            matched = await stack.generate(**how, guided_regex=PATTERN)
            chosen = await stack.generate(**how, guided_choice=CHOICES)
            jsonschema.validate(json.loads(described.text), SCHEMA)
            assert re.fullmatch(PATTERN, matched.text)
            assert chosen.text in CHOICES
            assert {described.finish_reason, matched.finish_reason, chosen.finish_reason} == {
                "stop"
            }
            assert matched.stats.accepted == matched.stats.judged > 10


async def test_the_guided_text_does_not_depend_on_the_drafter(
    tiny_dir: Callable[..., Path],
) -> None:
    """The drafter of other weights, prompt lookup, or none."""
    target = tiny_dir()
    texts = set()
    for draft in (target, tiny_dir(1), "ngram"):
        async with running(settings(target, draft)) as stack:
            for speculation in (True, False):
                result = await stack.generate(
                    prompt=PROMPT,
                    temperature=0,
                    max_tokens=60,
                    guided_regex=PATTERN,
                    speculation=speculation,
                )
                texts.add(result.text)
    assert len(texts) == 1
    assert re.fullmatch(PATTERN, texts.pop())


async def test_a_wrong_guide_is_refused_with_its_name(tiny_dir: Callable[..., Path]) -> None:
    """INVALID_ARGUMENT with the library's reason; the service goes on."""
    directory = tiny_dir()
    async with running(settings(directory, directory)) as stack:
        for fields, message in (
            ({"guided_regex": "(a"}, "guided_regex: unclosed group"),
            ({"guided_json": "{"}, "guided_json: it is not JSON"),
            ({"guided_json": {"not": {}}}, "guided_json: Unimplemented keys"),
            ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos: not with guided_regex"),
        ):
            with pytest.raises(InvalidArgumentError, match=re.escape(message)):
                await stack.generate(prompt=PROMPT, **fields)
        result = await stack.generate(prompt=PROMPT, guided_choice=["fine"])
        assert result.text == "fine"
