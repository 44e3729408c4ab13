"""A request is checked field by field before anything is opened, and completed from defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.byte_tokenizer import build_byte_tokenizer
from support.pipeline import worker_info

from orchestrator.affinity import BLOCK_TOKENS, prefix_keys
from orchestrator.prompt import CHARACTERS_PER_TOKEN, MAX_BAD_WORD_LENGTH, MAX_BAD_WORDS
from orchestrator.request import (
    MAX_CACHE_KEY,
    MAX_WINDOW,
    GenerationRequest,
    complete_request,
)
from orchestrator.request import MAX_SPECULATIVE_TOKENS as LONGEST
from orchestrator.stop_strings import MAX_STOP_LENGTH, MAX_STOPS
from paceline.config import OrchestratorConfig, SpeculationConfig
from paceline.errors import InvalidArgumentError
from paceline.generation import GenerateCall
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import MAX_SEED, Acceptance, DraftProbsFormat, SamplingParams

CONTEXT = 64
TOKENIZER = Tokenizer(build_byte_tokenizer())
GRAMMAR = GrammarEngine(TOKENIZER)
VOCAB = TOKENIZER.vocab_size
TARGET = replace(worker_info("verifier", VOCAB), context_length=CONTEXT)
CALL = GenerateCall(
    prompt="",
    messages=(),
    token_ids=(1, 2, 3),
    sampling=SamplingParams(),
    gives_max_tokens=False,
    gives_seed=False,
    speculation=None,
    window=None,
    num_speculative_tokens=None,
    num_outcome_tokens=None,
    stop=(),
    include_stop_in_output=False,
    bad_words=(),
)


def complete(
    config: OrchestratorConfig | None = None,
    *,
    max_message_bytes: int = 4 * 1024 * 1024,
    **changes: Any,
) -> GenerationRequest:
    return complete_request(
        replace(CALL, **changes),
        tokenizer=TOKENIZER,
        grammar=GRAMMAR,
        target=TARGET,
        config=config or OrchestratorConfig(),
        max_message_bytes=max_message_bytes,
    )


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing to continue": ({"token_ids": ()}, "prompt: exactly one of"),
    "two prompts": ({"prompt": "a"}, "prompt: exactly one of"),
    "an id below 0": ({"token_ids": (1, -1)}, "token_ids: id -1 at position 1 is outside [0, 258)"),
    "an id too large": ({"token_ids": (VOCAB,)}, "token_ids: id 258 at position 0"),
    "a prompt without room": ({"token_ids": (1,) * CONTEXT}, "token_ids: 64 tokens leave no room"),
    "a text without room": (
        {"token_ids": (), "prompt": "a" * CONTEXT},
        "prompt: 64 tokens leave no room to generate: the context length is 64",
    ),
    "a text too long to encode": (
        {"token_ids": (), "prompt": "a" * (CHARACTERS_PER_TOKEN * CONTEXT + 1)},
        "prompt: 2049 characters; at most 2048",
    ),
    "a message without a role": (
        {"token_ids": (), "messages": ({"role": "", "content": "a"},)},
        "messages: message 0 has no role",
    ),
    "messages without a template": (
        {"token_ids": (), "messages": ({"role": "user", "content": "a"},)},
        "messages: the model has no chat template",
    ),
    "max_tokens that do not fit": (
        {"sampling": SamplingParams(max_tokens=62), "gives_max_tokens": True},
        "max_tokens: 62 is above the 61 tokens that the context of 64 leaves after a prompt of 3",
    ),
    "min_tokens that do not fit": (
        {"sampling": SamplingParams(min_tokens=70)},
        "min_tokens: must not exceed max_tokens (61), got 70",
    ),
    "window 0": ({"window": 0}, "window: 0 is outside 1 to 256"),
    "a negative window": ({"window": -1}, "window: -1 is outside 1 to 256"),
    "a window too large": ({"window": MAX_WINDOW + 1}, "window: 257 is outside 1 to 256"),
    "block 0": (
        {"num_speculative_tokens": 0},
        f"num_speculative_tokens: 0 is outside 1 to {LONGEST}",
    ),
    "a block too large": (
        {"num_speculative_tokens": LONGEST + 1},
        f"num_speculative_tokens: {LONGEST + 1} is outside 1 to {LONGEST}",
    ),
    "no answer": ({"n": 0}, "n: 0 is outside 1 to "),
    "answers too many": ({"n": 9999}, "n: 9999 is outside 1 to "),
    "an empty stop string": ({"stop": ("a", "")}, "stop: string 1 is empty"),
    "a stop string too long": ({"stop": ("a" * (MAX_STOP_LENGTH + 1),)}, "stop: string 0 has 1025"),
    "stop strings too many": ({"stop": ("a",) * (MAX_STOPS + 1)}, "stop: 65 strings; at most 64"),
    "a cache key too long": (
        {"prompt_cache_key": "k" * (MAX_CACHE_KEY + 1)},
        "prompt_cache_key: 257 characters, the limit is 256",
    ),
    "an empty bad word": ({"bad_words": (" ",)}, "bad_words: word 0 is empty"),
    "a bad word too long": (
        {"bad_words": ("a" * (MAX_BAD_WORD_LENGTH + 1),)},
        "bad_words: word 0 has 257 characters; at most 256",
    ),
    "bad words of many tokens": (
        {"bad_words": tuple(f"{index:03}" + "ab" * 45 for index in range(MAX_BAD_WORDS))},
        "bad_words: in tokens, ",
    ),
    "bad words too many": ({"bad_words": ("a",) * (MAX_BAD_WORDS + 1)}, "bad_words: 257 words"),
    "a stop id outside": (
        {"sampling": SamplingParams(stop_token_ids=(VOCAB,))},
        "stop_token_ids: token ids must be below the vocabulary size 258, got 258",
    ),
    "a bias outside": ({"sampling": SamplingParams(logit_bias=((999, 1.0),))}, "logit_bias: "),
    "an allowed id outside": (
        {"sampling": SamplingParams(allowed_token_ids=(999,))},
        "allowed_token_ids: ",
    ),
    "a banned id outside": (
        {"sampling": SamplingParams(bad_words_token_ids=((999,),))},
        "bad_words_token_ids: ",
    ),
    "nothing left to say": (
        {"sampling": SamplingParams(allowed_token_ids=(97,)), "bad_words": ("a",)},
        "allowed_token_ids: contradicts bad_words_token_ids",
    ),
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_wrong_field_is_refused_by_its_name_and_limit(problem: str) -> None:
    changes, message = WRONG[problem]
    with pytest.raises(InvalidArgumentError) as caught:
        complete(**changes)
    assert str(caught.value).startswith(message)


def test_every_default_comes_from_the_configuration() -> None:
    speculation = SpeculationConfig(
        num_speculative_tokens=3, window=9, draft_top_k=5, adaptive=False
    )
    config = OrchestratorConfig(speculation=speculation, commit_credit=99, failover_timeout_s=7)
    request = complete(config)
    settings = request.settings
    assert (settings.window, settings.num_speculative_tokens, settings.draft_top_k) == (9, 3, 5)
    assert (settings.commit_credit, settings.failover_timeout_s) == (99, 7)
    assert (settings.speculation, settings.reproducible) == (True, False)
    assert not settings.adaptive
    assert (request.prompt, request.stops, request.includes_stop) == ((1, 2, 3), None, False)


def test_what_the_call_gives_goes_before_defaults() -> None:
    request = complete(
        window=MAX_WINDOW,
        num_speculative_tokens=LONGEST,
        speculation=False,
        stop=["x"],
        include_stop_in_output=True,
    )
    settings = request.settings
    assert (settings.window, settings.num_speculative_tokens) == (256, LONGEST)
    assert not settings.speculation
    assert request.stops is not None
    assert (request.stops.depth, request.includes_stop) == ([0, 1], True)
    assert complete(speculation=True).settings.speculation


def test_the_window_is_adaptive_where_nobody_chose_one() -> None:
    """A06: not under a seed either, whose output would then depend on timing."""
    config = OrchestratorConfig(speculation=SpeculationConfig(max_window=30))
    settings = complete(config).settings
    assert (settings.adaptive, settings.window) == (True, 30)
    short = complete(OrchestratorConfig(speculation=SpeculationConfig(max_window=2))).settings
    assert (short.window, short.start_window, short.num_speculative_tokens) == (2, 2, 2)
    assert not complete(config, window=9).settings.adaptive
    assert not complete(config, num_speculative_tokens=2).settings.adaptive
    assert not complete(config, gives_seed=True).settings.adaptive
    greedy = SamplingParams(temperature=0)
    assert complete(config, gives_seed=True, sampling=greedy).settings.adaptive


def test_a_block_is_no_longer_than_the_window() -> None:
    settings = complete(window=2, num_speculative_tokens=5).settings
    assert (settings.window, settings.num_speculative_tokens) == (2, 2)


@pytest.mark.parametrize("window", [1, 8, 64, 256])
@pytest.mark.parametrize("commit_credit", [8, 80, 256])
def test_the_credit_left_always_has_room_for_a_block(window: int, commit_credit: int) -> None:
    """More is granted once a quarter is used up; until then a whole block must fit, or a pass that
    judges block by block would wait for a grant that never comes."""
    config = OrchestratorConfig(commit_credit=commit_credit)
    settings = complete(config, window=window, num_speculative_tokens=LONGEST).settings
    least_room = settings.commit_credit - (settings.commit_credit // 4 - 1)
    assert settings.num_speculative_tokens <= least_room - 1
    assert settings.commit_credit >= commit_credit


# --- max_tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt_length", "expected"), [(3, 61), (63, 1)])
def test_max_tokens_not_given_is_what_the_context_leaves(prompt_length: int, expected: int) -> None:
    request = complete(token_ids=(1,) * prompt_length)
    assert request.sampling.max_tokens == expected


def test_max_tokens_not_given_is_the_default_where_it_fits() -> None:
    assert complete(sampling=SamplingParams(max_tokens=7)).sampling.max_tokens == 7


def test_max_tokens_that_just_fit_are_taken() -> None:
    """B03: never silently less than asked."""
    sampling = SamplingParams(max_tokens=61)
    assert complete(sampling=sampling, gives_max_tokens=True).sampling.max_tokens == 61


# --- seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "gives_seed", "reproducible"),
    [
        (SamplingParams(temperature=1.0), True, True),
        (SamplingParams(acceptance=Acceptance.BLOCK), True, True),
        (SamplingParams(temperature=1.0), False, False),
        (SamplingParams(temperature=0.0), True, False),
        (SamplingParams(acceptance=Acceptance.COUPLED), True, False),
    ],
)
def test_only_a_seeded_sampled_request_gives_up_speed_for_reproducibility(
    sampling: SamplingParams, gives_seed: bool, reproducible: bool
) -> None:
    """A06: the deterministic rules are reproducible as they are."""
    settings = complete(sampling=sampling, gives_seed=gives_seed).settings
    assert settings.reproducible is reproducible


@pytest.mark.parametrize(("window", "block"), [(12, 5), (7, 7), (3, 9), (1, 1), (255, LONGEST)])
def test_a_reproducible_window_holds_whole_blocks(window: int, block: int) -> None:
    """A06: a partly filled block at its end would depend on timing."""
    settings = complete(gives_seed=True, window=window, num_speculative_tokens=block).settings
    assert settings.window % settings.num_speculative_tokens == 0
    assert 0 < settings.window <= window
    assert settings.window + settings.num_speculative_tokens > window


def test_bad_words_join_the_banned_ids() -> None:
    sampling = SamplingParams(bad_words_token_ids=((5,),))
    banned = complete(sampling=sampling, bad_words=("ab",)).sampling.bad_words_token_ids
    assert banned == ((5,), (97, 98), (32, 97, 98))


def test_the_prompt_is_encoded_once_by_the_targets_tokenizer() -> None:
    """C07: workers get ids, never text."""
    assert complete(token_ids=(), prompt="hi").prompt == (104, 105)


def test_the_router_learns_the_clients_key_and_the_prompts_own_beginning() -> None:
    prompt = tuple(range(BLOCK_TOKENS))
    settings = complete(token_ids=prompt[:60], prompt_cache_key="chat-7").settings
    assert (settings.cache_key, settings.prefix_keys) == ("chat-7", ())
    wide = replace(TARGET, context_length=4 * BLOCK_TOKENS)
    request = complete_request(
        replace(CALL, token_ids=(*prompt, 1)),
        tokenizer=TOKENIZER,
        grammar=GRAMMAR,
        target=wide,
        config=OrchestratorConfig(),
        max_message_bytes=4 * 1024 * 1024,
    )
    assert request.settings.prefix_keys == prefix_keys(prompt)


# --- distributions on the wire --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "configured", "expected"),
    [
        (None, DraftProbsFormat.SPARSE, 64),
        (None, DraftProbsFormat.DENSE, 0),
        (DraftProbsFormat.DENSE, DraftProbsFormat.SPARSE, 0),
        (DraftProbsFormat.NONE, DraftProbsFormat.DENSE, 1),
        (DraftProbsFormat.SPARSE, DraftProbsFormat.DENSE, 64),
    ],
)
def test_the_format_of_draft_distributions_is_the_calls_or_the_default(
    asked: DraftProbsFormat | None, configured: DraftProbsFormat, expected: int
) -> None:
    config = OrchestratorConfig(speculation=SpeculationConfig(draft_probs=configured))
    assert complete(config, draft_probs=asked).settings.draft_top_k == expected


def test_a_block_that_no_message_can_hold_is_refused_before_it_is_made() -> None:
    """G05: a clear error, and the link of all the others survives."""
    dense = {"draft_probs": DraftProbsFormat.DENSE, "max_message_bytes": 8 * 258 * 4}
    with pytest.raises(InvalidArgumentError, match=r"^num_speculative_tokens: 12 draft distrib"):
        complete(num_speculative_tokens=12, **dense)
    assert complete(num_speculative_tokens=2, **dense).settings.num_speculative_tokens == 2
    without = complete(num_speculative_tokens=12, speculation=False, **dense)
    assert not without.settings.speculation


def test_more_answers_than_may_ever_be_live_are_a_wrong_request() -> None:
    """Not an exhausted resource, which a client would wait for."""
    few = OrchestratorConfig(max_sessions=4)
    assert complete(few, n=4).num_answers == 4
    with pytest.raises(InvalidArgumentError, match=r"^n: 5 is outside 1 to 4"):
        complete(few, n=5)


def test_answers_have_consecutive_seeds() -> None:
    """A06: each answer is drawn with its own numbers, and again the same."""
    request = complete(n=3, sampling=SamplingParams(seed=MAX_SEED - 1))
    assert request.num_answers == 3
    seeds = [request.answer_sampling(index).seed for index in range(3)]
    assert seeds == [MAX_SEED - 1, MAX_SEED, 0]
    assert complete().num_answers == 1
