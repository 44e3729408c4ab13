"""Text as it streams: whole characters, nothing of a stop string, the same as all at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.byte_tokenizer import EOS_ID
from support.services import Stack, collect, scripted, until
from torch import Tensor

from paceline.runtime.scripted import ScriptedRunner

VOCAB = 258
PROMPT = b"say:"


def writer(text: str) -> ScriptedRunner:
    """A model that writes `text` after PROMPT, a byte a token, and then ends."""
    written = [*text.encode(), EOS_ID]

    def script(history: Sequence[int]) -> Tensor:
        logits = torch.zeros(VOCAB)
        position = len(history) - len(PROMPT)
        logits[written[min(position, len(written) - 1)]] = 100.0
        return logits

    return ScriptedRunner(script, vocab_size=VOCAB)


async def stream(stack: Stack, **fields: Any) -> tuple[list[str], Any]:
    """Texts of the chunks as they came, and the whole."""
    chunks = [
        chunk
        async for chunk in stack.client.generate(
            token_ids=list(PROMPT), temperature=0, window=12, **fields
        )
    ]
    return [chunk.text for chunk in chunks], chunks[-1]


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5])
async def test_a_character_split_over_blocks_arrives_whole(
    block: int, byte_tokenizer_dir: Path
) -> None:
    """C04: the emoji's four bytes lie over two blocks."""
    text = "a😀b"
    async with scripted(
        writer(text), writer(text), tokenizer=byte_tokenizer_dir, eos_token_ids=(EOS_ID,)
    ) as stack:
        texts, last = await stream(stack, max_tokens=30, num_speculative_tokens=block)
        assert "".join(texts) == text
        assert not any("\ufffd" in part for part in texts)
        assert last.finish_reason == "stop"
        assert last.usage.completion_tokens == len(text.encode()) + 1
        for cut in range(1, 7):  # also inside the emoji
            texts, last = await stream(stack, max_tokens=cut, num_speculative_tokens=block)
            assert "".join(texts) == text.encode()[:cut].decode(errors="replace")
            assert last.usage.completion_tokens == cut
            assert last.finish_reason == "length"


@pytest.mark.parametrize("block", range(1, 9))
async def test_nothing_of_a_stop_string_is_sent_wherever_the_blocks_end(
    block: int, byte_tokenizer_dir: Path
) -> None:
    """B04, K02: usage counts what was delivered."""
    text = "ok\nUser:hi"
    async with scripted(
        writer(text), writer(text), tokenizer=byte_tokenizer_dir, eos_token_ids=(EOS_ID,)
    ) as stack:
        for window in (1, 4, 12):
            chunks = [
                chunk
                async for chunk in stack.client.generate(
                    token_ids=list(PROMPT),
                    temperature=0,
                    max_tokens=40,
                    num_speculative_tokens=block,
                    window=window,
                    stop="\nUser:",
                )
            ]
            assert "".join(chunk.text for chunk in chunks) == "ok"
            delivered = [token.id for chunk in chunks for token in chunk.tokens]
            assert bytes(delivered) == b"ok"
            assert chunks[-1].finish_reason == "stop"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 2


async def test_a_text_that_only_begins_like_a_stop_string_arrives_in_the_end(
    byte_tokenizer_dir: Path,
) -> None:
    """B04."""
    text = "ok\nUsual"
    async with scripted(
        writer(text), writer(text), tokenizer=byte_tokenizer_dir, eos_token_ids=(EOS_ID,)
    ) as stack:
        for cut in (3, 5, 40):  # "\n", "\nUs" and all of it, when the output ends
            result = await collect(
                stack.client,
                token_ids=list(PROMPT),
                temperature=0,
                max_tokens=cut,
                stop=["\nUser:", "\nUsx"],
            )
            assert result.text == text[:cut]


async def test_the_client_stops_the_workers_when_a_stop_string_is_found(
    byte_tokenizer_dir: Path,
) -> None:
    """The verifier has no end in sight; the stop string alone frees the session everywhere."""
    text = "so far, STOP and so on" * 40
    async with scripted(writer(text), writer(text), tokenizer=byte_tokenizer_dir) as stack:
        result = await collect(
            stack.client, token_ids=list(PROMPT), temperature=0, max_tokens=800, stop="STOP"
        )
        assert result.text == "so far, "
        await until(stack.is_idle, what="pages are freed")
