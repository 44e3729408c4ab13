"""Prompts of a benchmark: a file's errors name its line, and no two requests begin alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.prompts import (
    COPYING_FILE,
    FIVE_PROMPTS,
    GENERAL_FILE,
    BenchPrompt,
    five_prompts,
    in_repeat,
    load_prompts,
)
from paceline.errors import ConfigError


def written(folder: Path, *lines: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_texts_and_conversations_may_bring_their_own_length(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}]
    path = written(
        tmp_path,
        '{"prompt": "Once", "max_tokens": 7}',
        "",
        json.dumps({"messages": turns, "name": "greeting"}),
    )
    first, second = load_prompts(path)
    assert (first.name, second.name) == ("line 1", "greeting")
    assert first.fields(50) == {"prompt": "Once", "max_tokens": 7}
    assert second.fields(50) == {"messages": tuple(turns), "max_tokens": 50}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object, found list"),
        ("{}", "exactly one of prompt and messages"),
        ('{"prompt": "a", "messages": []}', "exactly one of prompt and messages"),
        ('{"prompt": ""}', "prompt: expected a text"),
        ('{"prompt": 3}', "prompt: expected a text"),
        ('{"messages": []}', "messages: expected a list"),
        ('{"messages": [{"role": "user"}]}', "messages: each has role and content"),
        ('{"messages": [{"role": "user", "content": 1}]}', "messages.content: expected a text"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens: expected a number from 1 on, found 0"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens"),
        ('{"prompt": "a", "tokens": 3}', "tokens: unknown key"),
    ],
)
def test_an_error_names_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    path = written(tmp_path, '{"prompt": "fine"}', "", line)
    with pytest.raises(ConfigError) as caught:
        load_prompts(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert problem in str(caught.value)


def test_a_file_that_is_missing_empty_or_no_text_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, problem in [
        (tmp_path / "none.jsonl", "No such file"),
        (written(tmp_path, "", ""), "no prompt"),
        (binary, "not UTF-8"),
    ]:
        with pytest.raises(ConfigError, match=problem) as caught:
            load_prompts(path)
        assert str(path) in str(caught.value)


def test_prompts_that_ship_are_ten_different_ones_each() -> None:
    for path in (GENERAL_FILE, COPYING_FILE):
        prompts = load_prompts(path)
        texts = {str(prompt.fields(1)) for prompt in prompts}
        assert len(prompts) == len(texts) == len({prompt.name for prompt in prompts}) == 10
    assert [prompt.prompt for prompt in five_prompts()] == list(FIVE_PROMPTS.values())


def test_every_json_that_is_to_be_fixed_is_broken() -> None:
    broken = [prompt for prompt in load_prompts(COPYING_FILE) if "JSON" in prompt.name]
    assert len(broken) == 3
    for prompt in broken:
        text = prompt.messages[0]["content"].partition("\n\n")[2]
        with pytest.raises(ValueError):
            json.loads(text)


def test_later_repeats_begin_otherwise_and_the_first_is_as_written() -> None:
    prompts = [
        BenchPrompt("a", prompt="Once"),
        BenchPrompt("b", messages=({"role": "user", "content": "hi"},)),
    ]
    assert in_repeat(prompts, 0) == prompts
    texts = set()
    for repeat in range(4):
        text, chat = in_repeat(prompts, repeat)
        assert text.prompt is not None
        assert text.prompt.endswith("Once")
        assert chat.messages[0]["content"].endswith("hi")
        texts |= {text.prompt, chat.messages[0]["content"]}
    assert len(texts) == 8
    assert prompts[1].messages[0]["content"] == "hi"


def test_lines_end_where_lines_of_json_do(tmp_path: Path) -> None:
    """Other separators of Unicode are characters of a text; a mark of UTF-8 may come first."""
    path = tmp_path / "prompts.jsonl"
    texts = ["a\u2028b", "c\u0085d"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    path.write_text("\r\n".join(lines), encoding="utf-8-sig")
    assert [prompt.prompt for prompt in load_prompts(path)] == texts
