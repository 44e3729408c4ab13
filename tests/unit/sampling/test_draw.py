"""The drafter's draws: truncated first, sampled from the numbers that are reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.sampling.columns import Columns
from paceline.sampling.draw import DraftRow, Draw, draw_drafts, stack_draws
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.probabilities import RowContext, target_probs

VOCAB = 40


def _logits(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def _row(draft_top_k: int = 8, epoch: int = 0, length: int = 3, **kw: Any) -> DraftRow:
    return DraftRow(RowContext(SamplingParams(**kw), tuple(range(length)), 2), epoch, draft_top_k)


def _draw(logits: Tensor, *rows: DraftRow) -> list[Draw]:
    draws = draw_drafts(logits, rows)
    assert all(isinstance(draw, Draw) for draw in draws)
    return draws  # type: ignore[return-value]


def test_the_reported_numbers_are_the_truncated_renormalised_law() -> None:
    logits = _logits(1)
    (draw,) = _draw(logits, _row(8, temperature=0.7))
    assert draw.probs is not None
    assert draw.probs.ids is not None
    assert draw.probs.probs.dtype == torch.float32
    law = target_probs(logits, [_row(temperature=0.7).context])[0]
    kept = law.topk(8)
    assert draw.probs.ids[0].tolist() == kept.indices.tolist()
    assert torch.allclose(draw.probs.probs[0], kept.values / kept.values.sum(), atol=1e-6)
    draw.probs.check(VOCAB)


def test_draws_follow_the_reported_numbers() -> None:
    """A09: the law in the ratio is exactly the law that the draft was drawn from."""
    logits = _logits(1)
    rows = [_row(4, seed=seed) for seed in range(4000)]
    draws = _draw(logits.expand(4000, VOCAB), *rows)
    probs = draws[0].probs
    assert probs is not None
    expected = probs.dense_row(0, VOCAB) * 4000
    counts = torch.tensor([draw.token_id for draw in draws]).bincount(minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    statistic = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    assert float(statistic) < 16.3  # chi-square, 3 degrees of freedom, 0.999


def test_dense_rows_hold_the_whole_vocabulary() -> None:
    for draft_top_k in (0, VOCAB, VOCAB + 5):
        (draw,) = _draw(_logits(1), _row(draft_top_k))
        assert draw.probs is not None
        assert draw.probs.ids is None
        draw.probs.check(VOCAB)


def test_a_batch_draws_as_each_row_alone() -> None:
    rows = [
        _row(8, seed=1),
        _row(8, temperature=0),
        _row(0, seed=2, top_p=0.5),
        _row(4, seed=3, acceptance=Acceptance.COUPLED),
        _row(8, seed=1, length=9, top_k=3),
        _row(4, seed=5, epoch=2, acceptance=Acceptance.BLOCK),
    ]
    logits = _logits(len(rows))
    for index, draw in enumerate(_draw(logits, *rows)):
        (alone,) = _draw(logits[index : index + 1], rows[index])
        assert draw.token_id == alone.token_id
        assert (
            (draw.probs is None)
            == (alone.probs is None)
            == rows[index].context.params.is_deterministic
        )
        if draw.probs is not None and alone.probs is not None:
            assert torch.equal(draw.probs.probs, alone.probs.probs)


def test_greedy_draws_the_argmax() -> None:
    logits = _logits(3)
    draws = _draw(logits, *[_row(temperature=0)] * 3)
    assert draws == [Draw(token, None) for token in logits.argmax(1).tolist()]


def test_a_draft_cut_to_one_id_is_a_point_mass_on_the_likeliest() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [7, 20]] = 3.0
    for seed in range(5):
        assert _draw(logits, _row(1, seed=seed)) == [Draw(7, None)]


def test_the_epoch_changes_the_draw_only_under_block() -> None:
    logits = torch.zeros(64, VOCAB)
    for acceptance, changes in ((Acceptance.REJECTION, False), (Acceptance.BLOCK, True)):
        drawn = [
            [
                d.token_id
                for d in _draw(
                    logits,
                    *[_row(0, epoch, seed=s, acceptance=acceptance) for s in range(64)],
                )
            ]
            for epoch in (0, 1)
        ]
        assert (drawn[0] != drawn[1]) == changes


def test_banned_ids_are_never_drafted() -> None:
    """F04: neither the draw nor its distribution holds a banned id."""
    logits = _logits(1)
    logits[0, 8] = 20.0
    for seed in range(50):
        (draw,) = _draw(logits, _row(8, seed=seed, bad_words_token_ids=((8,),)))
        assert draw.token_id != 8
        assert draw.probs is not None
        assert float(draw.probs.dense_row(0, VOCAB)[8]) == 0.0


def test_a_row_that_leaves_no_token_fails_alone() -> None:
    bad = _row(bad_words_token_ids=tuple((i,) for i in range(VOCAB)))
    outcomes = draw_drafts(_logits(3), [_row(), bad, _row(temperature=0)])
    assert isinstance(outcomes[0], Draw)
    assert isinstance(outcomes[1], InvalidArgumentError)
    assert isinstance(outcomes[2], Draw)


def test_a_stack_trims_columns_that_are_zero_in_every_row() -> None:
    draws = _draw(_logits(3), *[_row(16, top_k=k) for k in (2, 5, 3)])
    block = stack_draws(draws)
    assert block is not None
    assert block.probs.shape == (3, 5)
    block.check(VOCAB)
    for index, draw in enumerate(draws):
        assert draw.probs is not None
        assert torch.equal(block.dense_row(index, VOCAB), draw.probs.dense_row(0, VOCAB))


@pytest.mark.parametrize("draft_top_k", [0, 4])
def test_a_point_mass_among_sampled_draws_becomes_a_row_of_their_kind(draft_top_k: int) -> None:
    (sampled,) = _draw(_logits(1), _row(draft_top_k))
    block = stack_draws([Draw(7, None), sampled, Draw(3, None)])
    assert block is not None
    assert sampled.probs is not None
    assert (block.ids is None) == (draft_top_k == 0)
    block.check(VOCAB)
    rows = [block.dense_row(i, VOCAB) for i in range(3)]
    assert torch.equal(rows[0], torch.eye(VOCAB)[7])
    assert torch.equal(rows[1], sampled.probs.dense_row(0, VOCAB))
    assert torch.equal(rows[2], torch.eye(VOCAB)[3])


def test_a_stack_of_deterministic_draws_has_no_distribution() -> None:
    assert stack_draws(_draw(_logits(2), *[_row(temperature=0)] * 2)) is None
    assert stack_draws([]) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_reported_numbers_are_float32_for_any_model(dtype: torch.dtype) -> None:
    """I04: the wire carries float32 whatever the models' dtypes."""
    for top_k in (0, 8):
        (draw,) = _draw(_logits(1).to(dtype), _row(top_k))
        assert draw.probs is not None
        assert draw.probs.probs.dtype == torch.float32
        assert float(draw.probs.probs.double().sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.5},
        {"acceptance": Acceptance.COUPLED, "seed": 5},
        {"seed": 5},
        {"seed": 5, "top_k": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("draft_top_k", [0, 1, 8])
def test_other_guesses_are_the_next_likeliest_ids(params: dict[str, Any], draft_top_k: int) -> None:
    """The draw is the same with and without, and a row that bans it says the first of them, and so
    on."""
    logits = _logits(6)
    plain = [_row(draft_top_k, length=3 + i, **params) for i in range(6)]
    asked = [replace(row, num_others=2) for row in plain]
    draws = _draw(logits, *asked)
    for draw, unasked in zip(draws, _draw(logits, *plain), strict=True):
        assert (draw.token_id, unasked.others) == (unasked.token_id, ())
    for row, line, draw in zip(asked, logits, draws, strict=True):
        law = target_probs(line[None], [row.context])[0]
        without = line[None].clone()
        said = draw.token_id
        assert len(draw.others) == 2
        for other in draw.others:
            without[0, said] = float("-inf")
            law[said] = 0.0
            if row.context.params.is_deterministic or draft_top_k == 1:
                assert other == _draw(without, row)[0].token_id
            else:
                assert other == int(law.argmax())
            said = other


def test_other_guesses_are_named_in_the_vocabularys_ids() -> None:
    """Of a drafter that has few columns."""
    columns = Columns(torch.arange(2, VOCAB, 3), VOCAB)
    narrow = _logits(3)[:, : len(columns)]
    wide = columns.widen(narrow, fill=float("-inf"))
    for params in ({"temperature": 0}, {"acceptance": Acceptance.COUPLED}, {"seed": 2}):
        rows = [replace(_row(4, **params), num_others=2)] * 3
        few, whole = draw_drafts(narrow, rows, columns), draw_drafts(wide, rows)
        assert [draw.others for draw in few] == [draw.others for draw in whole]  # type: ignore[union-attr]
