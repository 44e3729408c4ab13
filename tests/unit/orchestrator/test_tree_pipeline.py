"""Drafts that branch, through both engines and the relay: the output is the target's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import Pipeline, outputs, reference, verdicts

from orchestrator.relay import Relay
from paceline.config import TreeConfig, VerifierConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.randomness import gumbel_noise
from paceline.types import FinishReason, Origin

VOCAB = 11
TARGET = hashed_script(VOCAB, seed=1)
OTHER = hashed_script(VOCAB, seed=5)
GREEDY = SamplingParams(temperature=0, max_tokens=40)
TREES = TreeConfig(max_children=3, doubt=1.0)


def near(history: Sequence[int]) -> torch.Tensor:
    """The target's favourites, in another order."""
    return TARGET(history) + 0.8 * OTHER(history)


def pipeline(
    draft: Callable[[Sequence[int]], torch.Tensor] = near, **settings_: object
) -> Pipeline:
    return Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB),
        ScriptedRunner(draft, vocab_size=VOCAB),
        **{"tree": TREES, **settings_},  # type: ignore[arg-type]
    )


def coupled_reference(prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + sampling.max_tokens:
        noise = gumbel_noise(sampling.seed, len(tokens), torch.arange(VOCAB))
        tokens.append(int((TARGET(tokens).double() + noise).argmax()))
    return tokens[len(prompt) :]


def committed_a_pass(relay: Relay) -> float:
    return relay.session.counts.committed / relay.session.counts.passes


@pytest.mark.parametrize("num_speculative_tokens", [1, 2, 4, 8])
@pytest.mark.parametrize("window", [1, 4, 12])
def test_greedy_and_coupled_output_equal_the_target_alone(
    window: int, num_speculative_tokens: int
) -> None:
    """L03, A01: whatever branches, the tokens are those of the target without drafts."""
    services = pipeline()
    coupled = SamplingParams(acceptance=Acceptance.COUPLED, seed=4, max_tokens=40)
    shape = {"window": window, "num_speculative_tokens": num_speculative_tokens}
    relays = [services.open([i, 2, 3], GREEDY, **shape) for i in range(3)]
    seeded = services.open([1, 2, 3], coupled, **shape)
    services.run()

    for i, relay in enumerate(relays):
        assert outputs(relay) == reference(TARGET, [i, 2, 3], 40)
    assert outputs(seeded) == coupled_reference([1, 2, 3], coupled)
    assert services.target.pool.used_pages == 0


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingParams(acceptance=Acceptance.COUPLED, seed=1, max_tokens=80)],
    ids=["greedy", "coupled"],
)
def test_a_tree_commits_more_a_pass_than_a_chain_of_as_many_nodes(
    sampling: SamplingParams,
) -> None:
    """And takes fewer drafting steps for it."""
    found = {}
    for max_children in (1, 3):
        services = pipeline(tree=TreeConfig(max_children=max_children, doubt=1.0))
        relay = services.open(
            [1, 2], replace(sampling, max_tokens=80), window=6, num_speculative_tokens=6
        )
        services.run()
        assert services.drafter is not None
        steps = services.drafter.engine.counters["steps"]
        found[max_children] = (committed_a_pass(relay), steps)

    assert found[3][0] > 1.1 * found[1][0]
    assert found[3][1] < 0.9 * found[1][1]


def test_a_drafter_that_is_sure_drafts_chains_and_keeps_the_pipeline_full() -> None:
    """Nothing is waited for where nothing branches."""

    def sure(history: Sequence[int]) -> torch.Tensor:
        return 30.0 * torch.nn.functional.one_hot(TARGET(history).argmax(), VOCAB).float()

    services = pipeline(sure)
    relay = services.open([1, 2, 3], GREEDY)
    services.run()

    counts = relay.session.counts
    assert outputs(relay) == reference(TARGET, [1, 2, 3], 40)
    assert counts.judged == counts.accepted > 25
    assert counts.epochs == 0


def test_what_is_kept_of_a_path_is_fed_again_on_neither_side() -> None:
    """KV moves: after a verdict the target reads its next token and the new nodes, no more.

    The drafter reads the next token, and the path's last node where that was not fed.
    """
    services = pipeline()
    relay = services.open([1, 2, 3], GREEDY, window=6, num_speculative_tokens=6)
    services.run()

    passes = [chunk for chunks in services.target.passes[1:] for chunk in chunks]
    assert all(fed == rows for fed, rows in passes), "each input but the prompt's gives a row"
    assert services.drafter is not None
    engine = services.drafter.engine
    draft_passes = [chunk for chunks in engine._drafter._runner.passes[1:] for chunk in chunks]
    caught_up = [fed for fed, rows in draft_passes if rows == 1 and fed > 1]
    assert relay.session.counts.accepted > 12
    assert max(caught_up, default=0) <= 2


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_exactly_max_tokens_are_committed(max_tokens: int) -> None:
    """B03: a tree needs no more room in the cache than there is to the session's end."""
    services = pipeline()
    relay = services.open([1, 2], replace(GREEDY, max_tokens=max_tokens), num_speculative_tokens=8)
    services.run()

    assert outputs(relay) == reference(TARGET, [1, 2], max_tokens)
    assert verdicts(relay)[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("position", range(1, 9))
def test_an_end_id_on_the_path_ends_the_output_there(position: int) -> None:
    """B01: nothing behind it is committed, and siblings' ends end nothing."""
    full = reference(TARGET, [1, 2, 3], 40)
    end = full[position]
    services = pipeline(eos_token_ids=[end])
    relay = services.open([1, 2, 3], replace(GREEDY, max_tokens=40), num_speculative_tokens=8)
    services.run()

    assert outputs(relay) == full[: full.index(end) + 1]
    assert verdicts(relay)[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("max_drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("credit", [8, 1000])
def test_a_tree_that_is_judged_in_part_is_pruned_and_nothing_is_lost(
    max_drafts: int, credit: int
) -> None:
    config = VerifierConfig(draft_patience_ms=10, max_drafts_per_pass=max_drafts)
    services = pipeline(verifier_config=config)
    relay = services.open([1, 2, 3], GREEDY, num_speculative_tokens=6, commit_credit=credit)
    for _ in range(40):
        services.run()
        relay.taken(len(outputs(relay)))

    assert outputs(relay) == reference(TARGET, [1, 2, 3], 40)
    assert relay.session.counts.accepted > 0


def test_block_verification_gets_chains() -> None:
    services = pipeline()
    sampling = SamplingParams(acceptance=Acceptance.BLOCK, seed=1, max_tokens=40)
    relay = services.open([1, 2], sampling)
    services.run()

    assert len(outputs(relay)) == 40
    assert services.drafter is not None
    assert relay.session.counts.accepted > 0
    trees = [chunk for chunks in services.drafter.engine._drafter._runner.passes
             for chunk in chunks if chunk[1] > 1]  # fmt: skip
    assert not trees


def test_a_drafter_with_a_shorter_context_branches_up_to_it() -> None:
    """D04 with trees: its cache has no room for nodes beyond."""
    services = Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB),
        ScriptedRunner(near, vocab_size=VOCAB, context_length=32),
        tree=TREES,
    )
    relay = services.open([2] * 20, replace(GREEDY, max_tokens=30), num_speculative_tokens=8)
    services.run()

    assert outputs(relay) == reference(TARGET, [2] * 20, 30)
    assert relay.session.counts.drafted > 4


def test_origins_tell_accepted_recovered_and_bonus_tokens_apart() -> None:
    """A walk that ends at a leaf took all that it was offered; elsewhere a child was rejected."""
    services = pipeline()
    relay = services.open([1, 2, 3], GREEDY, window=4)
    services.run()
    found = [verdict for verdict in verdicts(relay) if verdict.num_judged]
    origins = {verdict.next_origin for verdict in found}

    assert {Origin.RECOVERED, Origin.BONUS} <= origins
    for verdict in found:
        assert len(verdict.token_ids) == verdict.accepted_length + (verdict.next_origin is not None)
        assert verdict.kv_length == verdict.base + len(verdict.token_ids) - 1


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    window=st.integers(1, 9),
    block=st.integers(1, 9),
    seed=st.integers(0, 100),
)
def test_seeded_sampling_gives_the_same_text_whatever_it_shares_passes_with(
    prompt: list[int], window: int, block: int, seed: int
) -> None:
    """Reproducible: the same request alone, and among others."""
    sampling = SamplingParams(temperature=0.8, seed=seed, max_tokens=20)
    texts = []
    block = min(block, window)
    for num_others in (0, 3):
        services = pipeline()
        others = [services.open([i], GREEDY, window=1 + i) for i in range(num_others)]
        relay = services.open(
            prompt,
            sampling,
            window=window - window % block,
            num_speculative_tokens=block,
            reproducible=True,
        )
        services.run()
        texts.append(outputs(relay))
        assert all(len(outputs(other)) == 40 for other in others)

    assert texts[0] == texts[1]
