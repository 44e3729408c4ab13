"""Whether workers speak the same token ids; a wrong pair is refused with the first difference."""

from __future__ import annotations

from typing import Any

from orchestrator.worker import Worker
from paceline.errors import StartupError, VocabularyMismatchError
from paceline.runtime.tokenizer import Tokenizer, Vocabulary, first_difference
from paceline.types import WorkerInfo


async def check_verifier(
    worker: Worker[Any, Any], tokenizer: Tokenizer, target: WorkerInfo, info: WorkerInfo
) -> None:
    """Raise `StartupError` unless `info` is the same target model that the others serve."""
    if info.kind != "verifier":
        raise StartupError(f"{worker.address} is a drafter ({info.kind}), not a verifier")
    await _check_ids(worker, tokenizer, info)
    for name in ("model", "vocab_size", "eos_token_ids"):
        ours, theirs = getattr(target, name), getattr(info, name)
        if ours != theirs:
            raise StartupError(
                f"verifier {worker.address} serves another target: {name} is {theirs!r},"
                f" expected {ours!r}"
            )


async def check_drafter(
    worker: Worker[Any, Any], tokenizer: Tokenizer, info: WorkerInfo, *, feature_size: int = 0
) -> None:
    """Raise `VocabularyMismatchError` unless the drafter's ids mean what the target's do.

    Widths may differ: padded rows have probability 0 on both sides. A drafter without a
    vocabulary of its own (n-gram) fits every target. `feature_size` is the width of the target's
    features: one that drafts from others is a `StartupError`.
    """
    if info.kind == "verifier":
        raise StartupError(f"{worker.address} is a verifier, not a drafter")
    if info.feature_size not in (0, feature_size):
        raise StartupError(
            f"drafter {worker.address} ({info.model}) drafts from features of {info.feature_size}"
            f" values, the target's have {feature_size}"
        )
    if info.tokenizer_fingerprint:
        await _check_ids(worker, tokenizer, info)


async def _check_ids(worker: Worker[Any, Any], tokenizer: Tokenizer, info: WorkerInfo) -> None:
    if info.tokenizer_fingerprint == tokenizer.fingerprint:
        return
    table = await worker.vocabulary()
    if not table.tokens:  # a drafter of a reduced vocabulary knows its target's fingerprint alone
        raise VocabularyMismatchError(
            f"{worker.role} {worker.address} ({info.model}) speaks the ids of another tokenizer:"
            f" its fingerprint is {info.tokenizer_fingerprint[:12]}, the target's"
            f" {tokenizer.fingerprint[:12]}"
        )
    theirs = Vocabulary(list(table.tokens), dict(table.special_token_ids))
    difference = first_difference(tokenizer.vocabulary(), theirs)
    if difference is not None:
        raise VocabularyMismatchError(
            f"{worker.role} {worker.address} ({info.model}) has another tokenizer: {difference}"
        )
