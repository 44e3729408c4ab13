"""What a pass decided is taken as far as its rows had masks, and no further."""

from __future__ import annotations

import pytest
from support.byte_tokenizer import EOS_ID, build_byte_tokenizer
from support.small_tokenizer import END, small_tokenizer

from paceline.errors import InvalidArgumentError, PacelineError
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.grammar_text import regex_grammar
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.acceptance import Judgement
from paceline.sampling.logprobs import Logprobs
from verifier_service.guidance import Guidance

ENGINE = GrammarEngine(small_tokenizer())
A, B, C, D = range(4)
LOGPROBS = tuple(Logprobs(-float(i), (), ()) for i in range(5))


def guidance_of(pattern: str) -> Guidance:
    return Guidance(ENGINE.matcher(regex_grammar(pattern), prompt_length=3, end_ids=[END]))


@pytest.mark.parametrize(
    ("drafts", "judgement"),
    [
        ((A, B), Judgement(2, C, LOGPROBS[:3])),
        ((A, B), Judgement(2, None, LOGPROBS[:2])),
        ((A, D, D), Judgement(1, B, LOGPROBS[:2])),
        ((), Judgement(0, A)),
        ((A, B, C, END, D, D), Judgement(3, END)),
        ((A, B, C, END), Judgement(4, None, LOGPROBS[:4])),
    ],
)
def test_what_fits_is_left_as_it_was_judged(drafts: tuple[int, ...], judgement: Judgement) -> None:
    """Accepted drafts, recovered and bonus tokens, an end."""
    guidance = guidance_of("abc")
    guidance.masks(drafts, len(drafts) + (judgement.next_token is not None))
    assert guidance.settle(judgement, drafts) == judgement


def test_the_next_pass_goes_on_where_the_last_ended() -> None:
    """The matcher has taken just what was settled."""
    guidance = guidance_of("abcd")
    guidance.masks((A, D, D), 4)
    guidance.settle(Judgement(1, B), (A, D, D))
    (mask,) = guidance.masks((), 1)
    assert mask is not None
    assert set(mask.nonzero().flatten().tolist()) == {C}


def test_rows_after_a_dead_end_decide_nothing() -> None:
    """No token spells "e": what follows "a" was judged without a mask."""
    guidance = guidance_of("ae|bcd")
    drafts = (A, B, C)
    masks = guidance.masks(drafts, 4)
    assert [mask is None for mask in masks] == [False, True, True, True]
    settled = guidance.settle(Judgement(3, D, LOGPROBS[:4]), drafts)
    assert settled == Judgement(1, None, LOGPROBS[:1])
    (mask,) = guidance.masks((), 1)
    assert mask is not None
    assert not mask.any()
    error = guidance.explained(PacelineError("the masks leave no token"))
    assert isinstance(error, InvalidArgumentError)
    assert str(error) == "grammar: no token of the vocabulary goes on here"


def test_a_row_that_was_too_complex_to_mask_decides_nothing() -> None:
    """What a free target said there may well fit the grammar, and yet has not the masked law."""
    engine = GrammarEngine(Tokenizer(build_byte_tokenizer()))
    grammar = regex_grammar("(a?){500}a{500}")
    guidance = Guidance(engine.matcher(grammar, prompt_length=0, end_ids=[EOS_ID]))
    drafts = (ord("a"), ord("a"))
    masks = guidance.masks(drafts, 3)
    assert [mask is None for mask in masks] == [False, True, True]
    assert guidance.settle(Judgement(2, ord("a")), drafts) == Judgement(1, None)


def test_an_end_that_was_drafted_ends_the_masks() -> None:
    """What stands behind it is cut by the session."""
    guidance = guidance_of("a*")
    drafts = (A, END, A)
    masks = guidance.masks(drafts, 4)
    assert [mask is None for mask in masks] == [False, False, True, True]
    assert guidance.settle(Judgement(3, A), drafts) == Judgement(2, None)


def test_an_error_that_has_nothing_to_do_with_the_grammar_stays_as_it_is() -> None:
    """Only a grammar that cannot go on explains anything."""
    guidance = guidance_of("a*")
    guidance.masks((), 1)
    error = PacelineError("the model's logits are not finite numbers")
    assert guidance.explained(error) is error
