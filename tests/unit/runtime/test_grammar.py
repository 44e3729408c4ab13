"""Masks say exactly what may come next, and a matcher's place is a function of its tokens alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import BOS_ID, EOS_ID, build_byte_tokenizer
from support.small_tokenizer import END, SYLLABLES, small_tokenizer
from support.text_tokenizers import FAMILIES
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.runtime.grammar import GrammarEngine, GrammarMatcher
from paceline.runtime.grammar_text import choice_grammar, regex_grammar, schema_grammar
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import SamplingParams
from paceline.sampling.probabilities import RowContext, target_probs

TOKENIZER = small_tokenizer()
VOCAB = TOKENIZER.vocab_size
PAD = END + 1
ENGINE = GrammarEngine(TOKENIZER)
BYTES = GrammarEngine(Tokenizer(build_byte_tokenizer()))
PATTERN = "(ab|ba|cd|d(a|b)c)*d{3}"
A, B, C, D = range(4)


def matcher_of(
    grammar: str, output: Sequence[int] = (), ends: Sequence[int] = (END,)
) -> GrammarMatcher:
    """A matcher made anew that has taken an output."""
    matcher = ENGINE.matcher(grammar, prompt_length=5, end_ids=ends)
    assert matcher.extend(output) == len(output)
    return matcher


def ids_of(mask: Tensor | None) -> set[int]:
    assert mask is not None
    return set(mask.nonzero().flatten().tolist())


# --- what a mask allows ------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    choices=st.lists(st.text("abcd", min_size=1, max_size=5), min_size=1, max_size=5),
    picks=st.lists(st.integers(0, 20), max_size=6),
)
def test_a_mask_allows_what_begins_a_choice(choices: list[str], picks: list[int]) -> None:
    """By brute force. Where the next letters are certain, one spelling of them may be required."""
    matcher = matcher_of(choice_grammar(choices))
    text = ""
    for pick in picks:
        left = {choice[len(text) :] for choice in choices if choice.startswith(text)}
        fitting = {
            token_id
            for token_id, syllable in enumerate(SYLLABLES)
            if any(rest.startswith(syllable) for rest in left)
        }
        allowed = ids_of(matcher.mask())
        assert (END in allowed) == ("" in left)
        assert allowed - {END} <= fitting
        if len({rest[:1] for rest in left}) > 1:
            assert allowed - {END} == fitting
        assert allowed
        goes_on = sorted(allowed - {END})
        if not goes_on:
            break
        token_id = goes_on[pick % len(goes_on)]
        assert matcher.extend([token_id]) == 1
        text += SYLLABLES[token_id]


def test_a_complete_output_may_only_end_and_an_incomplete_one_may_not() -> None:
    """Each of the session's end ids is an end, and nothing else is."""
    matcher = matcher_of(regex_grammar("ab"), ends=(END, PAD))
    assert not {END, PAD} & ids_of(matcher.mask())
    assert matcher.extend([A, B]) == 2
    assert ids_of(matcher.mask()) == {END, PAD}
    open_ended = matcher_of(regex_grammar("(ab)*"), ends=(PAD,))
    assert ids_of(open_ended.mask()) == {A, SYLLABLES.index("ab"), PAD}


def test_an_end_id_that_is_text_is_an_end_only_where_the_output_is_complete() -> None:
    """Inside a match it would cut the output short of one."""
    matcher = matcher_of(regex_grammar("(ab)*d"), ends=(B,))
    assert ids_of(matcher.mask()) == {A, SYLLABLES.index("ab"), D}
    assert matcher.extend([A, B]) == 1
    assert matcher.extend([]) == 0


def test_special_tokens_are_no_text() -> None:
    """A pattern that matches anything allows no token that has a meaning of its own."""
    matcher = BYTES.matcher(regex_grammar("(.|\n)*"), prompt_length=0, end_ids=[EOS_ID])
    allowed = ids_of(matcher.mask())
    assert {ord("<"), ord("a"), 10, EOS_ID} <= allowed
    assert BOS_ID not in allowed


@pytest.mark.parametrize("family", ["byte", "byte_level_bpe", "llama_style", "gemma_style"])
@pytest.mark.parametrize("before", ["", "x"])
def test_the_name_of_a_special_token_is_spelt_with_ordinary_ones(family: str, before: str) -> None:
    """A grammar means characters, whatever the tokenizer makes of them."""
    tokenizer = Tokenizer(FAMILIES[family]())
    special = tokenizer.special_token_ids
    for name in special:
        choice = before + str(tokenizer.piece(special[name])) + "a"
        matcher = GrammarEngine(tokenizer).matcher(
            choice_grammar([choice]), prompt_length=0, end_ids=[special["eos"]]
        )
        output: list[int] = []
        while special["eos"] not in (allowed := ids_of(matcher.mask())):
            assert allowed, matcher.problem
            assert not allowed & set(special.values())
            output.append(min(allowed))
            assert matcher.extend(output[-1:]) == 1
        assert tokenizer.decode(output) == choice


@settings(max_examples=100, deadline=None, derandomize=True)
@given(choices=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4))
def test_choices_stand_for_themselves(choices: list[str]) -> None:
    """No character of a choice has a meaning in the pattern that is made of them."""
    grammar = choice_grammar(choices)
    for choice in choices:
        matcher = BYTES.matcher(grammar, prompt_length=0, end_ids=[EOS_ID])
        spelt = [*choice.encode(), EOS_ID]
        assert matcher.extend(spelt) == len(spelt)
    matcher = BYTES.matcher(grammar, prompt_length=0, end_ids=[EOS_ID])
    wrong = "".join(choices) + "x"
    assert matcher.extend([*wrong.encode(), EOS_ID]) < len(wrong.encode()) + 1


# --- where a matcher stands --------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    committed=st.lists(st.integers(0, 20), max_size=6),
    drafts=st.lists(st.integers(-1, VOCAB), max_size=8),
    follows=st.booleans(),
)
def test_each_row_has_the_mask_of_its_own_prefix(
    committed: list[int], drafts: list[int], follows: bool
) -> None:
    """As matchers made anew have it; trying drafts, right ones or wrong ones, moves nothing."""
    grammar = regex_grammar(PATTERN)
    output = legal_walk(grammar, committed)
    if follows:
        drafts = legal_walk(grammar, committed + drafts)[len(output) :]
    matcher = matcher_of(grammar, output)
    num_rows = len(drafts) + 1
    rows = matcher.masks(drafts, num_rows)
    assert len(rows) == num_rows
    for index, row in enumerate(rows):
        prefix = [*output, *drafts[:index]]
        fresh = ENGINE.matcher(grammar, prompt_length=5, end_ids=[END])
        if fresh.extend(prefix) == len(prefix) and END not in prefix:
            assert torch.equal(fresh.mask(), row)
        else:
            assert row is None
    assert matcher.length == 5 + len(output)
    assert torch.equal(matcher.mask(), matcher_of(grammar, output).mask())
    assert all(map(same, matcher.masks(drafts, num_rows), rows))


def legal_walk(grammar: str, picks: Sequence[int]) -> list[int]:
    """An output of the grammar: each number picks one of the ids that its mask allows."""
    matcher = matcher_of(grammar)
    output: list[int] = []
    for pick in picks:
        allowed = sorted(ids_of(matcher.mask()) - {END})
        if allowed:
            output.append(allowed[pick % len(allowed)])
            matcher.extend(output[-1:])
    return output


def same(left: Tensor | None, right: Tensor | None) -> bool:
    return left is right is None or (
        left is not None and right is not None and torch.equal(left, right)
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("truncate"), st.integers(0, 8)),
            st.tuples(st.just("extend"), st.integers(0, 20)),
            st.tuples(st.just("refuse"), st.integers(-1, VOCAB + 1)),
        ),
        max_size=25,
    )
)
def test_extending_and_truncating_leads_where_the_tokens_say(steps: list[tuple[str, int]]) -> None:
    """Rollback is truncation; "e", which nothing spells, makes dead ends on the way."""
    grammar = regex_grammar("((ab|ba)(c|dd)?(de)?)*d{3}")
    matcher = matcher_of(grammar)
    output: list[int] = []
    for step, number in steps:
        if step == "truncate":
            output = output[:number]
            matcher.truncate(5 + number)
        elif step == "extend":
            allowed = sorted(ids_of(matcher.mask()) - {END})
            if allowed:
                output.append(allowed[number % len(allowed)])
                assert matcher.extend(output[-1:]) == 1
        elif not 0 <= number < END:
            assert matcher.extend([number]) == (number == END and END in ids_of(matcher.mask()))
        assert matcher.length == 5 + len(output)
        assert torch.equal(matcher.mask(), matcher_of(grammar, output).mask())


def test_a_dead_end_allows_nothing_and_can_be_left_again() -> None:
    """llguidance would allow the end there, and never leave its error state."""
    matcher = matcher_of(regex_grammar("ae|bcd"))
    before = ids_of(matcher.mask())
    assert matcher.extend([A]) == 1
    assert ids_of(matcher.mask()) == set()
    assert matcher.extend([B]) == matcher.extend([END]) == 0
    matcher.truncate(5)
    assert ids_of(matcher.mask()) == before
    assert matcher.masks([A, B, C], 4)[1:] == (None, None, None)
    assert matcher.extend([B, C, D, END]) == 4


def test_a_place_beyond_the_librarys_limits_allows_nothing() -> None:
    """What would take too long is an error of its session, not a stalled worker."""
    matcher = BYTES.matcher(regex_grammar("(a?){500}a{500}"), prompt_length=0, end_ids=[EOS_ID])
    assert ids_of(matcher.mask()) == {ord("a")}
    assert matcher.extend([ord("a")]) == 0
    assert not matcher.mask().any()
    assert matcher.problem == "lexer error: too many expressions constructed"
    matcher.truncate(0)
    assert ids_of(matcher.mask()) == {ord("a")}


# --- a mask meets a row of logits --------------------------------------------------------------


@pytest.mark.parametrize("num_columns", [VOCAB - 3, VOCAB, VOCAB + 50])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_columns_beyond_the_vocabulary_are_never_produced(
    temperature: float, num_columns: int
) -> None:
    """Heads are padded and drafters may know fewer ids; a column is the id of its index."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, num_columns, generator=generator)
    logits[:, VOCAB:] += 100.0
    params = SamplingParams(temperature=temperature, logit_bias=((C, 50.0),))
    mask = matcher_of(regex_grammar("(a|b|ab)*")).mask()
    rows = [
        RowContext(params, [1], 1, mask=mask),
        RowContext(params, [1], 1),
        RowContext(params, [1], 1, mask=torch.tensor([False, True])),
    ]
    probs = target_probs(logits, rows)
    allowed = {A, B, SYLLABLES.index("ab"), SYLLABLES.index("ba"), END} & set(range(num_columns))
    assert set(probs[0].nonzero().flatten().tolist()) <= allowed
    if temperature:
        expected = torch.full((num_columns,), float("-inf"))
        expected[sorted(allowed)] = logits[0, sorted(allowed)]
        torch.testing.assert_close(probs[0], expected.softmax(0))
    assert ids_of(probs[2] > 0) == {B}
    assert probs[1, C] > 0 or num_columns > VOCAB


def test_a_mask_that_leaves_nothing_names_the_grammar() -> None:
    """Instead of a law over nothing."""
    row = RowContext(SamplingParams(), [1], 1, mask=torch.zeros(VOCAB, dtype=torch.bool))
    with pytest.raises(InvalidArgumentError, match=r"^grammar: "):
        target_probs(torch.zeros(1, VOCAB), [row])


# --- what cannot be guided ---------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_is_guided_or_says_that_it_cannot_be(family: str) -> None:
    """Byte-level and byte-fallback tokenizers can; whatever the family, nothing crashes."""
    tokenizer = Tokenizer(FAMILIES[family]())
    engine = GrammarEngine(tokenizer)
    problem = engine.problem(regex_grammar("a|b"))
    if problem:
        assert problem.startswith("the model's tokenizer cannot be guided: can't determine decoder")
        with pytest.raises(InvalidArgumentError, match=r"^grammar: .* cannot be guided"):
            engine.matcher(regex_grammar("a|b"), prompt_length=1, end_ids=[2])
        assert family not in ("byte", "byte_level_bpe", "llama_style", "gemma_style")
        return
    matcher = engine.matcher(regex_grammar("a|b"), prompt_length=1, end_ids=[2])
    mask = matcher.mask()
    assert len(mask) == tokenizer.vocab_size
    assert {tokenizer.decode([token_id]) for token_id in ids_of(mask)} == {"a", "b"}


def test_what_nothing_can_match_is_told_before_anything_is_opened() -> None:
    """The reason is the library's, in one line."""
    assert ENGINE.problem(regex_grammar("a")) == ""
    assert ENGINE.problem(regex_grammar("e")) == "no token of the vocabulary goes on here"
    assert ENGINE.problem(regex_grammar("(a")) == "unclosed group"
    assert "look-around" in ENGINE.problem(regex_grammar("(?=a)b"))
    assert "Unimplemented keys" in ENGINE.problem(schema_grammar({"not": {}}))
    for grammar in ("nonsense", "{}", ""):
        problem = ENGINE.problem(grammar)
        assert problem
        assert "\n" not in problem
        with pytest.raises(InvalidArgumentError, match=r"^grammar: "):
            ENGINE.matcher(grammar, prompt_length=0, end_ids=[END])


def test_a_vocabulary_without_special_tokens_cannot_be_guided() -> None:
    """Nothing could stand for the end."""
    tokenizer = small_tokenizer()
    tokenizer.special_token_ids.clear()
    engine = GrammarEngine(tokenizer)
    assert "no special token" in engine.problem(regex_grammar("a"))


@pytest.mark.parametrize("keyword", ["lenient", "nonsense"])
def test_nothing_of_a_schema_is_silently_ignored(keyword: str) -> None:
    """Not even when the schema itself asks for that."""
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {keyword: True}}
    assert BYTES.problem(schema_grammar({"type": "array"})) == ""
    assert BYTES.problem(schema_grammar(schema)).startswith(("Unimplemented", "unknown field"))
