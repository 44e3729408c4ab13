"""Message limits against the largest block that the configuration allows."""

from __future__ import annotations

import re

import pytest
import torch
from rpc_fakes import block

from paceline.config import GrpcConfig
from paceline.errors import ConfigError
from paceline.rpc.codec.drafter import DRAFTER_LINK
from paceline.rpc.codec.verifier import VERIFIER_LINK
from paceline.rpc.limits import (
    channel_options,
    check_message_limit,
    largest_block_bytes,
    server_options,
)
from paceline.sampling.draft_probs import DraftProbs

VOCAB = 151_936


@pytest.mark.parametrize("draft_top_k", [0, 64])
@pytest.mark.parametrize("num_tokens", [1, 7, 64])
def test_the_bound_holds_for_real_blocks_in_both_directions(
    draft_top_k: int, num_tokens: int
) -> None:
    """G05."""
    width = draft_top_k or VOCAB
    ids = torch.full((num_tokens, width), 2**31 - 1) if draft_top_k else None
    token_ids = (VOCAB - 1,) * num_tokens
    full = block(2**64 - 1, token_ids, DraftProbs(ids, torch.zeros(num_tokens, width)))
    bound = largest_block_bytes(
        num_speculative_tokens=num_tokens, draft_top_k=draft_top_k, vocab_size=VOCAB
    )
    for direction in (DRAFTER_LINK.replies, VERIFIER_LINK.events):
        entry = direction.entry(full, max_bytes=bound)  # type: ignore[arg-type]
        (batch,) = direction.pack([entry], max_bytes=bound)
        assert bound - 2000 < len(batch.SerializeToString()) <= bound


def test_the_defaults_allow_dense_blocks_of_seven_over_a_large_vocabulary() -> None:
    """G05: k = 7 dense float32 over 151,936 ids is 4.25 MB."""
    check_message_limit(
        num_speculative_tokens=7, draft_top_k=0, vocab_size=VOCAB, limits=GrpcConfig()
    )


def test_a_limit_too_small_is_refused_and_names_the_keys() -> None:
    """G05."""
    with pytest.raises(ConfigError) as caught:
        check_message_limit(
            num_speculative_tokens=64,
            draft_top_k=0,
            vocab_size=VOCAB,
            limits=GrpcConfig(max_message_bytes=4 * 1024 * 1024),
        )
    message = str(caught.value)
    assert message.startswith("grpc.max_message_bytes: 4194304 is too small")
    assert "orchestrator.speculation.num_speculative_tokens 64" in message
    assert "orchestrator.speculation.draft_top_k 0" in message
    assert re.search(rf"{64 * VOCAB * 4 + 1024} bytes", message)


def test_a_truncation_wider_than_the_vocabulary_costs_the_vocabulary() -> None:
    wide = largest_block_bytes(num_speculative_tokens=2, draft_top_k=1000, vocab_size=10)
    exact = largest_block_bytes(num_speculative_tokens=2, draft_top_k=10, vocab_size=10)
    assert wide == exact


def test_both_ends_limit_both_directions_alike() -> None:
    limits = GrpcConfig(max_message_bytes=5_000_000)
    for options in (dict(channel_options(limits)), dict(server_options(limits))):
        assert options["grpc.max_send_message_length"] == 5_000_000
        assert options["grpc.max_receive_message_length"] == 5_000_000
