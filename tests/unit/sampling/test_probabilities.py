"""The pipeline from logits to probabilities: order, own prefixes, masks, extremes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.errors import InvalidArgumentError, PacelineError
from paceline.sampling.params import SamplingParams
from paceline.sampling.probabilities import (
    RowContext,
    greedy_tokens,
    target_probs,
    target_weights,
)

PROMPT = (1, 2, 2, 7)


def _row(
    output: tuple[int, ...] = (), drafts: tuple[int, ...] = (), eos: tuple[int, ...] = (), **kw: Any
) -> RowContext:
    return RowContext(SamplingParams(**kw), PROMPT + output, len(PROMPT), eos, drafts)


def _logits(rows: int = 1, width: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 2


def test_without_parameters_the_probabilities_are_the_softmax() -> None:
    logits = _logits(3)
    assert torch.allclose(target_probs(logits, [_row()] * 3), logits.softmax(1), atol=1e-7)


def test_the_input_is_left_as_it_is() -> None:
    logits = _logits()
    before = logits.clone()
    target_probs(logits, [_row(temperature=0.5, top_k=3, logit_bias=((1, 5.0),), top_p=0.5)])
    assert torch.equal(logits, before)


def test_bfloat16_logits_are_processed_in_float32() -> None:
    logits = _logits().bfloat16()
    probs = target_probs(logits, [_row(temperature=0.3)])
    assert probs.dtype == torch.float32
    assert torch.allclose(probs, (logits.float() / 0.3).softmax(1), atol=1e-6)


def test_each_row_has_its_own_parameters_whatever_its_neighbours() -> None:
    """A06 in part: a batch never changes a row."""
    rows = [
        _row(),
        _row(temperature=0),
        _row((3, 3), temperature=0.5, top_k=2),
        _row((3,), (4,), top_p=0.6, frequency_penalty=1.0),
        _row(min_p=0.3, logit_bias=((5, 3.0),)),
        _row(typical_p=0.5, repetition_penalty=1.7),
        _row(top_k=4, top_p=0.8, temperature=2.0),
        _row(eos=(0,), min_tokens=2, allowed_token_ids=(0, 3, 9), bad_words_token_ids=((7, 9),)),
    ]
    logits = _logits(len(rows))
    together = target_probs(logits, rows)
    for index, row in enumerate(rows):
        alone = target_probs(logits[index : index + 1], [row])[0]
        assert torch.equal(together[index], alone)
        assert float(alone.sum()) == pytest.approx(1.0, abs=1e-6)


def test_penalties_count_earlier_drafts_of_the_same_block() -> None:
    """A07: a row's penalties see its own prefix, drafts included."""
    logits = torch.zeros(1, 6)
    committed = target_probs(logits, [_row((3, 3), frequency_penalty=1.5, presence_penalty=0.5)])
    drafted = target_probs(logits, [_row((3,), (3,), frequency_penalty=1.5, presence_penalty=0.5)])
    assert torch.equal(committed, drafted)
    ratio = float(committed[0, 3] / committed[0, 0])
    assert ratio == pytest.approx(math.exp(-(1.5 * 2 + 0.5)), rel=1e-5)


def test_presence_and_frequency_count_the_output_only_repetition_also_the_prompt() -> None:
    logits = torch.ones(1, 12)
    presence = target_probs(logits, [_row((5,), presence_penalty=1.0)])[0]
    assert float(presence[5]) < float(presence[1]) == float(presence[0])
    repetition = target_probs(logits, [_row((5,), repetition_penalty=2.0)])[0]
    assert float(repetition[5]) == float(repetition[1]) == float(repetition[7])
    assert float(repetition[5]) < float(repetition[0])


def test_negative_penalties_raise_probabilities() -> None:
    probs = target_probs(torch.zeros(1, 12), [_row((5,), presence_penalty=-1.0)])[0]
    assert int(probs.argmax()) == 5


def test_greedy_penalties_change_the_argmax_within_a_block() -> None:
    """A07: a target that repeats token 3 stops repeating under a penalty, at every row."""
    logits = torch.zeros(4, 6)
    logits[:, 3] = 3.0
    logits[:, 4] = 2.0
    rows = [_row((), (3,) * i, temperature=0, frequency_penalty=2.0) for i in range(4)]
    assert greedy_tokens(logits, rows).tolist() == [3, 4, 4, 4]
    rows = [_row((), (3,) * i, temperature=0, repetition_penalty=1.7) for i in range(4)]
    assert greedy_tokens(logits, rows).tolist() == [3, 4, 4, 4]
    assert (
        greedy_tokens(logits, [_row((), (3,) * i, temperature=0) for i in range(4)]).tolist()
        == [3] * 4
    )


def test_a_banned_id_has_probability_zero_for_every_prefix() -> None:
    """F04: a ban holds wherever the id comes from."""
    logits = _logits(3)
    logits[:, 8] = 50.0
    rows = [_row((8,) * i, bad_words_token_ids=((8,),)) for i in range(3)]
    assert target_probs(logits, rows)[:, 8].tolist() == [0.0] * 3
    assert 8 not in greedy_tokens(logits, rows).tolist()


def test_a_longer_bad_word_is_banned_only_where_it_would_be_completed() -> None:
    word = ((2, 7, 4),)
    logits = torch.zeros(1, 8)
    completing = [_row((2, 7)), _row((2,), (7,)), _row((), (2, 7)), _row()]  # prompt ends 2 7
    for prefix in completing:
        params = SamplingParams(bad_words_token_ids=word)
        row = RowContext(params, prefix.token_ids, 4, (), prefix.draft_tokens)
        assert float(target_probs(logits, [row])[0, 4]) == 0.0
    other = _row((2, 6), bad_words_token_ids=word)
    assert float(target_probs(logits, [other])[0, 4]) > 0.0
    short = RowContext(SamplingParams(bad_words_token_ids=((1, 1, 1, 4),)), (1, 1), 2)
    assert float(target_probs(logits, [short])[0, 4]) > 0.0


def test_end_and_stop_ids_are_masked_until_min_tokens() -> None:
    kw: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": (3,)}
    logits = torch.zeros(1, 6)
    for row, masked in [
        (_row((), (), (0, 1), **kw), True),
        (_row((4,), (), (0, 1), **kw), True),
        (_row((4,), (4,), (0, 1), **kw), False),
    ]:
        probs = target_probs(logits, [row])[0]
        assert [float(probs[i]) == 0.0 for i in (0, 1, 3)] == [masked] * 3
    ignoring = target_probs(logits, [_row((), (), (0, 1), ignore_eos=True, **kw)])[0]
    assert [float(ignoring[i]) == 0.0 for i in (0, 1, 3)] == [False, False, True]


def test_only_allowed_ids_come() -> None:
    probs = target_probs(_logits(), [_row(allowed_token_ids=(2, 5))])[0]
    assert probs.nonzero().flatten().tolist() == [2, 5]


def test_a_bias_cannot_raise_an_id_that_is_not_allowed() -> None:
    row = _row(allowed_token_ids=(2, 5), logit_bias=((3, 100.0), (5, 2.0)))
    probs = target_probs(torch.zeros(1, 12), [row])[0]
    assert float(probs[3]) == 0.0
    assert float(probs[5] / probs[2]) == pytest.approx(math.exp(2.0), rel=1e-5)


def test_the_bias_comes_before_the_repetition_penalty() -> None:
    row = _row(logit_bias=((1, -3.0),), repetition_penalty=2.0)
    probs = target_probs(torch.ones(1, 12), [row])[0]  # id 1 is in the prompt: (1 - 3) * 2
    assert float(probs[1] / probs[0]) == pytest.approx(math.exp(-4.0 - 1.0), rel=1e-5)


def test_the_temperature_comes_before_top_p() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    cold = target_probs(logits, [_row(temperature=0.2, top_p=0.9)])[0]
    hot = target_probs(logits, [_row(temperature=5.0, top_p=0.9)])[0]
    assert [int((p > 0).sum()) for p in (cold, hot)] == [1, 3]


def test_top_p_acts_on_what_top_k_left() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    probs = target_probs(logits, [_row(top_k=2, top_p=0.6)])[0]  # 0.625 of the two
    assert probs.tolist() == [1.0, 0.0, 0.0, 0.0]
    probs = target_probs(logits, [_row(top_p=0.6)])[0]
    assert int((probs > 0).sum()) == 2


def test_ties_at_a_cut_stay_together() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    for kw in ({"top_k": 2}, {"top_p": 0.3}):
        probs = target_probs(logits, [_row(**kw)])[0]
        assert torch.allclose(probs, torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.0]))


def test_min_p_one_keeps_the_likeliest_only() -> None:
    probs = target_probs(_logits(), [_row(min_p=1.0)])[0]
    assert int((probs > 0).sum()) == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-38, 1e-6, 1e-3])
def test_tiny_temperatures_give_the_argmax_and_no_nan(temperature: float) -> None:
    """A04: T = 1e-6 gives no NaN and is greedy."""
    logits = _logits(1, 50)
    logits[0, 7] = -math.inf
    for kw in ({}, {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "typical_p": 0.9}):
        probs = target_probs(logits, [_row(temperature=temperature, **kw)])[0]
        assert not bool(probs.isnan().any())
        assert int(probs.argmax()) == int(logits.argmax())
        assert float(probs.max()) == pytest.approx(1.0, abs=1e-6)


def test_a_huge_temperature_is_uniform_over_what_is_allowed() -> None:
    probs = target_probs(_logits(1, 4), [_row(temperature=1e300, bad_words_token_ids=((2,),))])[0]
    assert torch.allclose(probs, torch.tensor([1 / 3, 1 / 3, 0.0, 1 / 3]))


def test_an_extreme_repetition_penalty_gives_no_nan() -> None:
    for penalty in (1e-300, 1e-38, 1e38, 1e300):
        for logits in (torch.full((1, 12), 20.0), torch.full((1, 12), -20.0)):
            probs = target_probs(logits, [_row((3,), repetition_penalty=penalty)])
            assert not bool(probs.isnan().any())


def test_a_greedy_row_is_one_hot_at_the_lowest_of_equal_ids() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    row = _row(temperature=0, typical_p=0.1, top_p=0.1)
    assert target_probs(logits, [row]).tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert greedy_tokens(logits, [row]).tolist() == [1]


@pytest.mark.parametrize(
    ("kw", "field"),
    [
        ({"allowed_token_ids": (2,), "bad_words_token_ids": ((7, 2),)}, "allowed_token_ids"),
        ({"bad_words_token_ids": tuple((i,) for i in range(12))}, "bad_words_token_ids"),
        ({"allowed_token_ids": (0,), "min_tokens": 1}, "min_tokens"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks_that_leave_no_token_are_refused_by_name(
    kw: dict[str, Any], field: str, temperature: float
) -> None:
    row = _row(eos=(0,), temperature=temperature, **kw)
    function = greedy_tokens if temperature == 0 else target_weights
    with pytest.raises(InvalidArgumentError, match="leave no token") as caught:
        function(_logits(), [row])
    assert caught.value.field == field


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_are_an_error(bad: float) -> None:
    logits = _logits(2)
    logits[1, 3] = bad
    with pytest.raises(PacelineError, match="not finite"):
        target_probs(logits, [_row()] * 2)
    with pytest.raises(PacelineError, match="not finite"):
        greedy_tokens(logits, [_row(temperature=0)] * 2)


@settings(derandomize=True, max_examples=60)
@given(
    st.integers(0, 5000),
    st.fixed_dictionaries(
        {"temperature": st.floats(0.05, 3.0), "repetition_penalty": st.floats(0.5, 2.0)}
    ),
    st.fixed_dictionaries(
        {
            "top_k": st.integers(0, 20),
            "top_p": st.floats(0.05, 1.0),
            "min_p": st.floats(0.0, 0.9),
            "typical_p": st.floats(0.05, 1.0),
        }
    ),
)
def test_filters_keep_some_ids_and_their_proportions(
    seed: int, base: dict[str, Any], filters: dict[str, Any]
) -> None:
    logits = _logits(1, 30, seed)
    plain = target_probs(logits.double(), [_row((3, 4), **base)])[0]
    cut = target_probs(logits.double(), [_row((3, 4), **base, **filters)])[0]
    assert float(cut.sum()) == pytest.approx(1.0, abs=1e-9)
    kept = cut > 0
    assert bool(kept.any())
    assert torch.allclose(cut[kept], plain[kept] / plain[kept].sum(), atol=1e-9)


def test_prompt_ids_beyond_the_logits_are_not_penalised() -> None:
    row = RowContext(SamplingParams(repetition_penalty=2.0), (1, 50), 2)
    probs = target_probs(torch.ones(1, 4), [row])[0]
    assert float(probs[1]) < float(probs[0]) == float(probs[3])


def _masked(mask: Tensor, **kw: Any) -> RowContext:
    return RowContext(SamplingParams(**kw), PROMPT, len(PROMPT), mask=mask)


@pytest.mark.parametrize("width", [3, 12, 20])
def test_a_mask_leaves_its_ids_only_whatever_its_width(width: int) -> None:
    """A grammar's mask may be wider or narrower than the logits; beyond its end nothing comes."""
    mask = torch.zeros(width, dtype=torch.bool)
    mask[[0, 2]] = True
    mask[12:] = True
    rows = [_masked(mask, logit_bias=((1, 50.0),)), _row()]
    probs = target_probs(_logits(2), rows)
    assert probs[0].nonzero().flatten().tolist() == [0, 2]
    assert bool((probs[1] > 0).all())
    assert int(greedy_tokens(_logits(1), [_masked(mask, temperature=0)])) in {0, 2}


def test_a_mask_that_leaves_nothing_is_refused_as_the_grammars() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        target_weights(_logits(), [_masked(torch.zeros(12, dtype=torch.bool))])
    assert caught.value.field == "grammar"


@pytest.mark.parametrize("temperature", [1e4, 1e6, 1e9, 1e30])
def test_a_high_temperature_leaves_top_k_its_ids(temperature: float) -> None:
    """Ids that differ in their logits may weigh the same afterwards."""
    logits = torch.tensor([[3.0, 2.99, 1.0, -9.0, -20.0], [3.0, 2.99, 1.0, -9.0, -20.0]])
    rows = [_row(temperature=temperature, top_k=1), _row(temperature=temperature)]
    limited, free = target_probs(logits, rows)
    assert limited.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert bool((free > 0.19).all())


@pytest.mark.parametrize("penalty", [1e-46, 1e-300, 1e300])
def test_an_extreme_repetition_penalty_meets_a_mask(penalty: float) -> None:
    """Ids of the prefix that the masks took out stay out, and nothing is NaN."""
    row = _row((2,), repetition_penalty=penalty, allowed_token_ids=(1, 3))
    (probs,) = target_probs(_logits(), [row])
    assert probs.isfinite().all()
    assert probs.nonzero().flatten().tolist() in ([1], [3], [1, 3])
