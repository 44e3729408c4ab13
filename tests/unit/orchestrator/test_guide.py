"""What must match becomes a grammar, or an error that names the field and says why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.byte_tokenizer import EOS_ID, build_byte_tokenizer
from support.pipeline import worker_info
from support.text_tokenizers import word_piece

from orchestrator.guide import MAX_CHOICES, MAX_GUIDE_LENGTH, guiding_grammar
from orchestrator.request import complete_request
from paceline.config import OrchestratorConfig
from paceline.errors import InvalidArgumentError
from paceline.generation import GenerateCall
from paceline.rpc.codec.client import encode_generate
from paceline.rpc.codec.orchestrator import decode_generate
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import SamplingParams

TOKENIZER = Tokenizer(build_byte_tokenizer())
ENGINE = GrammarEngine(TOKENIZER)
TARGET = worker_info("verifier", TOKENIZER.vocab_size, [EOS_ID])


def call(**fields: Any) -> GenerateCall:
    """A call as it comes over the wire."""
    message = encode_generate(prompt="p", **fields)
    return decode_generate(message, defaults=SamplingParams())


def grammar_of(**fields: Any) -> str:
    return guiding_grammar(call(**fields), engine=ENGINE, target=TARGET)


def matches(grammar: str, text: str) -> bool:
    """Whether the text may be a whole output."""
    matcher = ENGINE.matcher(grammar, prompt_length=0, end_ids=[EOS_ID])
    spelt = [*text.encode(), EOS_ID]
    return matcher.extend(spelt) == len(spelt)


def test_a_free_output_has_no_grammar() -> None:
    """Nothing is compiled, nothing is masked."""
    assert grammar_of() == ""


def test_a_schema_guides_to_json() -> None:
    """Keys in the schema's order, white space as one likes within reason."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    for given in (schema, json.dumps(schema)):
        grammar = grammar_of(guided_json=given)
        assert matches(grammar, '{"name":"Ada","age":36}')
        assert matches(grammar, '{\n    "name": "Zoë"\n}')
        assert not matches(grammar, '{"name":"Ada"')
        assert not matches(grammar, '{"age":36}')
        assert not matches(grammar, '{"name":"Ada"} and more')
        assert not matches(grammar, '{"name":' + " " * 100 + '"Ada"}')
    assert matches(grammar_of(guided_json={}), '[1, null, {"a": "b"}]')


@pytest.mark.parametrize("pattern", ["[a-c]{2}-\\d+", "^[a-c]{2}-\\d+$"])
def test_a_pattern_is_matched_as_a_whole(pattern: str) -> None:
    """With anchors or without."""
    grammar = grammar_of(guided_regex=pattern)
    assert matches(grammar, "ab-12")
    assert not matches(grammar, "ab-")
    assert not matches(grammar, "xab-1")


def test_digits_and_words_of_a_pattern_are_ascii() -> None:
    """As in a schema's patterns; a small model else finds digits of its own."""
    assert matches(grammar_of(guided_regex=r"\d[^\d]\w\W/"), "7x_é/")
    assert not matches(grammar_of(guided_regex=r"\d"), "٣")
    assert not matches(grammar_of(guided_regex=r"\w"), "é")
    assert matches(grammar_of(guided_regex=r"\\d"), "\\d")
    assert matches(grammar_of(guided_regex=r"\p{L}\s"), "é\u2003")


def test_a_choice_means_itself() -> None:
    """Its characters are no pattern."""
    grammar = grammar_of(guided_choice=["a.c", "(x|y)", "naïve 😀\n", "a"])
    for choice in ("a.c", "(x|y)", "naïve 😀\n", "a"):
        assert matches(grammar, choice)
    for other in ("abc", "x", ""):
        assert not matches(grammar, other)
    assert matches(grammar_of(guided_choice="yes"), "yes")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "two guides": (
        {"guided_regex": "a", "guided_choice": ["a"]},
        "guided_regex: at most one of guided_json, guided_regex, guided_choice may be given;"
        " guided_regex and guided_choice were",
    ),
    "no JSON": ({"guided_json": "{nope"}, "guided_json: it is not JSON: "),
    "a number that is none": ({"guided_json": '{"const": NaN}'}, "guided_json: it is not JSON"),
    "JSON within itself": ({"guided_json": "[" * 30_000}, "guided_json: it is not JSON"),
    "no schema": ({"guided_json": "[1]"}, "guided_json: a schema is a JSON object"),
    "an unknown type": ({"guided_json": {"type": "strin"}}, "guided_json: Invalid type: strin"),
    "an unknown option": ({"guided_json": {"x-guidance": {"no": 1}}}, "guided_json: unknown field"),
    "a keyword that is not understood": (
        {"guided_json": {"type": "array", "uniqueItems": True}},
        'guided_json: Unimplemented keys: ["uniqueItems"]',
    ),
    "a schema of nothing": (
        {"guided_json": {"type": "string", "minLength": 3, "maxLength": 2}},
        "guided_json: Unsatisfiable schema",
    ),
    "a reference to elsewhere": ({"guided_json": {"$ref": "http://x/y"}}, "guided_json: Resource"),
    "an unclosed group": ({"guided_regex": "(a"}, "guided_regex: unclosed group"),
    "a look-ahead": ({"guided_regex": "(?=a)b"}, "guided_regex: look-around"),
    "a lone backslash": ({"guided_regex": "a\\\\\\"}, "guided_regex: it ends with a backslash"),
    "a pattern of nothing": ({"guided_regex": "[a&&b]"}, "guided_regex: "),
    "an empty choice": ({"guided_choice": ["a", ""]}, "guided_choice: choice 1 is empty"),
    "no choices": ({"guided_choice": []}, "guided_choice: must not be empty"),
    "no pattern": ({"guided_regex": ""}, "guided_regex: must not be empty"),
    "no schema at all": ({"guided_json": ""}, "guided_json: must not be empty"),
    "a schema that is a number": ({"guided_json": 3}, "guided_json: "),
    "a choice that is a number": ({"guided_choice": [3]}, "guided_choice: "),
    "too many choices": (
        {"guided_choice": ["a"] * (MAX_CHOICES + 1)},
        f"guided_choice: {MAX_CHOICES + 1} choices; at most {MAX_CHOICES}",
    ),
    "too long": (
        {"guided_regex": "a" * (MAX_GUIDE_LENGTH + 1)},
        f"guided_regex: {MAX_GUIDE_LENGTH + 1} characters; at most {MAX_GUIDE_LENGTH}",
    ),
    "an end that is ignored": (
        {"guided_regex": "a", "ignore_eos": True},
        "ignore_eos: not with guided_regex",
    ),
    "an end that must wait": (
        {"guided_choice": ["a"], "min_tokens": 2},
        "min_tokens: not with guided_choice",
    ),
}


@pytest.mark.parametrize(("fields", "message"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_guide_is_refused_by_its_name_with_the_reason(
    fields: dict[str, Any], message: str
) -> None:
    """Before any worker hears of it."""
    with pytest.raises(InvalidArgumentError) as caught:
        grammar_of(**fields)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_an_escaped_backslash_may_end_a_pattern() -> None:
    """It is a character like another."""
    assert matches(grammar_of(guided_regex="a\\\\"), "a\\")


def test_a_model_that_cannot_be_guided_says_so() -> None:
    """No end id to end a complete output with, or a tokenizer whose tokens are no text."""
    endless = replace(TARGET, eos_token_ids=())
    with pytest.raises(InvalidArgumentError, match=r"^guided_regex: the model has no end id"):
        guiding_grammar(call(guided_regex="a"), engine=ENGINE, target=endless)
    engine = GrammarEngine(Tokenizer(word_piece()))
    with pytest.raises(InvalidArgumentError, match=r"^guided_regex: .* cannot be guided"):
        guiding_grammar(call(guided_regex="a"), engine=engine, target=TARGET)


def test_guides_as_large_as_allowed_are_read() -> None:
    """The limits keep short what a worker does on its engine thread; they are not beyond it."""
    choices = [f"{n:04d} " + "abcdefghi " * 5 for n in range(MAX_CHOICES)]
    assert matches(grammar_of(guided_choice=choices), choices[-1])
    assert matches(grammar_of(guided_regex="a" * MAX_GUIDE_LENGTH), "a" * MAX_GUIDE_LENGTH)


def test_a_request_carries_the_grammar_to_the_workers() -> None:
    """`RelaySettings.grammar` is what `OpenSession.grammar` will be."""
    request = complete_request(
        call(guided_choice=["a", "b"]),
        tokenizer=TOKENIZER,
        grammar=ENGINE,
        target=TARGET,
        config=OrchestratorConfig(),
        max_message_bytes=2**22,
    )
    assert matches(request.settings.grammar, "b")
    assert not matches(request.settings.grammar, "c")
