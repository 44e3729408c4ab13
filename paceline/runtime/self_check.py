"""Proof at load time that the ragged path computes what the model itself computes.

Architectures whose attention means something else (prefix masks, cross attention, position
biases, …) are found out here instead of producing wrong tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.runtime.kv_cache import RecordingCache
from paceline.runtime.kv_store import KVStore, LayerShape
from paceline.runtime.model_runner import ModelRunner, cache_argument
from paceline.runtime.page_pool import PagePool
from paceline.runtime.runner import Chunk

NUM_TOKENS = 10
PAGE_SIZE = 4  # so that the check crosses pages


@dataclass(frozen=True, slots=True)
class Reference:
    """What the untouched model says about a few random tokens."""

    token_ids: tuple[int, ...]
    logits: Tensor  # [num_tokens, vocab_width]
    shapes: dict[int, LayerShape]


@torch.inference_mode()
def take_reference(model: PreTrainedModel, vocab_size: int) -> Reference:
    """Run the model with its own attention, and learn from the same pass what each layer caches."""
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(vocab_size, (1, NUM_TOKENS), generator=generator)
    cache = RecordingCache()
    output = model(
        input_ids=token_ids.to(model.device),
        position_ids=torch.arange(NUM_TOKENS, device=model.device)[None],
        use_cache=True,
        **{cache_argument(model): cache},
    )
    return Reference(tuple(token_ids[0].tolist()), output.logits[0], cache.shapes)


def deviation(model: PreTrainedModel, reference: Reference) -> float:
    """How far the ragged path is from the reference.

    Two sessions share each pass. One is prefilled, takes two wrong drafts, is rolled back and
    continued; the other decodes one token and then takes a longer chunk. Returns the norm of the
    difference of the logits relative to that of the centred reference; NaN if either has one.
    """
    ids = reference.token_ids
    pool = PagePool(num_pages=2 * -(-NUM_TOKENS // PAGE_SIZE), page_size=PAGE_SIZE)
    runner = ModelRunner(
        model,
        KVStore(
            reference.shapes,
            num_pages=pool.num_pages,
            page_size=pool.page_size,
            device=model.device,
        ),
        pool,
        vocab_size=reference.logits.shape[1],
        context_length=NUM_TOKENS,
    )
    first, second = pool.open_table(NUM_TOKENS), pool.open_table(NUM_TOKENS)
    prefilled = runner.forward([Chunk(first, ids[:6], 6), Chunk(second, ids[:3], 3)])
    decoded = runner.forward([Chunk(first, ids[1:3], 0), Chunk(second, ids[3:4], 1)])
    first.truncate(6)
    continued = runner.forward([Chunk(first, ids[6:], 4), Chunk(second, ids[4:], 6)])
    got = torch.cat((prefilled, decoded, continued)).float()
    positions = [*range(6), *range(3), 3, *range(6, 10), *range(4, 10)]
    expected = reference.logits.float()[positions]
    centred = expected - expected.mean(dim=1, keepdim=True)
    return float((got - expected).norm() / centred.norm())
