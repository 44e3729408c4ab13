"""Guided sessions when things go wrong: lost workers, dead ends, requests that cannot be met."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import EOS_ID, build_byte_tokenizer
from support.pipeline import Pipeline, outputs, verdicts
from support.small_tokenizer import END, small_tokenizer

from drafter_service.ngram import NgramDrafter
from orchestrator.relay import Relay
from paceline.config import NgramConfig
from paceline.errors import InvalidArgumentError
from paceline.runtime.grammar import GrammarEngine, GrammarMatcher
from paceline.runtime.grammar_text import regex_grammar
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import FinishReason

TOKENIZER = small_tokenizer()
VOCAB = TOKENIZER.vocab_size
ENGINE = GrammarEngine(TOKENIZER)
TARGET = hashed_script(VOCAB, seed=8)
GREEDY = SamplingParams(temperature=0, max_tokens=20)
A, B, C, D = range(4)


def half_right(history: Sequence[int]) -> torch.Tensor:
    agrees = hash(tuple(history[-2:])) % 2
    return TARGET(history) if agrees else hashed_script(VOCAB, seed=6)(history)


def prefers(*likings: int) -> ScriptedRunner:
    """Likes these ids, the first most, whatever came before."""
    logits = torch.zeros(VOCAB)
    for place, token_id in enumerate(likings):
        logits[token_id] = 10.0 - place
    return ScriptedRunner(lambda history: logits, vocab_size=VOCAB)


def run(pipeline: Pipeline, grammar: str, sampling: SamplingParams = GREEDY) -> Relay:
    relay = pipeline.open([A, B], sampling, grammar=grammar)
    pipeline.run()
    return relay


def guided(target: ScriptedRunner, drafter: ScriptedRunner | NgramDrafter | None) -> Pipeline:
    return Pipeline(target, drafter, eos_token_ids=[END], grammar=ENGINE)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    choices=st.lists(st.integers(0, 9), min_size=20, max_size=150),
    losses=st.dictionaries(
        st.integers(0, 60), st.sampled_from(["drafter", "verifier"]), max_size=3
    ),
    seed=st.integers(0, 5),
    window=st.integers(1, 9),
    acceptance=st.sampled_from([None, Acceptance.COUPLED]),
)
def test_lost_workers_and_any_order_of_events_change_nothing(
    choices: list[int],
    losses: dict[int, str],
    seed: int,
    window: int,
    acceptance: Acceptance | None,
) -> None:
    """A session that is opened again takes its place in the grammar from what is committed."""
    grammar = regex_grammar("(ab|ba|cd|d(a|b)c)*d{3}")
    sampling = SamplingParams(
        temperature=0.0 if acceptance is None else 1.0,
        acceptance=acceptance or Acceptance.COUPLED,
        seed=seed,
        max_tokens=16,
    )

    async def generate(*, disturbed: bool) -> list[int]:
        pipeline = guided(
            ScriptedRunner(TARGET, vocab_size=VOCAB),
            ScriptedRunner(half_right, vocab_size=VOCAB) if disturbed else None,
        )
        relay = pipeline.open([seed, B], sampling, window=window, grammar=grammar)
        for place, choice in enumerate(choices if disturbed else ()):
            possible = pipeline.hops()
            worker = pipeline.verifier if losses.get(place) == "verifier" else pipeline.drafter
            if place in losses and worker is not None:
                worker.lose()
                worker.restore()
            elif possible:
                possible[choice % len(possible)]()
            else:
                pipeline.now += 0.01
            for _ in range(5):
                await asyncio.sleep(0)
        pipeline.run()
        assert pipeline.target.pool.used_pages == 0
        return outputs(relay)

    expected = asyncio.run(generate(disturbed=False))
    assert asyncio.run(generate(disturbed=True)) == expected


# --- dead ends: no token of the vocabulary spells "e" ------------------------------------------


@pytest.mark.parametrize("acceptance", [None, *Acceptance])
def test_a_draft_into_a_dead_end_is_only_a_rejected_draft(acceptance: Acceptance | None) -> None:
    """What the target would not say cannot end its session, whoever drafts it."""
    grammar = regex_grammar("ae|bcd")
    sampling = (
        GREEDY
        if acceptance is None
        else SamplingParams(temperature=0.2, acceptance=acceptance, max_tokens=20)
    )
    target = prefers(B, C, D, END)
    for drafter in (prefers(A), prefers(A, B), NgramDrafter(NgramConfig(min_match=1)), None):
        relay = run(guided(target, drafter), grammar, sampling)
        assert TOKENIZER.decode(outputs(relay)) == "bcd"
        assert verdicts(relay)[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("acceptance", [None, *Acceptance])
def test_a_dead_end_of_the_output_is_a_clear_error(acceptance: Acceptance | None) -> None:
    """No hang, no end that is no match: what led there was delivered, and then the error."""
    grammar = regex_grammar("cae|cbcd")
    sampling = (
        GREEDY
        if acceptance is None
        else SamplingParams(temperature=0.1, acceptance=acceptance, max_tokens=20)
    )
    for drafter in (prefers(C, A), prefers(A), None):
        pipeline = guided(prefers(A, C), drafter)
        relay = run(pipeline, grammar, sampling)
        with pytest.raises(InvalidArgumentError, match=r"^grammar: no token of the vocabulary"):
            verdicts(relay)
        assert outputs(relay) == [C, A]
        assert pipeline.target.pool.used_pages == 0
        assert pipeline.verifier_engine.describe().live_sessions == 0


def test_a_grammar_that_no_end_id_can_end_is_a_clear_error() -> None:
    """A complete output must end; without an end id it cannot."""
    pipeline = Pipeline(prefers(A, B), prefers(A, B), grammar=ENGINE)
    relay = run(pipeline, regex_grammar("ab"))
    with pytest.raises(InvalidArgumentError, match=r"^grammar:"):
        verdicts(relay)


def test_a_grammar_that_refuses_what_it_allowed_ends_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No pass would take it any further, and the next one begin at once."""
    pipeline = Pipeline(prefers(A, B), None, eos_token_ids=[END], grammar=ENGINE)
    with monkeypatch.context() as patch:
        patch.setattr(GrammarMatcher, "_take", lambda _self, _token_id: False)
        relay = run(pipeline, regex_grammar("(ab)*"))
    with pytest.raises(InvalidArgumentError, match=r"^grammar: .* cannot be spelt"):
        verdicts(relay)
    assert pipeline.target.pool.used_pages == 0
    assert pipeline.verifier_engine.describe().live_sessions == 0


def test_a_grammar_that_becomes_too_complex_ends_its_session() -> None:
    """The library's bounds on work keep a pass short; the session learns the reason."""
    tokenizer = Tokenizer(build_byte_tokenizer())
    script = hashed_script(tokenizer.vocab_size, seed=2)
    for drafter in (None, ScriptedRunner(script, vocab_size=tokenizer.vocab_size)):
        pipeline = Pipeline(
            ScriptedRunner(script, vocab_size=tokenizer.vocab_size),
            drafter,
            eos_token_ids=[EOS_ID],
            grammar=GrammarEngine(tokenizer),
        )
        relay = run(pipeline, regex_grammar("(a?){500}a{500}"))
        with pytest.raises(InvalidArgumentError, match=r"^grammar: .*too many expressions"):
            verdicts(relay)
        assert pipeline.target.pool.used_pages == 0


def test_a_stop_id_within_the_grammar_ends_the_output_there() -> None:
    """It is text like any other to the grammar, and an end to the session."""
    sampling = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=(C, D))
    relay = run(guided(prefers(C, A, B), prefers(C, A, B)), regex_grammar("(ab){3}cd"), sampling)
    assert TOKENIZER.decode(outputs(relay)) == "abababc"
    assert verdicts(relay)[-1].finish_reason is FinishReason.STOP


# --- what a worker refuses ---------------------------------------------------------------------


def test_a_verifier_without_grammars_refuses_a_guided_session() -> None:
    """Never an unguided output in its stead."""
    relay = run(Pipeline(prefers(A), None, eos_token_ids=[END]), regex_grammar("a"))
    with pytest.raises(InvalidArgumentError, match=r"^grammar: this verifier guides no output"):
        verdicts(relay)


def test_a_bad_grammar_ends_its_own_session_with_the_reason() -> None:
    """It cannot come from our orchestrator; a neighbour does not notice."""
    pipeline = guided(prefers(A, B), prefers(A, B))
    bad = pipeline.open([A], GREEDY, grammar="nonsense")
    good = pipeline.open([A], GREEDY, grammar=regex_grammar("ab"))
    pipeline.run()
    with pytest.raises(InvalidArgumentError, match=r"^grammar: .*Expected token"):
        verdicts(bad)
    assert TOKENIZER.decode(outputs(good)) == "ab"


def test_committed_tokens_that_do_not_fit_the_grammar_are_refused() -> None:
    """A session opened again must continue what it was."""
    pipeline = guided(prefers(A), None)
    relay = pipeline.open([A], GREEDY, grammar=regex_grammar("ab"))
    pipeline.verifier.events.clear()
    relay.session.tokens += [B]
    assert pipeline.verifier.role == "verifier"
    relay._open_verifier(pipeline.router.verifier())
    pipeline.run()
    with pytest.raises(InvalidArgumentError, match=r"^token_ids: .* does not fit the grammar"):
        verdicts(relay)
