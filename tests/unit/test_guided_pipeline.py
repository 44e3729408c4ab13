"""Under a grammar the output is exactly the masked target's own, whoever drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import Pipeline, outputs, verdicts, worker_info
from support.small_tokenizer import END, small_tokenizer

from drafter_service.drafter import Drafter
from drafter_service.model import ModelDrafter
from drafter_service.ngram import NgramDrafter
from orchestrator.relay import Relay
from paceline.config import NgramConfig, RuntimeConfig
from paceline.errors import InvalidArgumentError
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.grammar_text import choice_grammar, regex_grammar
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.coupled import coupled_tokens
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.probabilities import RowContext, target_weights
from paceline.types import FinishReason

TOKENIZER = small_tokenizer()
VOCAB = TOKENIZER.vocab_size
ENGINE = GrammarEngine(TOKENIZER)
TARGET = hashed_script(VOCAB, seed=5)
PROMPT = [1, 2, 3, END, 0, 4]
GREEDY = SamplingParams(temperature=0, max_tokens=24)

LONG = regex_grammar("(ab|ba|cd|d(a|b)c)*d{3}")


def half_right(history: Sequence[int]) -> torch.Tensor:
    """Agrees with the target at some positions."""
    agrees = hash(tuple(history[-2:])) % 2
    return TARGET(history) if agrees else hashed_script(VOCAB, seed=6)(history)


def unguided(script: Callable[[Sequence[int]], torch.Tensor]) -> ModelDrafter:
    """A drafter that has never heard of grammars."""
    runner = ScriptedRunner(script, vocab_size=VOCAB)
    return ModelDrafter(runner, RuntimeConfig(), worker_info("model", VOCAB))


DRAFTERS: dict[str, Callable[[], Drafter | ScriptedRunner | None]] = {
    "oracle": lambda: ScriptedRunner(TARGET, vocab_size=VOCAB),
    "half right": lambda: ScriptedRunner(half_right, vocab_size=VOCAB),
    "oracle without grammar": lambda: unguided(TARGET),
    "half right without grammar": lambda: unguided(half_right),
    "ngram": lambda: NgramDrafter(NgramConfig(min_match=1, max_match=3)),
    "none": lambda: None,
}


def guided(name: str) -> Pipeline:
    return Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB),
        DRAFTERS[name](),
        eos_token_ids=[END],
        grammar=ENGINE,
    )


def reference(grammar: str, sampling: SamplingParams, prompt: Sequence[int] = PROMPT) -> list[int]:
    """REF: the target alone, a token at a time, each under the mask of a matcher made anew."""
    output: list[int] = []
    while len(output) < sampling.max_tokens and END not in output:
        matcher = ENGINE.matcher(grammar, prompt_length=len(prompt), end_ids=[END])
        assert matcher.extend(output) == len(output)
        tokens = [*prompt, *output]
        row = RowContext(sampling, tokens, len(prompt), (END,), mask=matcher.mask())
        weights = target_weights(TARGET(tokens)[None], [row])
        if sampling.is_greedy:
            output.append(int(weights[0].argmax()))
        else:
            output.append(int(coupled_tokens(weights, [sampling.seed], [len(tokens)])[0]))
    return output


def text_of(relay: Relay) -> str:
    return TOKENIZER.decode(outputs(relay))


LETTERS = st.sampled_from(["a", "b", "c", "d", "ab", "cd"])
PATTERNS = st.recursive(
    LETTERS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        inner.map(lambda pattern: f"({pattern})*"),
        st.tuples(inner, st.integers(0, 2), st.integers(2, 5)).map(
            lambda given: f"({given[0]}){{{given[1]},{given[2]}}}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(pattern=PATTERNS, prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
@pytest.mark.parametrize("window", [1, 4, 12])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_output_is_the_masked_targets_own(
    name: str, window: int, pattern: str, prompt: list[int]
) -> None:
    """Any grammar, drafter and window; also with a drafter that proposes what is forbidden."""
    grammar = regex_grammar(pattern)
    pipeline = guided(name)
    relay = pipeline.open(prompt, GREEDY, window=window, grammar=grammar)
    pipeline.run()
    assert outputs(relay) == reference(grammar, GREEDY, prompt)
    if verdicts(relay)[-1].finish_reason is FinishReason.STOP:
        assert re.fullmatch(pattern, text_of(relay))
    if name == "oracle":
        assert relay.session.counts.judged == relay.session.counts.accepted
    assert pipeline.target.pool.used_pages == 0
