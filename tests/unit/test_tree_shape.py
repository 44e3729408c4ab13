"""The shape of a draft that branches, against what its words mean."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tree_shape import ROOT, TreeShape

EXAMPLE = TreeShape((ROOT, 0, 1, 1, 2, 1))


@st.composite
def shapes(draw: st.DrawFn) -> TreeShape:
    size = draw(st.integers(0, 10))
    return TreeShape(tuple(draw(st.integers(ROOT, node - 1)) for node in range(size)))


def test_an_example() -> None:
    assert EXAMPLE.paths == ((0,), (0, 1), (0, 1, 2), (0, 1, 3), (0, 1, 2, 4), (0, 1, 5))
    assert EXAMPLE.depths == (0, 1, 2, 2, 3, 2)
    assert EXAMPLE.children(1) == [2, 3, 5]
    assert EXAMPLE.children(ROOT) == [0]
    assert EXAMPLE.trunk == 2
    assert EXAMPLE.without_trunk() == TreeShape((ROOT, ROOT, 0, ROOT))
    assert EXAMPLE.walk("abcdef", "abfx") == (0, 1, 5)
    assert EXAMPLE.walk("abcdef", "x") == ()


@pytest.mark.parametrize("length", range(4))
def test_a_chain_is_all_trunk(length: int) -> None:
    chain = TreeShape(tuple(range(ROOT, length - 1)))

    assert chain.is_chain
    assert chain.trunk == length
    assert len(chain.without_trunk()) == 0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(shape=shapes())
def test_the_trunk_is_what_every_path_begins_with(shape: TreeShape) -> None:
    trunk = tuple(range(shape.trunk))
    for path in shape.paths:
        shared = min(len(path), shape.trunk)
        assert path[:shared] == trunk[:shared]
    if not shape.is_chain:  # and no longer one would do
        assert len(shape.children(shape.trunk - 1)) != 1
    rest = shape.without_trunk()
    assert [len(path) + shape.trunk for path in rest.paths] == [
        len(path) for path in shape.paths[shape.trunk :]
    ]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(shape=shapes(), data=st.data())
def test_a_walk_finds_the_path_that_holds_the_tokens(shape: TreeShape, data: st.DataObject) -> None:
    tokens = list(range(100, 100 + len(shape)))
    path = data.draw(st.sampled_from([(), *shape.paths]))
    beyond = data.draw(st.lists(st.integers(0, 9), max_size=2))

    assert shape.walk(tokens, [*(tokens[node] for node in path), *beyond]) == path
