"""One ragged pass: each trial judged by its own rule, whatever its neighbours."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.errors import InvalidArgumentError, PacelineError
from paceline.sampling.acceptance import Judgement
from paceline.sampling.coupled import coupled_tokens
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.draw import DraftRow, Draw, draw_drafts, stack_draws
from paceline.sampling.judge import judge_pass
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.probabilities import RowContext, target_weights
from paceline.sampling.trial import Trial
from paceline.tree_shape import TreeShape

VOCAB = 30
PROMPT = (3, 1, 4)


def _trial(
    drafts: tuple[int, ...] = (),
    probs: DraftProbs | None = None,
    *,
    bonus: bool = True,
    output: tuple[int, ...] = (),
    epoch: int = 0,
    eos: tuple[int, ...] = (),
    **kw: Any,
) -> Trial:
    return Trial(
        SamplingParams(**kw),
        PROMPT + output,
        len(PROMPT),
        eos,
        drafts,
        probs,
        epoch,
        len(drafts) + bonus,
    )


def _logits(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def _judge(logits: Tensor, *trials: Trial) -> list[Judgement]:
    outcomes = judge_pass(logits, trials)
    assert all(isinstance(outcome, Judgement) for outcome in outcomes)
    return outcomes  # type: ignore[return-value]


def _drafted(length: int, **kw: Any) -> tuple[tuple[int, ...], DraftProbs | None]:
    """A block as a drafter with other logits would propose it."""
    params = SamplingParams(**kw)
    tokens: tuple[int, ...] = ()
    draws: list[Draw] = []
    for row in _logits(length, seed=99):
        context = RowContext(params, PROMPT, len(PROMPT), (), tokens)
        (draw,) = draw_drafts(row.unsqueeze(0), [DraftRow(context, 0, 12)])
        assert isinstance(draw, Draw)
        draws.append(draw)
        tokens += (draw.token_id,)
    return tokens, stack_draws(draws)


def test_greedy_accepts_the_argmax_and_corrects_the_rest() -> None:
    """A01, A03: every draft, the first included, is compared with the target's own token."""
    logits = _logits(4)
    own = logits.argmax(1).tolist()
    wrong = (own[0] + 1) % VOCAB
    assert _judge(logits, _trial(tuple(own[:3]), temperature=0)) == [Judgement(3, own[3])]
    assert _judge(logits, _trial((wrong, *own[1:3]), temperature=0)) == [Judgement(0, own[0])]
    assert _judge(logits[:3], _trial(tuple(own[:3]), bonus=False, temperature=0)) == [
        Judgement(3, None)
    ]


@pytest.mark.parametrize("seed", range(50))
def test_greedy_ignores_the_ratio_of_probabilities(seed: int) -> None:
    """A03: target .3 .5 .2, drafted a with probability .2: b every time."""
    logits = torch.tensor([[0.3, 0.5, 0.2]]).log()
    probs = DraftProbs(None, torch.tensor([[0.2, 0.7, 0.1]]))
    trial = _trial((0,), probs, bonus=False, temperature=0, seed=seed)
    assert _judge(logits, trial) == [Judgement(0, 1)]


def test_every_trial_of_a_mixed_pass_is_judged_as_alone() -> None:
    """E02 in part: trials with and without drafts, of all rules, in one pass."""
    trials = []
    for seed in range(3):
        for acceptance in Acceptance:
            kw: dict[str, Any] = {"seed": seed, "acceptance": acceptance, "top_p": 0.9}
            tokens, probs = _drafted(4, **kw)
            trials += [
                _trial(tokens, probs, epoch=seed, **kw),
                _trial(output=(5, 6), **kw),
                _trial(tokens[:2], probs and probs.rows(0, 2), bonus=False, **kw),
                _trial(tokens, None, **kw, logprobs=2, frequency_penalty=1.0),
            ]
        trials.append(_trial((1, 2), temperature=0, presence_penalty=1.0))
        trials.append(_trial(temperature=0))
    logits = _logits(sum(trial.num_rows for trial in trials), seed=5)
    together = _judge(logits, *trials)
    start = 0
    for trial, judgement in zip(trials, together, strict=True):
        assert _judge(logits[start : start + trial.num_rows], trial) == [judgement]
        start += trial.num_rows


def test_coupled_commits_the_targets_own_tokens_whatever_the_draft() -> None:
    logits = _logits(5)
    kw: dict[str, Any] = {"acceptance": Acceptance.COUPLED, "seed": 11, "temperature": 0.8}
    params = SamplingParams(**kw)
    positions = range(len(PROMPT), len(PROMPT) + 5)
    rows = [RowContext(params, PROMPT, len(PROMPT))] * 5
    own = coupled_tokens(target_weights(logits, rows), [11] * 5, positions).tolist()
    assert _judge(logits, _trial(tuple(own[:4]), **kw)) == [Judgement(4, own[4])]
    for length in range(4):
        wrong = (*own[:length], (own[length] + 1) % VOCAB)
        assert _judge(logits[: len(wrong) + 1], _trial(wrong, **kw)) == [
            Judgement(length, own[length])
        ]


@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.BLOCK])
def test_the_same_seed_judges_alike_and_seeds_differ(acceptance: Acceptance) -> None:
    """A06 in part: a function of the request, its seed and the block."""
    tokens, probs = _drafted(4, acceptance=acceptance)
    logits = _logits(5)
    outcomes = [
        _judge(logits, _trial(tokens, probs, acceptance=acceptance, seed=seed))[0]
        for seed in [*range(20), *range(20)]
    ]
    assert outcomes[:20] == outcomes[20:]
    assert len(set(outcomes)) > 5


def test_a_target_that_equals_the_draft_accepts_at_a_tiny_temperature() -> None:
    """A04: T = 1e-6, the target's own drafts, no NaN."""
    logits = _logits(200)
    own = tuple(logits[:199].argmax(1).tolist())
    for acceptance in (Acceptance.REJECTION, Acceptance.BLOCK):
        trial = _trial(own, None, temperature=1e-6, acceptance=acceptance)
        assert _judge(logits, trial) == [Judgement(199, int(logits[199].argmax()))]


def test_later_rows_see_the_drafts_before_them() -> None:
    """A07: the penalty on the first draft acts on the second row of the same pass."""
    logits = torch.zeros(2, VOCAB)
    logits[:, 3] = 3.0
    logits[:, 7] = 2.0
    kw: dict[str, Any] = {"temperature": 0, "frequency_penalty": 2.0}
    assert _judge(logits, _trial((3,), **kw)) == [Judgement(1, 7)]
    assert _judge(logits, _trial((3,), temperature=0)) == [Judgement(1, 3)]


def test_a_banned_draft_is_never_accepted() -> None:
    """F04: a lookup drafter may copy a banned id from the prompt."""
    logits = torch.zeros(2, VOCAB)
    logits[:, 8] = 9.0
    for acceptance in Acceptance:
        for temperature in (0.0, 1.0):
            for seed in range(10):
                trial = _trial(
                    (8,),
                    temperature=temperature,
                    acceptance=acceptance,
                    seed=seed,
                    bad_words_token_ids=((8,),),
                )
                (judgement,) = _judge(logits, trial)
                assert judgement.accepted_length == 0
                assert judgement.next_token != 8


def test_logprobs_cover_the_committed_tokens_from_the_raw_logits() -> None:
    logits = _logits(3)
    own = logits.argmax(1).tolist()
    expected = logits.log_softmax(1)
    kw: dict[str, Any] = {"temperature": 0, "logprobs": 3, "logit_bias": ((own[2], -50.0),)}
    (judgement,) = _judge(logits, _trial((own[0], own[1]), **kw))
    assert judgement.accepted_length == 2
    assert judgement.next_token not in {None, own[2]}
    committed = [own[0], own[1], judgement.next_token]
    assert [entry.logprob for entry in judgement.logprobs] == pytest.approx(
        [float(expected[row, token]) for row, token in enumerate(committed)]
    )
    assert judgement.logprobs[2].top_token_ids[0] == own[2]
    (judgement,) = _judge(logits[:2], _trial((own[0], own[1]), bonus=False, **kw))
    assert len(judgement.logprobs) == 2
    (judgement,) = _judge(logits, _trial((own[0], own[1]), temperature=0))
    assert judgement.logprobs == ()


RULES: list[dict[str, Any]] = [{"temperature": 0}, *({"acceptance": rule} for rule in Acceptance)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("num_good", [0, 1, 2, 3])
def test_rows_without_a_law_count_only_where_the_judgement_gets_to_them(
    rule: dict[str, Any], num_good: int
) -> None:
    """Of four drafts the first ones are sure to be accepted, the next one never, behind which the
    logits are no numbers."""
    logits = torch.full((5, VOCAB), -math.inf)
    logits[:, 7] = 0.0
    logits[num_good + 1 :] = math.nan
    drafts = (*[7] * num_good, 9, *[7] * (3 - num_good))
    outcome = judge_pass(logits, [_trial(drafts, **rule)])[0]
    assert outcome == Judgement(num_good, 7)
    good = (*[7] * (num_good + 1), *[9] * (3 - num_good))
    outcome = judge_pass(logits, [_trial(good, **rule)])[0]
    assert outcome == Judgement(num_good + 1, None), "the next pass begins there, and fails"
    logits[0] = math.nan
    assert isinstance(judge_pass(logits, [_trial(good, **rule)])[0], PacelineError)


@pytest.mark.parametrize(
    "rule",
    [{"temperature": 0}, {"acceptance": Acceptance.COUPLED}, {"acceptance": Acceptance.REJECTION}],
    ids=str,
)
def test_a_nodes_row_counts_only_on_the_path(rule: dict[str, Any]) -> None:
    logits = torch.full((4, VOCAB), -math.inf)
    logits[:, 7] = 0.0
    logits[2] = math.nan
    tree = TreeShape((-1, -1, 0))  # two that may come first, and one behind the first
    trial = replace(_trial((7, 9, 7), **rule), tree=tree)
    assert judge_pass(logits, [trial])[0] == Judgement(2, 7, path=(0, 2))
    logits[2], logits[3] = logits[1], math.nan
    assert isinstance(judge_pass(logits, [trial])[0], PacelineError), "the walk got there"


def test_a_trial_that_fails_fails_alone() -> None:
    logits = _logits(7)
    logits[4] = math.nan
    wrong_probs = DraftProbs(torch.tensor([[5]]), torch.tensor([[1.0]]))
    outcomes = judge_pass(
        logits,
        [
            _trial(),
            _trial(allowed_token_ids=(2,), min_tokens=1, eos=(2,)),
            _trial((6,), wrong_probs),
            _trial(),
            _trial(temperature=0),
            _trial(acceptance=Acceptance.COUPLED),
        ],
    )
    assert [type(outcome) for outcome in outcomes] == [
        Judgement,
        InvalidArgumentError,
        InvalidArgumentError,
        PacelineError,
        Judgement,
        Judgement,
    ]
    assert outcomes[0] == _judge(logits[:1], _trial())[0]


def test_bfloat16_targets_judge_float32_drafts() -> None:
    """I04: dtypes of drafter and verifier may differ."""
    tokens, probs = _drafted(3)
    (judgement,) = _judge(_logits(4).bfloat16(), _trial(tokens, probs))
    assert 0 <= judgement.accepted_length <= 3
