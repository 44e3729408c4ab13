"""Full draft distributions over a vocabulary of 151,936: megabytes a block, in both directions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.services import Stack, scripted
from torch import Tensor

from paceline.errors import ConfigError, InvalidArgumentError
from paceline.runtime.scripted import ScriptedRunner

VOCAB = 151_936
MIB = 2**20
ROW_BYTES = 4 * VOCAB
FIELDS: dict[str, Any] = {
    "token_ids": [1, 2, 3],
    "max_tokens": 24,
    "temperature": 1.0,
    "seed": 3,
    "draft_probs": "dense",
    "window": 14,
}


def wide_model(scale: float) -> ScriptedRunner:
    """Its logits depend on the last token; `scale` makes draft and target differ a little."""
    base = torch.linspace(-scale, scale, VOCAB)

    def script(history: Sequence[int]) -> Tensor:
        return base.roll(history[-1])

    return ScriptedRunner(script, vocab_size=VOCAB)


@asynccontextmanager
async def wide(tokenizer: Path, **sections: Any) -> AsyncIterator[Stack]:
    async with scripted(wide_model(4.0), wide_model(4.5), tokenizer=tokenizer, **sections) as stack:
        yield stack


async def test_blocks_on_either_side_of_grpcs_own_limit_travel(byte_tokenizer_dir: Path) -> None:
    """G05: k = 6 makes 3.6 MB, k = 7 makes 4.25 MB, above gRPC's default of 4 MiB."""
    async with wide(byte_tokenizer_dir) as stack:
        for block in (6, 7):
            result = await stack.generate(**FIELDS, num_speculative_tokens=block)
            assert len(result.token_ids) == 24
            stats = result.stats
            assert stats.accepted > 0
            # each drafted row reached us from the drafter, and the verifier from us
            assert stats.bytes_drafter > stats.drafted * ROW_BYTES
            assert stats.bytes_verifier > stats.judged * ROW_BYTES
            assert block * ROW_BYTES < 4 * MIB if block == 6 else block * ROW_BYTES > 4 * MIB


async def test_a_limit_that_the_configured_block_exceeds_is_an_error_at_start(
    byte_tokenizer_dir: Path,
) -> None:
    """G05."""
    dense = {"draft_probs": "dense", "num_speculative_tokens": 7}
    with pytest.raises(ConfigError, match=r"grpc\.max_message_bytes.*num_speculative_tokens"):
        async with wide(
            byte_tokenizer_dir,
            grpc={"max_message_bytes": 4 * MIB},
            orchestrator={"speculation": dense},
        ):
            pass


async def test_a_request_whose_blocks_exceed_the_limit_is_refused_and_others_go_on(
    byte_tokenizer_dir: Path,
) -> None:
    """G05."""
    async with wide(byte_tokenizer_dir, grpc={"max_message_bytes": 4 * MIB}) as stack:
        running = stack.client.generate(**FIELDS, num_speculative_tokens=6)
        chunks = [await anext(running)]
        with pytest.raises(InvalidArgumentError, match=r"^num_speculative_tokens: .* bytes"):
            await stack.generate(**FIELDS, num_speculative_tokens=7)
        chunks += [chunk async for chunk in running]
        assert sum(len(chunk.tokens) for chunk in chunks) == 24
        assert chunks[-1].stats is not None
        assert chunks[-1].stats.accepted > 0
