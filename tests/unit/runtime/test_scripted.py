"""The scripted model keeps the contract of real runners, so that what it proves holds for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from paceline.runtime.runner import Chunk
from paceline.runtime.scripted import ScriptedRunner, hashed_script, table_script

VOCAB = 7
SCRIPT = hashed_script(VOCAB, seed=4)


def runner(script: object = SCRIPT) -> ScriptedRunner:
    return ScriptedRunner(script, vocab_size=VOCAB, num_pages=8, page_size=4)  # type: ignore[arg-type]


def test_rows_are_those_of_the_last_tokens_of_each_chunk() -> None:
    model = runner()
    first, second = model.pool.open_table(12), model.pool.open_table(12)
    logits = model.forward([Chunk(first, [1, 2, 3], 2), Chunk(second, [4], 1)])
    expected = [SCRIPT([1, 2]), SCRIPT([1, 2, 3]), SCRIPT([4])]
    assert torch.equal(logits, torch.stack(expected))
    assert model.passes == [[(3, 2), (1, 1)]]
    assert model.forward([Chunk(first, [5], 0)]).shape == (0, VOCAB)
    logits = model.forward([Chunk(first, [6], 1), Chunk(second, [5, 6], 2)])
    expected = [SCRIPT([1, 2, 3, 5, 6]), SCRIPT([4, 5]), SCRIPT([4, 5, 6])]
    assert torch.equal(logits, torch.stack(expected))


def test_a_rollback_that_is_wrong_changes_the_output() -> None:
    """It reads the history back through the pages, as attention does."""
    model = runner()
    table = model.pool.open_table(12)
    model.forward([Chunk(table, [1, 2, 3, 4, 5], 1)])
    table.truncate(2)
    logits = model.forward([Chunk(table, [6], 1)])
    assert torch.equal(logits[0], SCRIPT([1, 2, 6]))
    table.pages.reverse()
    table.pages.insert(0, 7)
    assert not torch.equal(model.forward([Chunk(table, [6], 1)])[0], SCRIPT([1, 2, 6, 6]))


@pytest.mark.parametrize(("token_ids", "num_logits"), [([], 0), ([1], 2), ([1], -1)])
def test_what_no_runner_can_do_is_refused(token_ids: list[int], num_logits: int) -> None:
    model = runner()
    table = model.pool.open_table(12)
    with pytest.raises(AssertionError):
        model.forward([Chunk(table, token_ids, num_logits)])


def test_a_pass_that_raises_leaves_the_tables_as_they_were() -> None:
    """D07."""

    def script(history: Sequence[int]) -> torch.Tensor:
        if history[-1] == 6:
            raise RuntimeError("out of memory")
        return SCRIPT(history)

    model = runner(script)
    first, second = model.pool.open_table(12), model.pool.open_table(12)
    model.forward([Chunk(first, [1, 2], 1)])
    with pytest.raises(RuntimeError, match="out of memory"):
        model.forward([Chunk(first, [3, 4, 5], 1), Chunk(second, [5, 6], 1)])
    assert (first.length, second.length) == (2, 0)
    model.pool.check_integrity()
    assert torch.equal(model.forward([Chunk(first, [3], 1)])[0], SCRIPT([1, 2, 3]))


def test_a_table_script_looks_the_last_token_up() -> None:
    script = table_script({0: {1: 0.75, 2: 0.25}, 1: {0: 1.0}}, 3)
    probs = script([1, 0]).softmax(0)
    torch.testing.assert_close(probs, torch.tensor([0.0, 0.75, 0.25]))
    everywhere = table_script(lambda last: {(last + 1) % 3: 1.0}, 3)
    assert int(everywhere([2]).argmax()) == 0


def test_a_hashed_script_depends_on_its_last_tokens_and_the_position() -> None:
    again = hashed_script(VOCAB, seed=4)
    assert torch.equal(SCRIPT([1, 2, 3, 4]), again([1, 2, 3, 4]))
    assert torch.equal(SCRIPT([1, 2, 3, 4]), SCRIPT([5, 2, 3, 4])), "older tokens do not count"
    for other in ([1, 2, 3, 5], [1, 0, 3, 4], [1, 1, 2, 3, 4]):
        assert not torch.equal(SCRIPT([1, 2, 3, 4]), SCRIPT(other))
    assert not torch.equal(SCRIPT([1]), hashed_script(VOCAB, seed=5)([1]))
