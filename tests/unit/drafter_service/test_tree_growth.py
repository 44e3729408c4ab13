"""How a tree grows: best first, under a budget, by what is expected and not by what was drawn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service.tree_growth import TreeGrowth
from paceline.sampling.draw import Draw
from paceline.sampling.tree_draw import Children
from paceline.tree_shape import ROOT, TreeShape

END = 99


def growth(max_nodes: int, num_slots: int = 1000) -> TreeGrowth:
    return TreeGrowth(
        root=3, epoch=0, max_nodes=max_nodes, num_slots=num_slots, end_ids=frozenset({END})
    )


def children(*expected: float, first: int = 0) -> Children:
    return Children([Draw(first + i, None) for i in range(len(expected))], list(expected))


def feed(tree: TreeGrowth, nodes: list[int], *families: Children) -> None:
    tree.fed += [node for node in nodes if node != ROOT]
    for node, family in zip(nodes, families, strict=True):
        tree.expand(node, family)


def test_an_example_grows_where_most_is_expected() -> None:
    tree = growth(4)
    feed(tree, [ROOT], children(0.6, 0.3, 0.1))
    assert tree.frontier() == [0, 1, 2]
    feed(tree, [0, 1, 2], children(0.5, 0.4), children(0.9), children(1.0))
    # 0.6, 0.3, 0.3 = 0.6 x 0.5, 0.27 = 0.3 x 0.9, then 0.24 and twice 0.1
    assert tree.frontier() == [3]
    feed(tree, [3], children(0.2))
    assert tree.frontier() == []
    draws, shape = tree.tree()
    assert [draw.token_id for draw in draws] == [0, 1, 0, 0]
    assert shape == TreeShape((ROOT, ROOT, 0, 1))


def test_where_one_child_outweighs_all_others_a_chain_grows_in_as_many_passes() -> None:
    tree = growth(5)
    feed(tree, [ROOT], children(0.9, 0.05))
    num_passes = 1
    while nodes := tree.frontier():
        num_passes += 1
        feed(tree, nodes, *[children(0.9, 0.05)] * len(nodes))
    draws, shape = tree.tree()

    assert shape.is_chain
    assert len(draws) == num_passes == 5


def test_nothing_grows_behind_an_end() -> None:
    tree = growth(6)
    feed(tree, [ROOT], children(0.9, first=END))

    assert tree.frontier() == []
    assert tree.tree()[1] == TreeShape((ROOT,))


def law_of(path: tuple[int, ...], seed: int) -> list[float]:
    """What is expected of three children of a node, a function of its path."""
    weights = sorted((hash((seed, path, i)) % 97 + 1 for i in range(3)), reverse=True)
    return [weight / sum(weights) for weight in weights]


def grown(tree: TreeGrowth, seed: int, nodes: list[int] | None = None) -> TreeGrowth:
    nodes = [ROOT]
    while nodes:
        feed(tree, nodes, *(children(*law_of(tree.path(node), seed)) for node in nodes))
        assert len(tree.fed) <= tree._num_slots
        nodes = tree.frontier()
    return tree


def best_first(max_nodes: int, seed: int) -> set[tuple[int, ...]]:
    """The paths of the best nodes, one by one from the root."""
    open_nodes = {(i,): value for i, value in enumerate(law_of((), seed))}
    found: set[tuple[int, ...]] = set()
    while len(found) < max_nodes:
        path = max(open_nodes, key=lambda p: open_nodes[p])
        value = open_nodes.pop(path)
        found.add(path)
        for i, share in enumerate(law_of(path, seed)):
            open_nodes[(*path, i)] = value * share
    return found


@settings(max_examples=100, deadline=None, derandomize=True)
@given(max_nodes=st.integers(2, 12), seed=st.integers(0, 10**6), spare=st.integers(0, 10))
def test_the_tree_is_that_of_a_best_first_search_however_little_room_there_is(
    max_nodes: int, seed: int, spare: int
) -> None:
    """So that it does not depend on which nodes share a pass, and the cache never overflows."""
    tree = grown(growth(max_nodes, num_slots=max_nodes - 1 + spare), seed)
    draws, shape = tree.tree()
    paths = {
        tuple(draws[ancestor].token_id for ancestor in shape.paths[node])
        for node in range(len(shape))
    }

    assert len(shape) == max_nodes
    assert paths == best_first(max_nodes, seed)


def test_what_was_fed_is_found_again_by_its_tokens() -> None:
    tree = grown(growth(8), seed=3)
    slots = {tree.path(node): slot for slot, node in enumerate(tree.fed)}
    deepest = max(slots, key=len)

    found = tree.path_of([*deepest, 77])
    assert found == tuple(slots[deepest[: i + 1]] for i in range(len(deepest)))
    assert tree.path_of([88]) == ()


@pytest.mark.parametrize("max_children", [2, 3])
def test_no_two_draws_of_a_tree_share_a_place(max_children: int) -> None:
    tree = growth(6)
    places = []
    nodes = [ROOT]
    while nodes:
        for node in nodes:
            first = tree.place(max_children)
            places += range(first, first + max_children)
            feed(tree, [node], children(*law_of(tree.path(node), 1)[:max_children]))
        nodes = tree.frontier()

    assert len(set(places)) == len(places)
    assert min(places) == 1
