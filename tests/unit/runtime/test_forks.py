"""A sequence that goes on in several ways: shared pages, and each way as if it were alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_harness import plain_logits, tiny_runner
from support.tiny_models import tiny_model
from torch import Tensor

from paceline.errors import ResourceExhaustedError
from paceline.runtime.emulated import EmulatedRunner
from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable, fork_all
from paceline.runtime.pass_cost import PassCost
from paceline.runtime.prefix_cache import PrefixCache
from paceline.runtime.runner import Chunk, Runner
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.runtime.synthetic import SyntheticLaw, SyntheticRunner

PAGE = 4


def slots(table: PageTable) -> list[int]:
    return [table.slot(position) for position in range(table.length)]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(data=st.data(), length=st.integers(1, 30))
def test_a_fork_shares_full_pages_and_copies_the_rest(data: st.DataObject, length: int) -> None:
    """And the books are right, whichever of the forks goes on in the end."""
    pool = PagePool(num_pages=40, page_size=PAGE)
    table = pool.open_table(60)
    table.grow(length)
    room = pool.available_pages
    forks: list[PageTable] = []
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, length))
        num_tokens = data.draw(st.integers(0, 9))
        fork, copies = table.fork(at, num_tokens)
        shared = at // PAGE
        assert fork.pages[:shared] == table.pages[:shared]
        assert copies == list(
            zip(table.pages[shared : shared + bool(at % PAGE)], fork.pages[shared:], strict=True)
        )
        fork.grow(data.draw(st.integers(0, num_tokens)))
        forks.append(fork)
        pool.check_integrity()
    table.grow(data.draw(st.integers(0, 60 - length)))
    own = [slot for fork in forks for slot in slots(fork) if slot not in slots(table)]
    assert len(own) == len(set(own)), "two forks write to the same slot"
    taken = data.draw(st.sampled_from([None, *forks]))
    for fork in forks:
        if fork is not taken:
            fork.free()
            fork.free()
    if taken is not None:
        held = slots(taken)
        table.graft(taken)
        assert slots(table) == held
        assert taken.closed
    pool.check_integrity()
    assert pool.available_pages == room, "the table has what it had reserved, and no more"
    table.grow(60 - table.length)
    table.free()
    assert (pool.used_pages, pool.available_pages) == (0, 40)


def test_a_fork_without_room_takes_nothing() -> None:
    pool = PagePool(num_pages=4, page_size=PAGE)
    table = pool.open_table(12)
    table.grow(6)
    with pytest.raises(ResourceExhaustedError, match="2 pages needed, 1 of 4 free"):
        table.fork(6, 4)
    pool.check_integrity()
    assert pool.available_pages == 1
    fork, _ = table.fork(6, 2)
    assert (fork.length, pool.available_pages) == (6, 0)


def test_as_many_forks_are_made_as_there_is_room_for() -> None:
    """And none is left behind if copying fails."""
    pool = PagePool(num_pages=8, page_size=PAGE)
    table = pool.open_table(12)
    table.grow(7)
    copied: list[Sequence[tuple[int, int]]] = []
    forks = fork_all(table, [4, 5, 6, 7], 4, copy=copied.append)
    assert [fork.length for fork in forks] == [4, 5, 6]
    assert copied == [[(table.pages[1], fork.pages[1]) for fork in forks[1:]]]
    for fork in forks:
        fork.free()

    def burn(pages: Sequence[tuple[int, int]]) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        fork_all(table, [5, 6], 4, copy=burn)
    pool.check_integrity()
    assert pool.available_pages == 5


def test_pages_that_others_may_find_stay_whole() -> None:
    """What is sealed is shared like any full page, and outlasts the fork and the table."""
    pool = PagePool(num_pages=12, page_size=PAGE)
    prefixes = PrefixCache(pool, enabled=True)
    tokens = list(range(10))
    table = pool.open_table(20)
    table.grow(9)
    prefixes.publish(table, tokens, 9, salt="")
    fork, _ = table.fork(9, 3)
    fork.grow(3)
    table.graft(fork)
    pool.check_integrity()
    assert len(table.keys) == 2
    table.free()
    again = pool.open_table(20, prefixes.keys(tokens, salt=""))
    assert again.length == 8
    pool.check_integrity()


def scripted() -> Runner:
    return ScriptedRunner(hashed_script(11, seed=1), vocab_size=11, num_pages=64, page_size=PAGE)


def synthetic() -> Runner:
    law = SyntheticLaw(seed=2, num_plain_ids=64, vocab_size=64)
    return SyntheticRunner(law, context_length=4096, num_pages=64, page_size=PAGE)


RUNNERS: dict[str, Callable[[], Runner]] = {
    "scripted": scripted,
    "synthetic": synthetic,
    "emulated": lambda: EmulatedRunner(synthetic(), PassCost(0.0)),
    **{arch: lambda arch=arch: tiny_runner(arch) for arch in ("llama", "mistral", "gemma2")},
}


@pytest.mark.parametrize("name", RUNNERS)
def test_each_way_goes_on_as_if_it_were_alone(name: str) -> None:
    """Some fork in the midst of a page, some at its end; all of them and the sequence itself go on
    in the same passes."""
    runner, rng = RUNNERS[name](), random.Random(3)
    ids = [rng.randrange(runner.vocab_size) for _ in range(13)]
    table = runner.pool.open_table(40)
    runner.forward([Chunk(table, ids, 1)])
    ways = [([*ids], table)]
    places = (5, 8, 11, 12, 13)
    forks = runner.fork(table, places, 6)
    ways += [(ids[:at], fork) for at, fork in zip(places, forks, strict=True)]
    for _ in range(6):
        chunks = []
        for tokens, way in ways:
            tokens.append(rng.randrange(runner.vocab_size))
            chunks.append(Chunk(way, tokens[-1:], 1))
        found = runner.forward(chunks)
        for (tokens, _), row in zip(ways, found, strict=True):
            assert torch.allclose(row, alone(name, runner, tokens), atol=1e-5)
    taken, fork = ways[3]
    for _, other in ways[1:]:
        if other is not fork:
            other.free()
    table.graft(fork)
    taken.append(1)
    (row,) = runner.forward([Chunk(table, [1], 1)])
    assert torch.allclose(row, alone(name, runner, taken), atol=1e-5)
    table.free()
    assert runner.pool.used_pages == 0


def alone(name: str, runner: Runner, tokens: Sequence[int]) -> Tensor:
    """The last row of a sequence that is computed by itself."""
    if name in ("scripted", "synthetic", "emulated"):
        table = runner.pool.open_table(len(tokens))
        row = runner.forward([Chunk(table, tokens, 1)])[0]
        table.free()
        return row
    return plain_logits(tiny_model(name), tokens)[-1]
