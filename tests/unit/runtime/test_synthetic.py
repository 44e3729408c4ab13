"""The synthetic pair: its acceptance rate is what was asked for, and its pages are real."""

from __future__ import annotations

import random
import time

import pytest
import torch
from torch import Tensor

from paceline.config.models import MAX_ACCEPTANCE, MIN_ACCEPTANCE
from paceline.errors import ConfigError
from paceline.runtime.page_table import PageTable
from paceline.runtime.runner import Chunk
from paceline.runtime.synthetic import (
    LIKELY,
    AcceptanceSchedule,
    SyntheticLaw,
    SyntheticRunner,
    mix,
)
from paceline.sampling.acceptance import rejection_thresholds
from paceline.sampling.draft_probs import DraftProbs

VOCAB, PLAIN = 128, 125
RATES = [0.0, MIN_ACCEPTANCE, 0.2, 0.6, 0.8, 0.9, MAX_ACCEPTANCE, 1.0]


def law(
    acceptance: float | None = None, *changes: tuple[int, float], seed: int = 1
) -> SyntheticLaw:
    schedule = None if acceptance is None else AcceptanceSchedule(acceptance, changes)
    return SyntheticLaw(seed=seed, num_plain_ids=PLAIN, vocab_size=VOCAB, acceptance=schedule)


def histories(count: int) -> list[tuple[int, int]]:
    return [(mix(index), index) for index in range(count)]


def probs(of: SyntheticLaw, states: list[tuple[int, int]]) -> Tensor:
    return of.logits(states).double().softmax(1)


@pytest.mark.parametrize("rate", RATES)
def test_target_and_draft_share_exactly_the_acceptance_rate(rate: float) -> None:
    """At every position; also when the draft distribution travels sparse, 64 ids of it."""
    states = histories(500)
    target, draft = probs(law(), states), probs(law(rate), states)
    common = torch.minimum(target, draft).sum(1)
    assert (common - rate).abs().max() < 1e-7
    kept = draft.topk(64)
    sparse = kept.values / kept.values.sum(1, keepdim=True)
    common = torch.minimum(target.gather(1, kept.indices), sparse).sum(1)
    assert (common - rate).abs().max() < 1e-7


@pytest.mark.parametrize("rate", RATES)
def test_greedy_drafts_agree_as_often(rate: float) -> None:
    """By independent coins: 10,000 positions are within four standard deviations."""
    states = histories(10_000)
    draft = law(rate)
    agree = law().logits(states).argmax(1) == draft.logits(states).argmax(1)
    share = float(agree.double().mean())
    assert abs(share - rate) <= 4 * (rate * (1 - rate) / 10_000) ** 0.5
    assert agree.tolist() == [draft.agrees(*state) for state in states]
    if 0 < rate < 1:
        runs = torch.diff(agree.double()).abs().mean()
        assert float(runs) == pytest.approx(2 * rate * (1 - rate), abs=0.03)


def test_sampled_drafts_are_accepted_as_often() -> None:
    """The mean threshold of drafts sampled from the draft's law is the rate."""
    states = histories(4000)
    target, draft = probs(law(), states), probs(law(0.7), states)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.multinomial(draft, 1, generator=generator).squeeze(1).tolist()
    thresholds = rejection_thresholds(target, tokens, DraftProbs(None, draft.float()))
    assert sum(thresholds) / len(thresholds) == pytest.approx(0.7, abs=0.03)


def test_the_law_has_one_shape_at_a_place_that_the_history_chooses() -> None:
    target = probs(law(), histories(2000))
    top = target.topk(len(LIKELY)).values
    assert torch.allclose(top, torch.tensor(LIKELY, dtype=torch.float64))
    favourites = torch.bincount(target.argmax(1), minlength=VOCAB)
    assert int(favourites[PLAIN:].sum()) == 0  # special ids are never said
    assert int(favourites[:PLAIN].min()) > 0
    assert bool(law().logits(histories(50)).isfinite().all())


def test_the_rate_changes_where_the_schedule_says() -> None:
    draft = law(0.9, (400, 0.2))
    target_rows = probs(law(), histories(800))
    common = torch.minimum(target_rows, probs(draft, histories(800))).sum(1)
    assert torch.allclose(common[:400], torch.tensor(0.9, dtype=torch.float64))
    assert torch.allclose(common[400:], torch.tensor(0.2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("acceptance", "changes", "problem"),
    [
        (0.01, (), "0.01 is neither 0, 1 nor from 0.03 to 0.999"),
        (0.5, ((10, 0.9999),), "0.9999 is neither"),
        (0.5, ((10, 0.2), (10, 0.3)), "positions must rise"),
        (0.5, ((0, 0.2),), "positions must rise, from 1 on"),
    ],
)
def test_a_schedule_that_no_pair_has_is_refused(
    acceptance: float, changes: tuple[tuple[int, float], ...], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        AcceptanceSchedule(acceptance, changes)


# --- the runner -----------------------------------------------------------------------------------


def make_runner(acceptance: float | None = None, num_pages: int = 64) -> SyntheticRunner:
    return SyntheticRunner(law(acceptance), context_length=512, num_pages=num_pages, page_size=4)


def run(runner: SyntheticRunner, table: PageTable, token_ids: list[int], rows: int) -> Tensor:
    return runner.forward([Chunk(table, token_ids, rows)])


def expected(token_ids: list[int], rows: int, acceptance: float | None = None) -> Tensor:
    """The law of the last `rows` prefixes, from the history alone."""
    model = law(acceptance)
    states = model.states(token_ids)
    ends = range(len(token_ids) - rows + 1, len(token_ids) + 1)
    return model.logits([(states[end - 1], end) for end in ends])


@pytest.mark.parametrize("acceptance", [None, 0.6])
def test_any_chunking_and_rollback_gives_the_law_of_the_history(acceptance: float | None) -> None:
    """D01's kind: random chunks, truncations and neighbours on scattered pages."""
    rng = random.Random(5)
    runner = make_runner(acceptance)
    sessions: list[tuple[PageTable, list[int]]] = [
        (runner.pool.open_table(60), []) for _ in range(4)
    ]
    for _ in range(200):
        chunks, wanted = [], []
        for table, history in rng.sample(sessions, rng.randint(1, 4)):
            keep = rng.randint(max(0, len(history) - 9), len(history))
            table.truncate(keep)
            new = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60 - keep) % 7 or 1)]
            new = new[: 60 - keep]
            if not new:
                continue
            history[keep:] = new
            rows = rng.randint(0, len(new))
            chunks.append(Chunk(table, new, rows))
            wanted.append(expected(history, rows, acceptance))
        assert torch.equal(runner.forward(chunks), torch.cat([torch.empty(0, VOCAB), *wanted]))
    runner.pool.check_integrity()
    for table, _ in sessions:
        table.free()
    assert runner.pool.used_pages == 0


def test_a_token_too_many_in_the_table_changes_the_output() -> None:
    runner = make_runner()
    table = runner.pool.open_table(40)
    run(runner, table, [1, 2, 3, 4, 5], 0)
    forgotten = run(runner, table, [6], 1)  # 5 should have been rolled back
    assert not torch.equal(forgotten, expected([1, 2, 3, 4, 6], 1))


def test_a_page_given_to_two_sessions_changes_the_output() -> None:
    """Also an old page: tokens look back."""
    runner = make_runner()
    table, other = runner.pool.open_table(80), runner.pool.open_table(80)
    history = list(range(20))
    run(runner, table, history, 0)
    other.grow(4)
    other.pages[0] = table.pages[0]
    other.truncate(0)
    other.pages = [table.pages[0]]
    run(runner, other, [99] * 4, 0)
    differs = 0
    for token_id in range(20, 60):
        history.append(token_id)
        rows = run(runner, table, [token_id], 1)
        differs += not torch.equal(rows, expected(history, 1))
    assert differs > 20


def test_a_failed_pass_leaves_the_tables_as_they_were() -> None:
    runner = make_runner()
    table, short = runner.pool.open_table(40), runner.pool.open_table(4)
    with pytest.raises(AssertionError):
        runner.forward([Chunk(table, [1, 2], 1), Chunk(short, [1] * 9, 1)])
    assert (table.length, short.length) == (0, 0)
    assert torch.equal(run(runner, table, [1, 2], 1), expected([1, 2], 1))


def test_a_row_costs_little_and_no_more_late_in_a_long_sequence() -> None:
    """Relative, so that a busy machine does not matter: the best of several runs of each."""
    runner = make_runner(0.8, num_pages=4096)
    table = runner.pool.open_table(16_000)

    def best_of(length: int) -> float:
        if table.length < length:
            run(runner, table, [7] * (length - table.length), 0)
        seconds = []
        for _ in range(20):
            started = time.thread_time()
            for _ in range(5):
                run(runner, table, [3], 1)
            seconds.append((time.thread_time() - started) / 5)
        return min(seconds)

    early, late = best_of(100), best_of(15_000)
    assert late < 3 * early
    assert early < 0.001  # measured 0.06 ms


@pytest.mark.parametrize("rate", [0.2, 0.6, 0.8, 0.9, MAX_ACCEPTANCE])
@pytest.mark.parametrize(("second", "third"), [(0.0, 0.0), (0.6, 0.45), (0.0, 1.0), (1.0, 0.0)])
def test_other_guesses_are_right_as_often_as_asked(
    rate: float, second: float, third: float
) -> None:
    """Where the likeliest id is wrong; what the two laws share is the same for any."""
    draft = SyntheticLaw(
        seed=1,
        num_plain_ids=PLAIN,
        vocab_size=VOCAB,
        acceptance=AcceptanceSchedule(rate),
        second_guess=second,
        third_guess=third,
    )
    states = histories(6000)
    target, found = probs(law(), states), probs(draft, states)
    assert (torch.minimum(target, found).sum(1) - rate).abs().max() < 1e-7
    guesses = found.topk(3).indices
    wanted = target.argmax(1)
    wrong = guesses[:, 0] != wanted
    assert wrong.tolist() == [not draft.agrees(*state) for state in states]
    others = guesses[wrong, 1:] == wanted[wrong].unsqueeze(1)
    assert [row.index(True) if any(row) else None for row in others.tolist()] == [
        draft.right_other(*state) for state in states if not draft.agrees(*state)
    ]
    if wrong.sum() > 300:
        shares = others.double().mean(0)
        assert shares.tolist() == pytest.approx([second, (1.0 - second) * third], abs=0.06)


def test_of_drafts_that_are_hardly_ever_right_no_other_guess_is() -> None:
    draft = SyntheticLaw(
        seed=1,
        num_plain_ids=PLAIN,
        vocab_size=VOCAB,
        acceptance=AcceptanceSchedule(0.05),
        second_guess=1.0,
        third_guess=1.0,
    )
    states = histories(500)
    assert {draft.right_other(*state) for state in states} == {None}
    wanted = probs(law(), states).argmax(1)
    found = probs(draft, states).topk(3).indices
    agreeing = torch.tensor([draft.agrees(*state) for state in states])
    assert not (found[~agreeing] == wanted[~agreeing].unsqueeze(1)).any()
