"""Which prompts there are, and that those of the evaluation are of other kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.byte_tokenizer import CHAT_TEMPLATE, build_byte_tokenizer

from demo.prompts import PROMPTS as DEMO_PROMPTS
from paceline.bench.prompts import COPYING_FILE, GENERAL_FILE, five_prompts, load_prompts
from paceline.distillation.held_out import held_out_prompts
from paceline.distillation.prompts import (
    PROMPTS_A_ROUND,
    Prompt,
    built_in_prompts,
    prompts_of_file,
    question,
)
from paceline.distillation.templates import CHAT, PLAIN
from paceline.errors import ConfigError
from paceline.runtime.tokenizer import Tokenizer


def content(prompt: Prompt) -> str:
    return prompt.text or prompt.messages[0]["content"]


def test_a_round_of_built_in_prompts_is_of_all_kinds_and_no_text_is_there_twice() -> None:
    prompts = built_in_prompts(PROMPTS_A_ROUND, seed=0)
    assert len(prompts) == PROMPTS_A_ROUND
    assert {prompt.kind for prompt in prompts} == {*CHAT, *PLAIN}
    assert len({content(prompt) for prompt in prompts}) == PROMPTS_A_ROUND
    assert not any("{" in content(prompt) for prompt in prompts if "JSON" not in prompt.kind)
    completions = sum(prompt.text is not None for prompt in prompts)
    assert 0.15 < completions / PROMPTS_A_ROUND < 0.3


def test_a_longer_list_begins_with_a_shorter_one_and_another_seed_asks_otherwise() -> None:
    long = built_in_prompts(PROMPTS_A_ROUND + 100, seed=0)
    assert len(long) == PROMPTS_A_ROUND + 100
    assert built_in_prompts(70, seed=0) == long[:70]
    assert built_in_prompts(70, seed=1) != long[:70]


def test_the_held_out_prompts_are_many_and_of_no_kind_of_the_training() -> None:
    prompts = held_out_prompts()
    assert len(prompts) >= 48
    assert len({content(prompt) for prompt in prompts}) == len(prompts)
    assert not {prompt.kind for prompt in prompts} & {*CHAT, *PLAIN}


def test_no_prompt_of_the_demo_or_the_benchmarks_is_trained_on_or_held_out() -> None:
    benchmarks = [*five_prompts(), *load_prompts(GENERAL_FILE), *load_prompts(COPYING_FILE)]
    foreign = {each.prompt or each.messages[0]["content"] for each in benchmarks}
    foreign |= {str(each.fields.get("prompt") or each.shown) for each in DEMO_PROMPTS}
    ours = {content(each) for each in (*built_in_prompts(4000, seed=0), *held_out_prompts())}
    for text in foreign:
        assert not any(text in our or our in text for our in ours), text


def test_a_conversation_goes_through_the_chat_template_where_there_is_one() -> None:
    with_template = Tokenizer(build_byte_tokenizer(chat_template=CHAT_TEMPLATE))
    without = Tokenizer(build_byte_tokenizer())
    prompt = question("any", "hello")
    assert with_template.has_chat_template
    assert prompt.token_ids(with_template) == with_template.encode_chat(prompt.messages)
    assert not without.has_chat_template
    assert prompt.token_ids(without) == without.encode("hello\n")
    assert Prompt("any", text="hello").token_ids(with_template) == with_template.encode("hello")


def test_prompts_come_from_a_jsonl_or_a_text_file(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("first\n\nsecond\n", encoding="utf-8")
    assert prompts_of_file(lines) == [question("file", "first"), question("file", "second")]
    objects = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "ask"}]
    objects.write_text(
        json.dumps({"prompt": "go on"}) + "\n" + json.dumps({"messages": messages}) + "\n"
    )
    assert prompts_of_file(objects) == [
        Prompt("file", text="go on"),
        Prompt("file", messages=tuple(messages)),
    ]


def test_a_file_without_prompts_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read prompts .*none\.txt: No such file"):
        prompts_of_file(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ConfigError, match=r"empty\.txt: there is no prompt in it"):
        prompts_of_file(tmp_path / "empty.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes\.txt: it is not UTF-8"):
        prompts_of_file(tmp_path / "bytes.txt")
    (tmp_path / "wrong.jsonl").write_text('{"prompt": 3}\n')
    with pytest.raises(ConfigError, match=r"wrong\.jsonl:1: prompt: expected a text"):
        prompts_of_file(tmp_path / "wrong.jsonl")
