"""A draft that branches in one ragged pass: each node as if its path were run alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from ragged_harness import plain_logits, tiny_runner
from support.tiny_models import ARCHITECTURES, FURTHER_ARCHITECTURES, tiny_model
from torch import Tensor

from paceline.runtime.emulated import EmulatedRunner
from paceline.runtime.pass_cost import PassCost
from paceline.runtime.runner import Chunk, Runner
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.runtime.synthetic import SyntheticLaw, SyntheticRunner
from paceline.tree_shape import ROOT, TreeShape

UNEQUAL = TreeShape((ROOT, ROOT, 0, ROOT, 2, 0, 4, 1, 6))
"""Three branches, of 5, 2 and 1 tokens; one of them branches again."""
DEEP = TreeShape((ROOT, ROOT, 0, 2, 1, 3, 5, 6, 7, 5, 8, 10, 11, 10))
"""Of 11 levels: a window of 8 begins inside the tree, behind nodes of other branches."""
Alone = Callable[[Sequence[int]], Tensor]
"""Logits `[num_tokens, vocab]` of a sequence run by itself."""


def run_alone(arch: str, dtype: torch.dtype = torch.float32) -> Alone:
    """The model itself. Over many passes float32 is as far from float64 as a ragged pass is."""
    model = tiny_model(arch).to(dtype)
    return lambda ids: plain_logits(model, ids)


def path_tokens(tokens: Sequence[int], tree: TreeShape, node: int) -> list[int]:
    return [tokens[ancestor] for ancestor in tree.paths[node]]


def random_tree(rng: random.Random, size: int) -> TreeShape:
    return TreeShape(tuple(rng.randint(max(ROOT, node - 4), node - 1) for node in range(size)))


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *FURTHER_ARCHITECTURES])
def test_node_logits_equal_those_of_each_path_run_alone(arch: str) -> None:
    """L03: windows of 8 are exceeded by the prompt, by prompt and tree, and by the tree alone."""
    runner, alone = tiny_runner(arch), run_alone(arch)
    for seed, (length, num_uncached) in enumerate([(1, 1), (9, 3), (23, 1), (30, 2)]):
        for tree in (UNEQUAL, DEEP):
            worst = worst_node(runner, alone, seed, tree, length=length, num_uncached=num_uncached)
            assert worst < 1e-5


def worst_node(
    runner: Runner, alone: Alone, seed: int, tree: TreeShape, *, length: int, num_uncached: int
) -> float:
    """Largest difference of a node's logits from its path's; others share the pass."""
    rng = random.Random(seed)
    ids = [rng.randrange(runner.vocab_size) for _ in range(length + len(tree))]
    prompt, nodes = ids[:length], ids[length:]
    table, chain = runner.pool.open_table(len(ids)), runner.pool.open_table(len(ids))
    if num_uncached < length:
        runner.forward([Chunk(table, prompt[: length - num_uncached], 0)])
    new = [*prompt[length - num_uncached :], *nodes]
    logits = runner.forward([Chunk(chain, ids[:5], 1), Chunk(table, new, len(nodes) + 1, tree)])
    worst = float((logits[0] - alone(ids[:5])[-1]).abs().max())
    worst = max(worst, float((logits[1] - alone(prompt)[-1]).abs().max()))
    for node, row in enumerate(logits[2:]):
        expected = alone(prompt + path_tokens(nodes, tree, node))[-1]
        worst = max(worst, float((row - expected).abs().max()))
    table.free()
    chain.free()
    return worst


def grow_and_keep(runner: Runner, alone: Alone, seed: int) -> float:
    """Trees that grow over several passes, of which a path is kept, again and again."""
    rng = random.Random(seed)
    table = runner.pool.open_table(80)
    tokens = [rng.randrange(runner.vocab_size) for _ in range(rng.randint(1, 12))]
    runner.forward([Chunk(table, tokens, 0)])
    worst = 0.0
    for _ in range(4):
        tree = random_tree(rng, rng.randint(2, 9))
        nodes = [rng.randrange(runner.vocab_size) for _ in range(len(tree))]
        done = 0
        while done < len(tree):
            count = rng.randint(1, len(tree) - done)
            part = TreeShape(tree.parents[: done + count])
            logits = runner.forward([Chunk(table, nodes[done : done + count], count, part)])
            for node, row in enumerate(logits, start=done):
                expected = alone(tokens + path_tokens(nodes, tree, node))[-1]
                worst = max(worst, float((row - expected).abs().max()))
            done += count
        path = rng.choice([(), *tree.paths])
        runner.keep(table, len(tokens), path)
        tokens += [nodes[node] for node in path]
        assert table.length == len(tokens)
        # what follows reads the moved slots
        tokens.append(rng.randrange(runner.vocab_size))
        (row,) = runner.forward([Chunk(table, tokens[-1:], 1)])
        worst = max(worst, float((row - alone(tokens)[-1]).abs().max()))
    table.free()
    runner.pool.check_integrity()
    return worst


@pytest.mark.parametrize("arch", ["llama", "gemma2", "mistral", "gpt2", "opt"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_what_is_kept_of_a_path_is_as_if_it_had_been_computed_in_place(
    arch: str, page_size: int
) -> None:
    """L03: slots move, positions were the depths already; pages are crossed in both directions."""
    runner, alone = tiny_runner(arch, page_size=page_size), run_alone(arch, torch.float64)
    for seed in range(2):
        assert grow_and_keep(runner, alone, seed) < 1e-5


def scripted() -> tuple[Runner, Alone]:
    script = hashed_script(7, order=4)
    runner = ScriptedRunner(script, vocab_size=7)
    return runner, lambda ids: torch.stack([script(ids[: i + 1]) for i in range(len(ids))])


def synthetic() -> tuple[Runner, Alone]:
    law = SyntheticLaw(seed=3, num_plain_ids=290, vocab_size=300)
    runner = SyntheticRunner(law, context_length=512, num_pages=64, page_size=4)

    def alone(ids: Sequence[int]) -> Tensor:
        return law.logits([(state, i + 1) for i, state in enumerate(law.states(ids))])

    return runner, alone


def emulated() -> tuple[Runner, Alone]:
    runner, alone = synthetic()
    return EmulatedRunner(runner, PassCost(0.0)), alone


@pytest.mark.parametrize("kind", [scripted, synthetic, emulated])
def test_models_without_weights_branch_like_real_ones(
    kind: Callable[[], tuple[Runner, Alone]],
) -> None:
    runner, alone = kind()
    for seed in range(5):
        assert grow_and_keep(runner, alone, seed) == 0.0


def test_only_what_left_the_likeliest_path_moves() -> None:
    table = ScriptedRunner(hashed_script(3), vocab_size=3, page_size=4).pool.open_table(40)
    table.grow(20)
    slots = [table.slot(position) for position in range(20)]

    assert table.keep(10, (0, 1, 4, 7)) == [(slots[14], slots[12]), (slots[17], slots[13])]
    assert table.length == 14
    assert table.keep(11, (0, 1)) == []
    assert table.keep(10, ()) == []
    assert table.length == 10
