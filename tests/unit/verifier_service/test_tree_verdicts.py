"""Drafts that branch on the verifier: what is taken, judged, pruned, void or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.pipeline import reference
from support.small_tokenizer import END, small_tokenizer
from verifier_harness import (
    PROMPT,
    TARGET,
    VOCAB,
    VerifierBench,
    block,
    only_error,
    opening,
    tokens_of,
)

from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.grammar_text import regex_grammar
from paceline.sampling.acceptance import Judgement
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.tree_shape import ROOT, TreeShape
from paceline.types import Origin, Verdict
from verifier_service.draft_tail import DraftTail
from verifier_service.guidance import Guidance

REF = reference(TARGET, PROMPT, 12)
BASE = len(PROMPT) + 1
"""Where drafts begin after the first token."""
WRONG = [(token + 1) % VOCAB for token in REF]


def bench(**options: Any) -> VerifierBench:
    """A verifier that has committed the first token."""
    changes = options.pop("changes", {})
    found = VerifierBench(**options)
    found.post(opening(**changes))
    assert tokens_of(found.step()) == REF[:1]
    return found


def only_verdict(replies: Sequence[Any]) -> Verdict:
    (reply,) = replies
    assert isinstance(reply, Verdict)
    return reply


def tree_block(**changes: Any) -> Any:
    """The right path lies in the second branch, nodes 1, 3 and 4; node 5 is wrong behind it."""
    tokens = [WRONG[1], REF[1], REF[2], REF[2], REF[3], WRONG[4]]
    return block(BASE, tokens, parents=[ROOT, ROOT, 0, 1, 3, 4], **changes)


def test_the_path_that_is_the_targets_own_is_committed_and_its_cache_kept() -> None:
    """L03: best path commit = REF."""
    verifier = bench()
    verifier.post(tree_block())
    verdict = only_verdict(verifier.step())

    assert list(verdict.token_ids) == REF[1:5]
    assert (verdict.num_judged, verdict.accepted_length) == (6, 3)
    assert verdict.next_origin is Origin.RECOVERED
    assert verdict.epoch == 1
    assert verdict.kv_length == BASE + 3
    # what follows reads the moved slots, and nothing is computed twice
    assert tokens_of(verifier.run())[:7] == REF[5:]
    assert verifier.runner.passes[1:3] == [[(7, 7)], [(1, 1)]]


def test_a_leaf_is_followed_by_a_bonus() -> None:
    verifier = bench()
    verifier.post(block(BASE, [WRONG[1], REF[1]], parents=[ROOT, ROOT]))
    verdict = only_verdict(verifier.step())

    assert list(verdict.token_ids) == REF[1:3]
    assert verdict.next_origin is Origin.BONUS
    assert verdict.epoch == 1, "branches went unaccepted all the same"


def test_chain_and_tree_are_judged_in_one_pass() -> None:
    """Blocks before a tree are the path that leads to it."""
    verifier = bench()
    verifier.post(block(BASE, REF[1:3]))
    verifier.post(block(BASE + 2, [WRONG[3], REF[3]], parents=[ROOT, ROOT]))
    verdict = only_verdict(verifier.step())

    assert list(verdict.token_ids) == REF[1:5]
    assert (verdict.num_judged, verdict.accepted_length) == (4, 3)


@pytest.mark.parametrize("max_drafts", range(1, 7))
def test_a_tree_beyond_what_a_pass_judges_loses_its_last_nodes(max_drafts: int) -> None:
    verifier = bench(max_drafts_per_pass=max_drafts)
    verifier.post(tree_block())
    verdict = only_verdict(verifier.step())

    assert verdict.num_judged == max_drafts
    assert list(verdict.token_ids) == REF[1 : 1 + len(verdict.token_ids)]
    assert verdict.epoch == 1
    assert not verifier.session().tail


def test_the_epoch_rises_even_if_all_that_is_left_of_a_tree_was_accepted() -> None:
    """The drafter waits for it: what was cut off is void."""
    verifier = bench(max_drafts_per_pass=1)
    verifier.post(block(BASE, [REF[1], WRONG[1]], parents=[ROOT, ROOT]))
    verdict = only_verdict(verifier.step())

    assert (verdict.num_judged, verdict.accepted_length, verdict.epoch) == (1, 1, 1)
    assert list(verdict.token_ids) == REF[1:3]
    assert verifier.verifier.metrics.discards["rejected"] == 1


def test_what_leads_to_a_tree_is_judged_alone_rather_than_the_tree_in_part() -> None:
    verifier = bench(max_drafts_per_pass=3)
    verifier.post(block(BASE, REF[1:3]))
    verifier.post(block(BASE + 2, [WRONG[3], REF[3]], parents=[ROOT, ROOT]))
    first, second = only_verdict(verifier.step()), only_verdict(verifier.step())

    assert (first.num_judged, first.accepted_length, first.epoch) == (2, 2, 0)
    assert first.next_origin is None, "a bonus would void the tree"
    assert list(second.token_ids) == REF[3:5]


def test_a_tree_waits_for_the_credit_of_all_its_nodes() -> None:
    """Credit is a matter of timing, and must not prune what is judged."""
    verifier = bench(changes={"committed_limit": BASE + 6})
    verifier.post(tree_block())
    assert verifier.verifier.next_step_at(0.0) is None
    verifier.session().grant(BASE + 7)

    assert only_verdict(verifier.step()).num_judged == 6


@pytest.mark.parametrize(("known", "survives"), [(0, True), (1, True), (2, True), (3, False)])
def test_what_was_committed_meanwhile_voids_a_tree_behind_its_first_branch(
    known: int, survives: bool
) -> None:
    """Two tokens lead to the branch; the third, though right, comes too late."""
    verifier = bench()
    for _ in range(known):
        verifier.now = verifier.verifier.next_step_at(verifier.now) or 0.0  # past its patience
        assert verifier.step()
    tokens = [*REF[1:3], REF[3], WRONG[3]]
    verifier.post(block(BASE, tokens, parents=[ROOT, 0, 1, 1]))
    session = verifier.session()

    assert session.epoch == int(not survives)
    assert len(session.tail) == (4 - known if survives else 0)
    if survives:
        verdict = only_verdict(verifier.step())
        assert list(verdict.token_ids) == REF[1 + known : 5]


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([1, 2], [ROOT], "1 for 2 draft tokens"),
        ([1, 2], [ROOT, 1], "token 1 cannot follow token 1"),
        ([1, 2], [-2, 0], "token 0 cannot follow token -2"),
        ([1, 2, 2], [ROOT, 0, 0], "two tokens that follow the same one are equal"),
    ],
)
def test_what_is_no_tree_is_refused(tokens: list[int], parents: list[int], message: str) -> None:
    """A faulty drafter's block ends its session, with a word on what is wrong."""
    error = only_error(bench().post(block(BASE, tokens, parents=parents)))

    assert error.code == "INVALID_ARGUMENT"
    assert error.message == f"parents: {message}"


def test_nothing_is_taken_behind_a_draft_that_branches() -> None:
    verifier = bench()
    verifier.post(tree_block())
    error = only_error(verifier.post(block(BASE + 6, [1])))

    assert "behind a draft that branches" in error.message


def test_block_verification_refuses_trees_unless_it_is_greedy() -> None:
    sampled = SamplingParams(acceptance=Acceptance.BLOCK, max_tokens=50)
    verifier = VerifierBench()
    verifier.post(opening(sampling=sampled))
    verifier.step()
    error = only_error(verifier.post(tree_block()))
    assert error.message == "parents: block verification judges chains"

    greedy = SamplingParams(temperature=0, acceptance=Acceptance.BLOCK, max_tokens=50)
    verifier = bench(changes={"sampling": greedy})
    verifier.post(tree_block())
    assert list(only_verdict(verifier.step()).token_ids) == REF[1:5]


def test_the_tail_tells_a_trees_shape_wherever_it_is_cut() -> None:
    tail = DraftTail()
    tail.append(block(0, [1, 2]), skip=0)
    tail.append(block(2, [3, 4, 5, 6], parents=[ROOT, 0, 0, 1]), skip=0)

    assert (tail.num_before_branches, tail.num_branching) == (3, 3)
    assert tail.tree(3) is None
    assert tail.tree(5) == TreeShape((ROOT, 0, 1, 2, 2))
    tail.consume(3)
    assert tail.tree(3) == TreeShape((ROOT, ROOT, 0))
    tail.consume(3)
    assert (len(tail), tail.num_branching) == (0, 0)
    tail.append(block(6, [3, 4, 5], parents=[ROOT, 0, 0]), skip=1)
    assert tail.tree(2) == TreeShape((ROOT, ROOT))


# --- under a grammar -----------------------------------------------------------------------------

A, B, C, D = range(4)


def allowed(mask: torch.Tensor | None) -> set[int] | None:
    """The single letters, and the end, that may come next."""
    if mask is None:
        return None
    return set(mask.nonzero().flatten().tolist()) & {A, B, C, D, END}


def guidance() -> Guidance:
    engine = GrammarEngine(small_tokenizer())
    matcher = engine.matcher(regex_grammar("a(b|c)d"), prompt_length=3, end_ids=[END])
    return Guidance(matcher)


def test_each_node_has_the_mask_of_its_own_path() -> None:
    """L03: grammar limits apply per path; behind what the grammar forbids there is none."""
    shape = TreeShape((ROOT, ROOT, 0, 0, 2, 4, 1))
    found = guidance().masks((A, B, B, C, D, END, D), 8, shape)

    masks = [allowed(mask) for mask in found]
    assert masks == [{A}, {B, C}, None, {D}, {D}, {END}, None, None]


def test_what_was_decided_along_a_path_is_taken_and_the_other_branches_are_not() -> None:
    guide = guidance()
    shape = TreeShape((ROOT, 0, 0, 1))
    guide.masks((A, B, C, D), 5, shape)
    judgement = Judgement(2, D, path=(0, 2))

    assert guide.settle(judgement, [A, C]) == judgement
    assert allowed(guide.masks((), 1)[0]) == {END}


def test_what_a_row_without_a_mask_decided_is_no_output() -> None:
    guide = guidance()
    shape = TreeShape((ROOT, 0, 1, 2))
    guide.masks((A, B, D, END), 5, shape)

    settled = guide.settle(Judgement(4, A, path=(0, 1, 2, 3)), [A, B, D, END])

    assert settled == Judgement(4, None, path=(0, 1, 2, 3))
