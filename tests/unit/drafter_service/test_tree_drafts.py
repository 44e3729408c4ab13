"""Drafts that branch on the drafter: the block, what becomes of it, and of what was cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from drafter_harness import PROMPT, VOCAB, DrafterBench, opening
from support.pipeline import worker_info

from drafter_service.model import ModelDrafter
from paceline.config import RuntimeConfig, TreeConfig, parse_config
from paceline.errors import ConfigError
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.sampling.tree_draw import BranchRow, draw_children
from paceline.tree_shape import ROOT, TreeShape
from paceline.types import Advance, DraftBlock, DrafterState, SessionError

DRAFT = hashed_script(VOCAB, seed=2)
ONE_SESSION = 1


def flat(history: Sequence[int]) -> torch.Tensor:
    """Not sure of anything: branches everywhere."""
    return 0.2 * DRAFT(history)


def forks_at(position: int) -> object:
    """Sure of everything but the token at one position, where two are equally likely."""

    def script(history: Sequence[int]) -> torch.Tensor:
        logits = torch.zeros(VOCAB)
        logits[(len(history) * 3) % VOCAB] = 30.0
        if len(history) == position:
            logits[(len(history) * 3 + 1) % VOCAB] = 30.0
        return logits

    return script


def bench(script: object = flat, max_children: int = 3, **changes: object) -> DrafterBench:
    runner = ScriptedRunner(script, vocab_size=VOCAB)  # type: ignore[arg-type]
    info, tree = worker_info("model", VOCAB), TreeConfig(max_children=max_children, doubt=1.0)
    found = DrafterBench(ModelDrafter(runner, RuntimeConfig(), info, tree=tree))
    found.post(opening(**{"window": 6, "num_speculative_tokens": 6, **changes}))
    return found


def only_block(replies: Sequence[object]) -> DraftBlock:
    (reply,) = replies
    assert isinstance(reply, DraftBlock)
    return reply


def passes(drafter: DrafterBench) -> list[tuple[int, int]]:
    """(tokens, rows) of each pass of the only session."""
    return [chunk for chunks in drafter.drafter._runner.passes for chunk in chunks]


def test_a_block_that_branches_holds_a_budget_of_nodes_and_rests() -> None:
    drafter = bench()
    block = only_block(drafter.run())

    assert len(block.token_ids) == len(block.parents) == 6
    assert block.tree is not None
    assert not block.tree.is_chain
    assert block.state is DrafterState.PAUSED
    assert drafter.run() == [], "nothing is drafted behind it"
    assert len(passes(drafter)) < 6, "a level a pass"


def test_one_child_at_most_drafts_chains_as_they_always_were() -> None:
    block = only_block(bench(max_children=1).run())

    assert block.parents == ()
    assert len(block.token_ids) == 6


def test_block_length_and_window_are_the_budget() -> None:
    block = only_block(bench(num_speculative_tokens=3).run())
    assert len(block.token_ids) == 3

    block = only_block(bench(num_speculative_tokens=8, window=5).run())
    assert len(block.token_ids) == 5

    near_end = SamplingParams(temperature=0, max_tokens=4)
    block = only_block(bench(sampling=near_end).run())
    assert len(block.token_ids) == 3


def path_of(block: DraftBlock, node: int) -> tuple[int, ...]:
    assert block.tree is not None
    return tuple(block.token_ids[ancestor] for ancestor in block.tree.paths[node])


@pytest.mark.parametrize("node", range(6))
def test_what_is_cached_of_the_path_that_came_true_is_kept(node: int) -> None:
    """The next pass reads the tokens that were not fed: the recovered one, and perhaps a leaf."""
    drafter = bench()
    block = only_block(drafter.run())
    path = path_of(block, node)
    (growth,) = drafter.drafter._trees._growths.values()
    cached = len(growth.path_of(path))
    num_passes = len(passes(drafter))

    drafter.advance(*path, 7, epoch=1)
    following = only_block(drafter.run())

    assert following.base == len(PROMPT) + len(path) + 1
    assert following.epoch == 1
    assert passes(drafter)[num_passes] == (len(path) + 1 - cached, 1)
    expected = bench(token_ids=(*PROMPT, *path, 7), prompt_length=3)
    again = only_block(expected.run())
    assert (following.token_ids, following.parents) == (again.token_ids, again.parents)


def test_a_verdict_that_follows_no_branch_rolls_all_back() -> None:
    drafter = bench()
    block = only_block(drafter.run())
    assert block.tree is not None
    other = next(i for i in range(VOCAB) if i not in block.token_ids)
    drafter.advance(other, epoch=1)

    assert drafter.session().tokens == [*PROMPT, other]
    assert only_block(drafter.run()).base == len(PROMPT) + 1
    assert drafter.engine.metrics._num_rolled_back == 6


def test_a_token_committed_before_a_tree_was_judged_voids_it_on_both_sides_alike() -> None:
    """The drafter hears of it in its own epoch and counts up, as the verifier will."""
    drafter = bench()
    block = only_block(drafter.run())
    drafter.advance(block.token_ids[0], epoch=0)

    assert drafter.session().epoch == 1
    assert drafter.session().branches is None
    assert only_block(drafter.run()).epoch == 1


def test_what_all_branches_share_may_come_true_first() -> None:
    """A fork two tokens on: those two are a chain's, and only behind them is the tree void."""
    drafter = bench(forks_at(len(PROMPT) + 2))
    block = only_block(drafter.run())
    assert block.tree is not None
    assert block.tree.trunk == 2
    session = drafter.session()
    assert session.tokens == [*PROMPT, *block.token_ids[:2]]

    drafter.advance(block.token_ids[0], epoch=0)
    assert session.branches is not None
    assert drafter.run() == [], "it still waits for the tree's verdict"
    drafter.advance(block.token_ids[1], epoch=0)
    assert (session.epoch, session.branches is None) == (0, False)
    drafter.advance(block.token_ids[2], epoch=0)
    assert (session.epoch, session.branches is None) == (1, True)
    assert only_block(drafter.run()).base == len(PROMPT) + 3


def test_another_token_than_what_all_branches_share_voids_the_tree() -> None:
    drafter = bench(forks_at(len(PROMPT) + 2))
    block = only_block(drafter.run())
    drafter.advance((block.token_ids[0] + 1) % VOCAB, epoch=0)

    assert (drafter.session().epoch, drafter.session().branches) == (1, None)


def test_a_sure_chain_goes_on_drafting_up_to_the_fork() -> None:
    """Two blocks of three: the first is a chain and is followed at once by one that branches."""
    drafter = bench(forks_at(len(PROMPT) + 4), num_speculative_tokens=3)
    first, second = drafter.run()

    assert isinstance(first, DraftBlock)
    assert isinstance(second, DraftBlock)
    assert (first.parents, first.state) == ((), DrafterState.RUNNING)
    assert second.parents == (ROOT, 0, 0)
    assert second.state is DrafterState.PAUSED


def test_a_tree_that_still_grows_is_given_up_when_a_token_overtakes_it() -> None:
    """Nothing of it was sent, so that nobody counts an epoch; what agrees stays cached."""
    drafter = bench()
    assert drafter.step() == []
    assert drafter.step() == []
    (growth,) = drafter.drafter._trees._growths.values()
    token = growth.nodes[growth.fed[1]].draw.token_id
    num_passes = len(passes(drafter))
    drafter.advance(token, epoch=0)
    block = only_block(drafter.run())

    assert (block.base, block.epoch) == (len(PROMPT) + 1, 0)
    assert passes(drafter)[num_passes] == (1, 1)
    expected = bench(token_ids=(*PROMPT, token), prompt_length=3)
    assert only_block(expected.run()).token_ids == block.token_ids


def test_a_smaller_window_gives_up_a_tree_that_would_not_fit() -> None:
    drafter = bench()
    drafter.step()
    drafter.step()
    drafter.post(Advance(ONE_SESSION, 1, len(PROMPT), (), window=2, num_speculative_tokens=2))
    block = only_block(drafter.run())

    assert len(block.token_ids) == 2
    assert block.epoch == 1


def test_an_ended_session_leaves_its_path_to_the_next_one_and_no_pages() -> None:
    """The nodes off the path are forgotten before anything is offered to others."""
    drafter = bench()
    block = only_block(drafter.run())
    path = path_of(block, len(block.token_ids) - 1)
    drafter.advance(*path, 7, epoch=1)
    drafter.run()
    drafter.engine._free((1, ONE_SESSION))

    runner = drafter.drafter._runner
    assert runner.pool.used_pages == 0
    runner.pool.check_integrity()
    text = (*PROMPT, *path, 7)
    drafter.post(opening(2, token_ids=(*text, 5), window=6, num_speculative_tokens=6))
    again = only_block(drafter.run())
    fresh = bench(token_ids=(*text, 5))
    assert only_block(fresh.run()).token_ids == again.token_ids


def test_only_a_model_branches() -> None:
    """The message names the setting."""
    with pytest.raises(ConfigError, match=r"tree\.max_children: kind 'ngram' drafts chains"):
        parse_config({"drafter": {"kind": "ngram", "tree": {"max_children": 2}}}, source="test")
    section = {"kind": "model", "model": {"path": "x"}, "tree": {"max_children": 2}}
    config = parse_config({"drafter": section}, source="test")
    assert config.drafter.tree.max_children == 2


def test_shapes_are_told_by_parents_within_the_block() -> None:
    block = only_block(bench(forks_at(len(PROMPT) + 1), num_speculative_tokens=4).run())

    assert block.tree == TreeShape((ROOT, 0, 0, 1))


@pytest.mark.parametrize("failing_step", [0, 1, 2])
def test_a_step_that_fails_behind_its_pass_leaves_the_other_sessions_trees_as_they_are(
    failing_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has grown by then; those who are not to blame feed their nodes again."""
    drafter = bench()
    drafter.post(opening(2, token_ids=(5, 6), window=6, num_speculative_tokens=6))
    for _ in range(failing_step):
        drafter.step()

    def fail(logits: torch.Tensor, rows: Sequence[BranchRow]) -> list[object]:
        if any(tuple(row.context.token_ids[:2]) == (5, 6) for row in rows):
            raise RuntimeError("boom")
        return list(draw_children(logits, rows))

    monkeypatch.setattr("drafter_service.tree_drafting.draw_children", fail)
    replies = drafter.run()

    (error,) = [reply for reply in replies if isinstance(reply, SessionError)]
    (block,) = [reply for reply in replies if isinstance(reply, DraftBlock)]
    assert error.session_id == 2
    assert block == replace(only_block(bench().run()), draft_us=block.draft_us)
