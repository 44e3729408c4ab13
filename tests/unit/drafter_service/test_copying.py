"""A run of copied tokens: how far it goes, and by which evidence."""

from __future__ import annotations

import pytest
from drafter_harness import DrafterBench, drafted, opening
from support.pipeline import cascade_of

from drafter_service.drafter import Drafter
from drafter_service.ngram import NgramDrafter
from paceline.config import NgramConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.types import Advance, DraftBlock, DrafterState

TEXT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2)
"""What follows its end was seen once, by a match of two tokens."""


def ngram() -> NgramDrafter:
    return NgramDrafter(NgramConfig(min_match=2, max_match=4))


def cascade() -> Drafter:
    return cascade_of(ScriptedRunner(hashed_script(11, seed=1), vocab_size=11), 2, 4, margin=1.0)


def bench_of(drafter: Drafter, *, seeded: bool = False) -> DrafterBench:
    bench = DrafterBench(drafter)
    sampling = SamplingParams(temperature=0, max_tokens=100)
    bench.post(opening(token_ids=TEXT, sampling=sampling, reproducible=seeded, window=8))
    return bench


def plan(bench: DrafterBench, base: int, *token_ids: int, epoch: int = 0, **changes: float) -> None:
    bench.post(Advance(1, epoch, base, token_ids, num_speculative_tokens=8, **changes))


def run(bench: DrafterBench) -> tuple[list[int], DrafterState]:
    blocks = [block for block in bench.run() if isinstance(block, DraftBlock)]
    return drafted(blocks), blocks[-1].state


@pytest.mark.parametrize("drafter", [ngram, cascade])
def test_a_run_ends_where_it_is_hardly_right_any_more(drafter: type[Drafter]) -> None:
    """Longer matches are right more often, and those that were right lately."""
    bench = bench_of(drafter())
    plan(bench, len(TEXT), 3, min_copy_confidence=0.15)
    assert run(bench) == ([4, 5, 6, 7], DrafterState.UNSURE), "0.5, 0.29, 0.18, 0.12"
    plan(bench, len(TEXT) + 1, 4, 5, 6, 7)
    assert run(bench)[0] == [8, 9, 10, 1, 2, 3], "that was right: more is worth it"


@pytest.mark.parametrize("drafter", [ngram, cascade])
def test_without_a_limit_it_goes_on_for_as_long_as_anything_matches(
    drafter: type[Drafter],
) -> None:
    bench = bench_of(drafter())
    plan(bench, len(TEXT), 3)
    assert run(bench)[0] == [4, 5, 6, 7, 8, 9, 10, 1]


def test_what_was_wrong_shortens_the_next_run_at_once() -> None:
    lengths = []
    for wrong in (0, 1, 2):
        bench = bench_of(ngram())
        position = len(TEXT)
        for unforeseen in (7, 8)[:wrong]:  # behind the same two tokens
            plan(bench, position, unforeseen, 1, 2, epoch=9)
            position += 3
        plan(bench, position, epoch=10, min_copy_confidence=0.11)
        lengths.append(len(run(bench)[0]))
    assert lengths == [4, 3, 2]


def test_seeded_output_is_not_shaped_by_what_is_known_to_be_final() -> None:
    """A token counts a window behind, whenever it is told."""
    for seeded in (False, True):
        bench = bench_of(ngram(), seeded=seeded)
        plan(bench, len(TEXT), 7, 1, 2, epoch=9)
        plan(bench, len(TEXT) + 3, epoch=10, min_copy_confidence=0.2)
        bench.run()
        evidence = bench.engine._drafter._copying[(1, 1)].evidence
        assert evidence._next == len(TEXT) + (0 if seeded else 3)


@pytest.mark.parametrize("min_confidence", [0.0, 0.5])
def test_a_cascades_model_does_not_draw_behind_copies_that_are_hardly_right(
    min_confidence: float,
) -> None:
    """They are right with 0.4 or less."""
    bench = DrafterBench(cascade())
    ends_at_9 = SamplingParams(temperature=0, max_tokens=100, bad_words_token_ids=((9,),))
    bench.post(opening(token_ids=TEXT, sampling=ends_at_9, window=8))
    plan(bench, len(TEXT), min_confidence=min_confidence)
    (block,) = bench.run()
    assert block.token_ids[:6] == (3, 4, 5, 6, 7, 8)
    assert block.copied[:6] == tuple(range(6))
    assert len(block.token_ids) == (6 if min_confidence else 8), "9 cannot be copied"
    assert (block.state is DrafterState.UNSURE) == (min_confidence > 0)


def test_drawn_tokens_are_not_held_certain_where_only_copies_have_a_limit() -> None:
    bench = DrafterBench(cascade_of(ScriptedRunner(hashed_script(11, seed=1), vocab_size=11), 4, 4))
    bench.post(opening(token_ids=(1, 2, 3), window=8))
    plan(bench, 3, min_copy_confidence=0.001, draw_window=2)
    assert len(run(bench)[0]) == 2
    assert all(confidence < 1.0 for confidence in bench.session()._confidences)
