"""Which drafters a verifier takes: ids must mean the same, paddings may differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.byte_tokenizer import BOS_ID
from support.services import running, scripted, settings

import orchestrator.service
from drafter_service.ngram import NgramDrafter
from paceline.config import NgramConfig, parse_config
from paceline.errors import StartupError, VocabularyMismatchError
from paceline.runtime.scripted import ScriptedRunner, hashed_script, table_script
from paceline.runtime.tokenizer import Tokenizer
from paceline.types import OpenSession

MakeDir = Callable[..., Path]


async def test_swapped_ids_are_refused_at_start_and_named(tiny_dir: MakeDir) -> None:
    """C02: the same size, ids 10 and 11 swapped; nothing stays behind."""
    document = settings(tiny_dir(), tiny_dir(1, swap=(10, 11)))
    before = asyncio.all_tasks()
    with pytest.raises(VocabularyMismatchError, match="token id 10 is"):
        async with running(document):
            pass
    assert asyncio.all_tasks() == before


async def test_another_bos_is_refused_at_start(tiny_dir: MakeDir) -> None:
    """C02."""
    with pytest.raises(VocabularyMismatchError, match=r"BOS token id is 256 .* 257 for the draft"):
        async with running(settings(tiny_dir(), tiny_dir(1, bos="<eos>"))):
            pass


async def test_a_verifier_in_the_drafters_place_is_refused(tiny_dir: MakeDir) -> None:
    document = settings(tiny_dir(), "ngram")
    async with running(document) as stack:
        wrong = settings(tiny_dir(), "ngram", orchestrator={"tokenizer": str(tiny_dir())})
        address = stack.verifiers[0].address
        wrong["orchestrator"] |= {"verifiers": [address], "drafters": [address]}
        with pytest.raises(StartupError, match="cannot be used"):
            await orchestrator.service.start(parse_config(wrong, source="test"))


async def test_a_draft_that_differs_in_padding_only_serves(tiny_dir: MakeDir) -> None:
    """C02: embedding rows beyond the tokenizer are no difference."""
    async with running(settings(tiny_dir(0, 320), tiny_dir(0, 512))) as stack:
        result = await stack.generate(token_ids=[5, 6, 7], max_tokens=8, temperature=0)
        assert result.stats.drafted > 0


class _Witness(NgramDrafter):
    """Remembers what it was asked to draft for."""

    def __init__(self) -> None:
        super().__init__(NgramConfig())
        self.openings: list[OpenSession] = []

    def reserve(self, key: Any, opening: OpenSession) -> None:
        self.openings.append(opening)
        super().reserve(key, opening)


async def test_a_chat_starts_with_one_bos_and_both_workers_get_the_same_ids(
    byte_tokenizer_dir: Path, tiny_dir: MakeDir
) -> None:
    """C07: the template writes BOS, and the tokenizer of the second directory adds one too."""
    for folder in (byte_tokenizer_dir, tiny_dir()):
        prompts: list[list[int]] = []

        def script(history: Sequence[int], seen: list[list[int]] = prompts) -> Any:
            seen.append(list(history))
            return hashed_script(258)(history)

        witness = _Witness()
        target = ScriptedRunner(script, vocab_size=258)
        async with scripted(target, witness, tokenizer=folder) as stack:
            result = await stack.generate(
                messages=[{"role": "user", "content": "hi"}], max_tokens=4, temperature=0
            )
        ids = list(witness.openings[0].token_ids)
        assert ids == prompts[0]
        assert ids == [BOS_ID, *b"user: hi\nassistant:"]
        assert ids.count(BOS_ID) == 1
        assert result.usage.prompt_tokens == len(ids)
        assert Tokenizer.load(str(folder)).bos_token_id == BOS_ID


async def test_any_of_the_targets_end_ids_ends_the_text_and_none_of_the_drafts(
    byte_tokenizer_dir: Path,
) -> None:
    """B07: the target ends with 2 or 5, the draft's own end 7 is a token as any other."""
    chain = {1: 3, 3: 4, 4: 7, 7: 8, 8: 9, 9: 5, 5: 6, 6: 6, 2: 2}
    rows = {token: {after: 1.0} for token, after in chain.items()}
    target = ScriptedRunner(table_script(rows, 10), vocab_size=10)
    draft = ScriptedRunner(table_script(rows, 10), vocab_size=10)
    for temperature in (0.0, 1.0):
        async with scripted(
            target, draft, tokenizer=byte_tokenizer_dir, eos_token_ids=(2, 5)
        ) as stack:
            result = await stack.generate(
                token_ids=[1], max_tokens=50, temperature=temperature, num_speculative_tokens=3
            )
            assert result.token_ids == [3, 4, 7, 8, 9, 5]
            assert result.finish_reason == "stop"
            assert result.usage.completion_tokens == 6
            going_on = await stack.generate(token_ids=[1], max_tokens=12, ignore_eos=True)
            assert going_on.token_ids == [3, 4, 7, 8, 9, 5, 6, 6, 6, 6, 6, 6]
