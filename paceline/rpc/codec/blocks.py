"""Draft blocks on the wire; distributions travel as packed little-endian arrays."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from paceline.errors import InvalidArgumentError
from paceline.rpc.codec.enums import decode_drafter_state, encode_drafter_state
from paceline.sampling.draft_probs import DraftProbs
from paceline.types import DraftBlock, SessionId
from protos import common_pb2

_UINT32_MAX = 2**32 - 1
MAX_EPOCH = _UINT32_MAX
"""No session of any length comes near; what follows from an epoch must fit its field too."""


def encode_block(block: DraftBlock) -> common_pb2.DraftBlock:
    """A block without tokens carries no distributions."""
    draft_probs = block.draft_probs if block.token_ids else None
    if draft_probs is not None and draft_probs.num_tokens != len(block.token_ids):
        raise ValueError(
            f"{draft_probs.num_tokens} draft distributions for {len(block.token_ids)} tokens"
        )
    return common_pb2.DraftBlock(
        epoch=block.epoch,
        base=block.base,
        token_ids=block.token_ids,
        draft_probs=None if draft_probs is None else encode_draft_probs(draft_probs),
        outstanding=block.base - block.known_committed,
        state=encode_drafter_state(block.state),
        uncached=block.base - block.kv_length,
        draft_us=clamp_us(block.draft_us),
        parents=block.parents,
        copied=block.copied,
        outcome=block.outcome,
    )


def decode_block(session_id: SessionId, message: common_pb2.DraftBlock) -> DraftBlock:
    """Raises `InvalidArgumentError` for arrays that do not fit the block, an unknown state, and an
    epoch that no session reaches."""
    if message.epoch > MAX_EPOCH:
        raise InvalidArgumentError("epoch", f"{message.epoch} is above {MAX_EPOCH}")
    draft_probs = None
    if message.HasField("draft_probs"):
        draft_probs = decode_draft_probs(message.draft_probs, num_tokens=len(message.token_ids))
    copied = tuple(message.copied)
    if any(a >= b for a, b in itertools.pairwise((*copied, len(message.token_ids)))):
        raise InvalidArgumentError("copied", "the indexes do not ascend, or are past the block")
    return DraftBlock(
        session_id=session_id,
        epoch=message.epoch,
        base=message.base,
        token_ids=tuple(message.token_ids),
        draft_probs=draft_probs,
        known_committed=message.base - message.outstanding,
        state=decode_drafter_state(message.state),
        kv_length=message.base - message.uncached,
        draft_us=message.draft_us,
        parents=tuple(message.parents),
        copied=copied,
        outcome=message.outcome if message.HasField("outcome") else None,
    )


def encode_draft_probs(draft_probs: DraftProbs) -> common_pb2.DraftProbs:
    """Bit for bit what the tokens were sampled from: the tensors are float32 and int64 already."""
    if draft_probs.probs.dtype != torch.float32:
        raise ValueError(f"draft_probs are {draft_probs.probs.dtype}, not float32")
    probs = draft_probs.probs.detach().cpu().numpy()
    ids = b""
    if draft_probs.ids is not None:
        ids = draft_probs.ids.cpu().numpy().astype("<u4").tobytes()
    return common_pb2.DraftProbs(
        width=probs.shape[1], ids=ids, probs=probs.astype("<f4", copy=False).tobytes()
    )


def decode_draft_probs(message: common_pb2.DraftProbs, *, num_tokens: int) -> DraftProbs | None:
    """Distributions of `num_tokens` tokens; None when there are no tokens.

    Lengths are checked here; ids and values against the vocabulary in the engine. Raises
    `InvalidArgumentError` naming the array.
    """
    width = message.width
    if width < 1:
        raise InvalidArgumentError("draft_probs.width", f"must be at least 1, is {width}")
    expected = num_tokens * width * 4
    _check_length("draft_probs.probs", message.probs, expected)
    if message.ids:
        _check_length("draft_probs.ids", message.ids, expected)
    if num_tokens == 0:
        return None
    # Each conversion copies, so that the tensors own writable memory.
    probs = np.frombuffer(message.probs, "<f4").reshape(num_tokens, width).astype(np.float32)
    ids = None
    if message.ids:
        wire_ids = np.frombuffer(message.ids, "<u4").reshape(num_tokens, width)
        ids = torch.from_numpy(wire_ids.astype(np.int64))
    return DraftProbs(ids, torch.from_numpy(probs))


def clamp_us(microseconds: int) -> int:
    """A duration as uint32: a clock that ran past 71 minutes must not break a link."""
    return min(max(microseconds, 0), _UINT32_MAX)


def _check_length(field: str, data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise InvalidArgumentError(field, f"expected {expected} bytes, got {len(data)}")
