"""Features on the wire: 2 bytes a value, and not a byte where nobody asks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paceline.errors import InvalidArgumentError
from paceline.features import Features
from paceline.rpc.codec.drafter import decode_drafter_event, encode_drafter_event
from paceline.rpc.codec.features import decode_features, encode_features
from paceline.rpc.codec.verifier import decode_verifier_reply, encode_verifier_reply
from paceline.types import Advance, PassTimings, PromptFeatures, Verdict
from protos import common_pb2

HIDDEN = torch.randn(5, 12, generator=torch.Generator().manual_seed(1)) * 100
FEATURES = Features.of(7, HIDDEN)
VERDICT = Verdict(1, 0, 7, (1, 2), 1, None, 1, None, (), 8, PassTimings(1, 2, 3, 4, 5), 0)
ADVANCE = Advance(1, 0, 7, (1, 2))


def same(found: Features | None) -> bool:
    return (
        found is not None
        and found.base == FEATURES.base
        and found.values.dtype == torch.bfloat16
        and torch.equal(found.values, FEATURES.values)
    )


def test_values_arrive_bit_for_bit_as_they_were_rounded() -> None:
    assert torch.equal(FEATURES.values, HIDDEN.bfloat16())
    message = encode_features(FEATURES)
    assert message is not None
    assert len(message.values) == 2 * 5 * 12
    assert same(decode_features(message))
    verdict = decode_verifier_reply(encode_verifier_reply(replace(VERDICT, features=FEATURES)))
    assert isinstance(verdict, Verdict)
    assert same(verdict.features)
    advance = decode_drafter_event(encode_drafter_event(replace(ADVANCE, features=FEATURES)))
    assert isinstance(advance, Advance)
    assert same(advance.features)
    prompt = decode_verifier_reply(encode_verifier_reply(PromptFeatures(1, FEATURES)))
    assert isinstance(prompt, PromptFeatures)
    assert same(prompt.features)


def test_without_features_a_message_is_as_long_as_before() -> None:
    with_them = encode_verifier_reply(replace(VERDICT, features=FEATURES))
    without = encode_verifier_reply(VERDICT)
    with_them.verdict.ClearField("features")
    assert with_them.SerializeToString() == without.SerializeToString()
    advance = encode_drafter_event(replace(ADVANCE, features=FEATURES))
    advance.advance.ClearField("features")
    assert advance.SerializeToString() == encode_drafter_event(ADVANCE).SerializeToString()


@pytest.mark.parametrize(
    ("size", "values", "field"),
    [(0, b"12", "features.size"), (3, b"12345678", "values"), (3, b"", "values")],
)
def test_what_are_no_whole_rows_is_refused(size: int, values: bytes, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        decode_features(common_pb2.Features(base=0, size=size, values=values))


def test_features_since_a_position_leave_out_what_is_known() -> None:
    found = FEATURES.since(9)
    assert found is not None
    assert (found.base, found.end) == (9, 12)
    assert torch.equal(found.values, FEATURES.values[2:])
    assert FEATURES.since(12) is None
    whole = FEATURES.since(3)
    assert whole is not None
    assert whole.base == 7
