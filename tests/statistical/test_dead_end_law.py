"""Drafts behind which the request's own masks leave nothing: they change neither law nor text."""

from __future__ import annotations

import pytest
from support.pipeline import Pipeline, outputs, verdicts
from support.transitions import TARGET, p_value

from paceline.config import TreeConfig
from paceline.runtime.scripted import ScriptedRunner, table_script
from paceline.sampling.params import Acceptance, SamplingParams

VOCAB = 5
NEVER = 4
"""What the target never says; behind it every id is banned."""
DRAFT = {
    0: {0: 0.3, 1: 0.2, 2: 0.2, NEVER: 0.3},
    1: {0: 0.2, 1: 0.4, 2: 0.2, NEVER: 0.2},
    2: {0: 0.4, 2: 0.3, 3: 0.1, NEVER: 0.2},
    3: {0: 0.3, 3: 0.3, NEVER: 0.4},
    NEVER: {0: 1.0},
}
MASKS = {
    "allowed_token_ids": tuple(range(VOCAB)),
    "bad_words_token_ids": tuple((NEVER, after) for after in range(VOCAB)),
}
LENGTH = 48
NUM_TEXTS = 60
RULES = [*Acceptance, None]


def pipeline_of(tree: TreeConfig | None = None, *, with_drafter: bool = True) -> Pipeline:
    target, draft = (
        ScriptedRunner(table_script(table, VOCAB), vocab_size=VOCAB)
        for table in (TARGET | {NEVER: {0: 1.0}}, DRAFT)
    )
    return Pipeline(target, draft if with_drafter else None, tree=tree)


def said(pipeline: Pipeline, first: int, sampling: SamplingParams) -> list[int]:
    relay = pipeline.open(
        [first], sampling, window=4, num_speculative_tokens=3, draft_top_k=4, commit_credit=64
    )
    pipeline.run()
    verdicts(relay)
    relay.close()
    return outputs(relay)


@pytest.mark.parametrize("branches", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("acceptance", Acceptance)
def test_what_is_said_follows_the_target(acceptance: Acceptance, branches: bool) -> None:
    pipeline = pipeline_of(TreeConfig(max_children=2) if branches else None)
    texts = []
    for seed in range(NUM_TEXTS):
        sampling = SamplingParams(
            max_tokens=LENGTH,
            acceptance=acceptance,
            seed=seed,
            **MASKS,  # type: ignore[arg-type]
        )
        texts.append(said(pipeline, seed % 4, sampling))
    assert sum(map(len, texts)) == NUM_TEXTS * LENGTH
    assert p_value(texts) > 0.001


@pytest.mark.parametrize("branches", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("rule", [{"temperature": 0}, {"acceptance": Acceptance.COUPLED}], ids=str)
def test_the_text_is_that_without_drafts(rule: dict[str, object], branches: bool) -> None:
    """Where it does not depend on drafts at all."""
    drafted = pipeline_of(TreeConfig(max_children=2) if branches else None)
    alone = pipeline_of(with_drafter=False)
    for seed in range(12):
        sampling = SamplingParams(
            max_tokens=LENGTH,
            seed=seed,
            **MASKS,
            **rule,  # type: ignore[arg-type]
        )
        assert said(drafted, seed % 4, sampling) == said(alone, seed % 4, sampling)
