"""Under a grammar the output is exactly the masked target's own, whoever drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import EOS_ID, build_byte_tokenizer
from support.pipeline import Pipeline, cascade_of, outputs, verdicts, worker_info
from support.pipeline import reference as free_reference
from support.small_tokenizer import END, small_tokenizer

from drafter_service.drafter import Drafter
from drafter_service.model import ModelDrafter
from drafter_service.ngram import NgramDrafter
from orchestrator.relay import Relay
from paceline.config import NgramConfig, RuntimeConfig, TreeConfig
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.grammar_text import choice_grammar, regex_grammar, schema_grammar
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.runtime.tokenizer import Tokenizer
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


def branching(grammar: GrammarEngine | None) -> ModelDrafter:
    """A drafter of trees."""
    runner = ScriptedRunner(half_right, vocab_size=VOCAB)
    info, tree = worker_info("model", VOCAB), TreeConfig(max_children=3, doubt=1.0)
    return ModelDrafter(runner, RuntimeConfig(), info, grammar, tree)


DRAFTERS: dict[str, Callable[[], Drafter | ScriptedRunner | None]] = {
    "oracle": lambda: ScriptedRunner(TARGET, vocab_size=VOCAB),
    "half right": lambda: ScriptedRunner(half_right, vocab_size=VOCAB),
    "oracle without grammar": lambda: unguided(TARGET),
    "half right without grammar": lambda: unguided(half_right),
    "trees": lambda: branching(ENGINE),
    "trees without grammar": lambda: branching(None),
    "ngram": lambda: NgramDrafter(NgramConfig(min_match=1, max_match=3)),
    "cascade": lambda: cascade_of(
        ScriptedRunner(half_right, vocab_size=VOCAB), 1, 3, grammar=ENGINE
    ),
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


@pytest.mark.parametrize("window", [1, 4, 12])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("seed", range(6))
def test_coupled_output_is_the_masked_targets_own(seed: int, name: str, window: int) -> None:
    """A function of prompt, parameters, seed and grammar alone."""
    sampling = SamplingParams(max_tokens=24, seed=seed, acceptance=Acceptance.COUPLED)
    pipeline = guided(name)
    relay = pipeline.open(PROMPT, sampling, window=window, grammar=LONG)
    pipeline.run()
    assert outputs(relay) == reference(LONG, sampling)
    if name == "oracle":
        assert relay.session.counts.judged == relay.session.counts.accepted


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("acceptance", Acceptance)
def test_sampled_output_matches_unless_it_is_cut(acceptance: Acceptance, name: str) -> None:
    """Every rule, every drafter: a complete output matches as a whole, a cut one begins a match."""
    pattern = "(a|b){1,4}(cd|dd){0,3}d"
    pipeline = guided(name)
    relays = [
        pipeline.open(
            PROMPT,
            SamplingParams(max_tokens=5, seed=seed, acceptance=acceptance),
            window=1 + seed % 9,
            grammar=regex_grammar(pattern),
        )
        for seed in range(30)
    ]
    pipeline.run()
    reasons = [verdicts(relay)[-1].finish_reason for relay in relays]
    for relay, reason in zip(relays, reasons, strict=True):
        if reason is FinishReason.STOP:
            assert outputs(relay)[-1] == END
            assert re.fullmatch(pattern, text_of(relay))
        else:
            assert re.fullmatch("(a|b){0,4}(cd|dd){0,3}[cd]?", text_of(relay))
    assert 3 < reasons.count(FinishReason.STOP) < 27


def test_a_choice_is_one_of_the_choices() -> None:
    """Also where one choice begins another."""
    choices = ["a", "ab", "abcd", "dd"]
    pipeline = guided("half right")
    relays = [
        pipeline.open([seed % VOCAB], SamplingParams(seed=seed), grammar=choice_grammar(choices))
        for seed in range(60)
    ]
    pipeline.run()
    assert {"a", "abcd"} <= {text_of(relay) for relay in relays} <= set(choices)


def test_a_grammar_costs_no_acceptance_where_both_sides_apply_it() -> None:
    """Without it, a drafter as good as the target itself proposes what the grammar forbids."""
    sampling = replace(GREEDY, max_tokens=60)
    grammar = regex_grammar("((a|b)(c|d)){20,50}")
    guiding, ignoring = guided("oracle"), guided("oracle without grammar")
    relay = guiding.open(PROMPT, sampling, grammar=grammar)
    other = ignoring.open(PROMPT, sampling, grammar=grammar)
    guiding.run()
    ignoring.run()
    assert outputs(relay) == outputs(other) == reference(grammar, sampling)
    counts = relay.session.counts
    assert counts.judged == counts.accepted > 25
    assert other.session.counts.accepted < 0.5 * other.session.counts.judged


def test_rows_with_and_without_a_grammar_share_a_pass() -> None:
    """E01: what one session may not say, its neighbours may."""
    pipeline = guided("half right")
    grammars = [LONG, "", regex_grammar("(dd|a)*"), ""]
    relays = [pipeline.open(PROMPT, GREEDY, grammar=grammar) for grammar in grammars]
    pipeline.run()
    free = free_reference(TARGET, PROMPT, GREEDY.max_tokens, ends=[END])
    for grammar, relay in zip(grammars, relays, strict=True):
        assert outputs(relay) == (reference(grammar, GREEDY) if grammar else free)


@pytest.mark.parametrize("name", ["oracle", "none"])
def test_log_probabilities_are_those_before_the_mask(name: str) -> None:
    """They are the target's own, whatever the grammar forbids."""
    sampling = replace(GREEDY, logprobs=2)
    pipeline = guided(name)
    relay = pipeline.open(PROMPT, sampling, grammar=LONG)
    pipeline.run()
    tokens = list(PROMPT)
    for verdict in verdicts(relay):
        for token_id, entry in zip(verdict.token_ids, verdict.logprobs, strict=True):
            raw = TARGET(tokens).log_softmax(0)
            assert entry.logprob == pytest.approx(float(raw[token_id]))
            assert entry.top_token_ids[0] == int(raw.argmax())
            tokens.append(token_id)
    assert len(tokens) == len(PROMPT) + len(outputs(relay))


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "yy", None]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.mark.parametrize("acceptance", Acceptance)
def test_a_schema_gives_json_that_it_admits(acceptance: Acceptance) -> None:
    """From random logits over bytes, drafts included."""
    tokenizer = Tokenizer(build_byte_tokenizer())
    script = hashed_script(tokenizer.vocab_size, seed=2)
    pipeline = Pipeline(
        ScriptedRunner(script, vocab_size=tokenizer.vocab_size),
        ScriptedRunner(script, vocab_size=tokenizer.vocab_size),
        eos_token_ids=[EOS_ID],
        grammar=GrammarEngine(tokenizer),
    )
    relays = [
        pipeline.open(
            [65, 66],
            SamplingParams(max_tokens=200, seed=seed, acceptance=acceptance),
            grammar=schema_grammar(SCHEMA),
        )
        for seed in range(4)
    ]
    pipeline.run()
    for relay in relays:
        assert verdicts(relay)[-1].finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(tokenizer.decode(outputs(relay))), SCHEMA)
