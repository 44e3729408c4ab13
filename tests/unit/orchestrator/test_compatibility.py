"""Workers that speak other ids, or serve another model, are refused with the first difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.byte_tokenizer import build_byte_tokenizer
from worker_fakes import FakeWorker

from orchestrator.compatibility import check_drafter, check_verifier
from paceline.errors import StartupError, VocabularyMismatchError
from paceline.rpc.worker_client import VocabularyTable
from paceline.runtime.tokenizer import Tokenizer
from paceline.types import WorkerInfo

OURS = Tokenizer(build_byte_tokenizer())


def info(kind: str, tokenizer: Tokenizer | None = OURS, **changes: Any) -> WorkerInfo:
    return WorkerInfo(
        kind=kind,
        model="some/model",
        dtype="float32",
        quantization="none",
        device="cpu",
        vocab_size=0 if tokenizer is None else tokenizer.vocab_size,
        tokenizer_fingerprint="" if tokenizer is None else tokenizer.fingerprint,
        context_length=64,
        eos_token_ids=(257,),
        **changes,
    )


async def worker_with(tokenizer: Tokenizer, role: str = "drafter") -> FakeWorker:
    worker = FakeWorker(role)
    vocabulary = tokenizer.vocabulary()
    worker.client.table = VocabularyTable(vocabulary.tokens, vocabulary.special_token_ids)
    return await worker.start()


async def test_the_same_fingerprint_asks_for_no_table() -> None:
    worker = FakeWorker("drafter")  # not connected: a question would fail
    await check_drafter(worker, OURS, info("model"))
    await check_verifier(worker, OURS, info("verifier"), info("verifier"))


async def test_swapped_ids_are_named() -> None:
    """C02: same size, other meanings."""
    theirs = Tokenizer(build_byte_tokenizer(swap=(65, 66)))
    worker = await worker_with(theirs)
    with pytest.raises(VocabularyMismatchError) as caught:
        await check_drafter(worker, OURS, info("model", theirs))
    assert "drafter drafter:1 (some/model) has another tokenizer" in str(caught.value)
    assert "token id 65 is 'A' for the target, 'B' for the draft" in str(caught.value)
    await worker.close()


async def test_padding_may_differ() -> None:
    """C01: heads padded to other widths fit together."""
    theirs = Tokenizer(build_byte_tokenizer(extra_special=["[PAD258]", "[PAD259]"]))
    assert theirs.fingerprint != OURS.fingerprint
    worker = await worker_with(theirs)
    await check_drafter(worker, OURS, info("model", theirs))
    await worker.close()


async def test_a_drafter_without_a_vocabulary_fits_every_target() -> None:
    await check_drafter(FakeWorker("drafter"), OURS, info("ngram", None))


async def test_roles_are_not_mixed_up() -> None:
    worker = FakeWorker("drafter", name="host")
    with pytest.raises(StartupError, match="host:1 is a verifier, not a drafter"):
        await check_drafter(worker, OURS, info("verifier"))
    with pytest.raises(StartupError, match=r"host:1 is a drafter \(ngram\), not a verifier"):
        await check_verifier(worker, OURS, info("verifier"), info("ngram", None))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"model": "other/model"}, "model is 'other/model', expected 'some/model'"),
        ({"vocab_size": 300}, "vocab_size is 300, expected 258"),
        ({"eos_token_ids": (2, 5)}, r"eos_token_ids is \(2, 5\), expected \(257,\)"),
    ],
)
async def test_all_verifiers_serve_the_same_target(
    changes: dict[str, Any], difference: str
) -> None:
    """H03, B07: a replica that comes back as another model would change the text silently."""
    other = replace(info("verifier"), **changes)
    with pytest.raises(StartupError, match=difference):
        await check_verifier(FakeWorker(), OURS, info("verifier"), other)


async def test_a_verifier_with_another_tokenizer_is_refused() -> None:
    """C02."""
    theirs = Tokenizer(build_byte_tokenizer(swap=(65, 66)))
    worker = await worker_with(theirs, "verifier")
    with pytest.raises(VocabularyMismatchError, match="token id 65"):
        await check_verifier(worker, OURS, info("verifier"), info("verifier", theirs))
    await worker.close()
