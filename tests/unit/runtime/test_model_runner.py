"""The ragged path equals plain forwards, for every promised architecture."""

from __future__ import annotations

import pytest
import torch
from ragged_harness import plain_logits, run_schedule, tiny_runner
from support.tiny_models import ARCHITECTURES, FURTHER_ARCHITECTURES, tiny_loaded, tiny_model

from paceline.config import RuntimeConfig
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *FURTHER_ARCHITECTURES])
def test_random_schedules_give_the_logits_of_plain_forwards(arch: str) -> None:
    """Mixed batches, chunked prefill, rollbacks; windows of 8 are exceeded (D01, D02, E01)."""
    runner, reference = tiny_runner(arch), tiny_model(arch)

    worst = run_schedule(runner, reference, seed=1, num_passes=25, max_length=40)

    assert worst < 1e-5


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_any_page_size_gives_the_same_logits(page_size: int) -> None:
    runner = tiny_runner("mistral", page_size=page_size)

    assert run_schedule(runner, tiny_model("mistral"), seed=2, num_passes=25, max_length=40) < 1e-5


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_full_and_sliding_layers_agree_with_both_plain_attentions(attention: str) -> None:
    """D02: window 8, prompts around it, blocks of 5."""
    runner, reference = tiny_runner("gemma3_text"), tiny_model("gemma3_text")
    reference.set_attn_implementation(attention)
    generator = torch.Generator().manual_seed(0)
    for length in (6, 8, 9, 30):
        ids = torch.randint(runner.vocab_size, (length + 10,), generator=generator).tolist()
        table = runner.pool.open_table(len(ids))
        runner.forward([Chunk(table, ids[:length], 0)])
        first = runner.forward([Chunk(table, ids[length : length + 5], 5)])
        second = runner.forward([Chunk(table, ids[length + 5 :], 5)])
        table.free()

        torch.testing.assert_close(
            torch.cat((first, second)), plain_logits(reference, ids)[length:], atol=1e-5, rtol=0
        )


def test_logits_rows_follow_the_order_of_chunks_whatever_shares_a_call() -> None:
    runner, reference = tiny_runner(), tiny_model()
    prompts = [[5] * 3, [6] * 60, [7], [8] * 33, [9] * 4]
    tables = [runner.pool.open_table(len(prompt)) for prompt in prompts]

    logits = runner.forward([Chunk(t, p, 1) for t, p in zip(tables, prompts, strict=True)])

    expected = torch.stack([plain_logits(reference, prompt)[-1] for prompt in prompts])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_a_pass_that_wants_no_logits_returns_no_rows() -> None:
    runner = tiny_runner()
    table = runner.pool.open_table(8)

    logits = runner.forward([Chunk(table, [1, 2, 3], 0)])

    assert logits.shape == (0, runner.vocab_size)
    assert table.length == 3


def test_a_padded_head_is_cut_to_the_vocabulary() -> None:
    """C01, the runner's part: columns past the tokenizer's ids never appear."""
    runner = build_runner(tiny_loaded(vocab_size=384), RuntimeConfig(), vocab_size=300)
    table = runner.pool.open_table(8)

    logits = runner.forward([Chunk(table, [1, 2, 299], 3)])

    assert runner.vocab_size == 300
    expected = plain_logits(tiny_model(vocab_size=384), [1, 2, 299])[:, :300]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_a_failing_pass_leaves_tables_at_their_old_lengths() -> None:
    """D07, the runner's part."""
    runner, reference = tiny_runner(), tiny_model()
    first, second = runner.pool.open_table(32), runner.pool.open_table(32)
    runner.forward([Chunk(first, [1, 2, 3], 0), Chunk(second, [4], 0)])
    used = runner.pool.used_pages
    layer = runner._model.model.layers[1]
    forward = layer.forward

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of memory")

    layer.forward = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.forward([Chunk(first, [7] * 9, 9), Chunk(second, [8, 9], 2)])
    layer.forward = forward

    assert (first.length, second.length) == (3, 1)
    assert runner.pool.used_pages == used
    logits = runner.forward([Chunk(first, [5], 1), Chunk(second, [6], 1)])
    expected = [plain_logits(reference, ids)[-1] for ids in ([1, 2, 3, 5], [4, 6])]
    torch.testing.assert_close(logits, torch.stack(expected), atol=1e-5, rtol=0)


def test_what_an_earlier_session_left_in_a_page_cannot_reach_a_later_one() -> None:
    """Even NaN, which a mask alone would let through."""
    runner, reference = tiny_runner(page_size=8, kv_tokens=16), tiny_model()
    for layer in runner._store.layers.values():
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    table, other = runner.pool.open_table(8), runner.pool.open_table(8)

    logits = runner.forward([Chunk(table, [1, 2, 3], 3), Chunk(other, [4], 1)])

    expected = torch.cat((plain_logits(reference, [1, 2, 3]), plain_logits(reference, [4])))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_bytes_of_the_cache_are_counted_exactly() -> None:
    runner = tiny_runner("gemma2", page_size=16, kv_tokens=100)

    tensors = [t for layer in runner._store.layers.values() for t in (layer.keys, layer.values)]

    assert runner.pool.num_pages == 6
    assert runner.kv_bytes == sum(t.numel() * t.element_size() for t in tensors)
    assert runner.kv_bytes == 3 * 2 * 96 * 2 * 16 * 4  # layers, K and V, slots, heads, width, bytes
