"""Every value that crosses a link comes back as it was, and malformed messages name their field."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import rpc_strategies as values
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidArgumentError
from paceline.generation import TraceSpan
from paceline.rpc.codec import enums
from paceline.rpc.codec.blocks import decode_block, decode_draft_probs, encode_block
from paceline.rpc.codec.describe import decode_worker_info, encode_worker_info
from paceline.rpc.codec.drafter import DRAFTER_LINK
from paceline.rpc.codec.sampling import (
    SCALARS,
    decode_complete_sampling,
    decode_sampling,
    encode_sampling,
)
from paceline.rpc.codec.spans import encode_span, encode_spans
from paceline.rpc.codec.verifier import VERIFIER_LINK
from paceline.rpc.wire import Direction
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import DraftBlock, DrafterState, FinishReason, OpenSession, Origin, WorkerInfo
from protos import common_pb2, drafter_pb2, verifier_pb2

quick = settings(derandomize=True, max_examples=60, deadline=None)
LIMIT = 64 * 1024 * 1024


def through_the_wire(direction: Direction[Any], items: list[Any]) -> list[Any]:
    """The items after batching, serialising, parsing and unpacking."""
    entries = [direction.entry(item, max_bytes=LIMIT) for item in items]
    received = []
    for batch in direction.pack(entries, max_bytes=LIMIT):
        parsed = type(batch).FromString(batch.SerializeToString())
        received += direction.unpack(parsed)
    assert [size for _, size in received] == [entry.size for entry in entries]
    return [item for item, _ in received]


def comparable(item: Any) -> Any:
    """Tensors compare element by element, bit for bit."""
    if not isinstance(item, DraftBlock) or item.draft_probs is None:
        return item
    probs = item.draft_probs
    ids = None if probs.ids is None else (probs.ids.dtype, probs.ids.tolist())
    bits = (probs.probs.dtype, probs.probs.view(torch.int32).tolist())
    return dataclasses.replace(item, draft_probs=None), ids, bits


@quick
@given(st.lists(values.drafter_events, max_size=5))
def test_drafter_events_come_back_as_they_were(items: list[Any]) -> None:
    assert through_the_wire(DRAFTER_LINK.events, items) == items


@quick
@given(st.lists(values.drafter_replies, max_size=5))
def test_drafter_replies_come_back_as_they_were(items: list[Any]) -> None:
    """I04: ids and float32 bits of the distributions included, whatever the drafter's dtype."""
    received = through_the_wire(DRAFTER_LINK.replies, items)
    assert [comparable(item) for item in received] == [comparable(item) for item in items]


@quick
@given(st.lists(values.verifier_events, max_size=5))
def test_verifier_events_come_back_as_they_were(items: list[Any]) -> None:
    received = through_the_wire(VERIFIER_LINK.events, items)
    assert [comparable(item) for item in received] == [comparable(item) for item in items]


@quick
@given(st.lists(values.verifier_replies, max_size=5))
def test_verifier_replies_come_back_as_they_were(items: list[Any]) -> None:
    assert through_the_wire(VERIFIER_LINK.replies, items) == items


@quick
@given(values.sampling_params())
def test_complete_sampling_parameters_come_back_as_they_were(params: SamplingParams) -> None:
    message = common_pb2.SamplingParams.FromString(encode_sampling(params).SerializeToString())
    assert decode_complete_sampling(message) == params


@quick
@given(values.worker_infos)
def test_worker_descriptions_come_back_as_they_were(info: WorkerInfo) -> None:
    message = common_pb2.WorkerDescription.FromString(encode_worker_info(info).SerializeToString())
    assert decode_worker_info(message) == info


@pytest.mark.parametrize(
    ("value_type", "message_type", "implied", "relative"),
    [
        (SamplingParams, common_pb2.SamplingParams, set(), {}),
        (WorkerInfo, common_pb2.WorkerDescription, set(), {}),
        (OpenSession, common_pb2.OpenSession, {"session_id"}, {}),
        (
            DraftBlock,
            common_pb2.DraftBlock,
            {"session_id"},
            {"known_committed": "outstanding", "kv_length": "uncached"},
        ),
    ],
)
def test_value_and_message_have_the_same_fields(
    value_type: Any, message_type: Any, implied: set[str], relative: dict[str, str]
) -> None:
    """A field added to one side alone would be dropped in silence. `relative` ones have another
    name where they are told by their distance from another."""
    names = {field.name for field in dataclasses.fields(value_type)} - implied
    fields = {relative.get(name, name) for name in names}
    assert fields == {field.name for field in message_type.DESCRIPTOR.fields}


def test_absent_fields_of_a_client_take_the_given_defaults() -> None:
    message = common_pb2.SamplingParams(temperature=0.0, ignore_eos=False)
    defaults = SamplingParams(
        temperature=0.7, seed=11, ignore_eos=True, acceptance=Acceptance.COUPLED, logprobs=2
    )
    expected = dataclasses.replace(defaults, temperature=0.0, ignore_eos=False)
    assert decode_sampling(message, defaults=defaults) == expected


ALWAYS_PRESENT = sorted(set(SCALARS) - {"logprobs", "prompt_logprobs"})


@pytest.mark.parametrize("name", [*ALWAYS_PRESENT, "acceptance"])
def test_a_worker_refuses_incomplete_sampling_parameters(name: str) -> None:
    message = encode_sampling(SamplingParams())
    message.ClearField(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=f"^{name}: must be given"):
        decode_complete_sampling(message)


def test_sampling_values_that_no_wire_type_holds_name_their_field() -> None:
    class Unchecked:
        """Parameters that skipped validation, as a careless caller's might."""

        def __getattr__(self, name: str) -> Any:
            return getattr(SamplingParams(), name)

    for name, value in {"seed": -1, "top_k": 2**40, "temperature": "hot"}.items():
        params: Any = Unchecked()
        setattr(params, name, value)
        with pytest.raises(InvalidArgumentError, match=f"^{name}: "):
            encode_sampling(params)


def block_message(**fields: Any) -> common_pb2.DraftBlock:
    return common_pb2.DraftBlock(
        **{"token_ids": [1, 2], "state": common_pb2.DRAFTER_STATE_RUNNING, **fields}
    )


EIGHT_BYTES = b"\0" * 8
MALFORMED_BLOCKS = {
    "state: must be given": block_message(state=0),
    "state: unknown value 9": block_message(state=9),
    "draft_probs.width: ": block_message(draft_probs=common_pb2.DraftProbs(probs=EIGHT_BYTES)),
    "draft_probs.probs: expected 16 bytes, got 8": block_message(
        draft_probs=common_pb2.DraftProbs(width=2, probs=EIGHT_BYTES)
    ),
    "draft_probs.ids: expected 8 bytes, got 7": block_message(
        draft_probs=common_pb2.DraftProbs(width=1, probs=EIGHT_BYTES, ids=b"\0" * 7)
    ),
    f"epoch: {2**32} is above": block_message(epoch=2**32),
    "copied: the indexes": block_message(copied=[1, 0]),
    "copied: the indexes .* past the block": block_message(copied=[0, 2]),
}


@pytest.mark.parametrize("problem", MALFORMED_BLOCKS)
def test_a_malformed_block_names_its_field(problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{problem}"):
        decode_block(1, MALFORMED_BLOCKS[problem])


def malformed_events() -> dict[str, Any]:
    bad_sampling = encode_sampling(SamplingParams())
    bad_sampling.temperature = float("nan")
    unknown_rule = encode_sampling(SamplingParams())
    unknown_rule.acceptance = 77  # type: ignore[assignment]
    event = verifier_pb2.VerifierEvent
    return {
        "event: ": event(session_id=7),
        "sampling: must be given": event(session_id=7, open=common_pb2.OpenSession()),
        "temperature: ": event(session_id=7, open=common_pb2.OpenSession(sampling=bad_sampling)),
        "acceptance: unknown value 77": event(
            session_id=7, open=common_pb2.OpenSession(sampling=unknown_rule)
        ),
        "state: ": event(session_id=7, block=block_message(state=0)),
        "max_drafts_per_pass: 0 is below 1": event(
            session_id=7,
            speculation=verifier_pb2.SetSpeculation(enabled=True, max_drafts_per_pass=0),
        ),
    }


@pytest.mark.parametrize("problem", malformed_events())
def test_a_malformed_event_fails_its_own_session_only(problem: str) -> None:
    close = common_pb2.CloseSession()
    batch = verifier_pb2.VerifyRequest(
        events=[
            verifier_pb2.VerifierEvent(session_id=1, close=close),
            malformed_events()[problem],
            verifier_pb2.VerifierEvent(session_id=2, close=close),
        ]
    )
    before, error, after = (item for item, _ in VERIFIER_LINK.events.unpack(batch))
    assert (before.session_id, after.session_id) == (1, 2)
    assert (error.session_id, error.code) == (7, "INVALID_ARGUMENT")
    assert error.message.startswith(problem)


def test_a_malformed_reply_is_not_blamed_on_the_client() -> None:
    batch = drafter_pb2.DraftResponse(replies=[drafter_pb2.DrafterReply(session_id=3)])
    ((error, _),) = DRAFTER_LINK.replies.unpack(batch)
    assert error.session_id == 3
    assert error.code == "INTERNAL"


def test_placeholder_ids_reach_the_engine_which_refuses_them() -> None:
    """E07: -1 is a legal int32; the engine knows the vocabulary and the codec does not."""
    assert decode_block(1, block_message(token_ids=[5, -1])).token_ids == (5, -1)


def test_a_block_without_tokens_carries_no_distributions() -> None:
    block = DraftBlock(
        1, 0, 0, (), DraftProbs(None, torch.ones(0, 3)), 0, DrafterState.PAUSED, 0, 0
    )
    assert not encode_block(block).HasField("draft_probs")
    assert decode_draft_probs(common_pb2.DraftProbs(width=3), num_tokens=0) is None


def test_distributions_that_do_not_match_their_tokens_are_our_own_bug() -> None:
    probs = DraftProbs(None, torch.full((2, 4), 0.25))
    block = DraftBlock(1, 0, 0, (5,), probs, 0, DrafterState.RUNNING, 0, 0)
    with pytest.raises(ValueError, match="2 draft distributions for 1 tokens"):
        encode_block(block)
    half = DraftProbs(None, torch.full((1, 4), 0.25, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="not float32"):
        encode_block(dataclasses.replace(block, draft_probs=half))


def test_decoded_tensors_own_writable_memory() -> None:
    message = common_pb2.DraftProbs(width=1, probs=b"\0" * 4, ids=b"\1\0\0\0")
    probs = decode_draft_probs(message, num_tokens=1)
    assert probs is not None
    assert probs.ids is not None
    probs.probs[0, 0] = 1.0
    probs.ids[0, 0] = 2
    assert message.probs == b"\0" * 4


def test_a_duration_beyond_uint32_is_cut_instead_of_breaking_the_link() -> None:
    block = DraftBlock(1, 0, 0, (5,), None, 0, DrafterState.RUNNING, 0, draft_us=2**40)
    assert encode_block(block).draft_us == 2**32 - 1


@pytest.mark.parametrize(
    ("encode", "decode", "kind"),
    [
        (enums.encode_acceptance, enums.decode_acceptance, Acceptance),
        (enums.encode_origin, enums.decode_origin, Origin),
        (enums.encode_finish_reason, enums.decode_finish_reason, FinishReason),
        (enums.encode_drafter_state, enums.decode_drafter_state, DrafterState),
    ],
)
def test_every_member_of_every_enumeration_is_on_the_wire(
    encode: Any, decode: Any, kind: Any
) -> None:
    numbers = [encode(member) for member in kind]
    assert len(set(numbers)) == len(numbers)
    assert [decode(number) for number in numbers] == list(kind)
    with pytest.raises(InvalidArgumentError, match="unknown value 99"):
        decode(99)


def test_returned_spans_stop_where_a_message_would_be_full() -> None:
    span = TraceSpan("token", "orchestrator", "1" * 32, "2" * 16, "", 1, 2, {"a": "x" * 100})
    size = encode_span(span).ByteSize()
    assert len(encode_spans([span] * 10, max_bytes=10 * size)) == 9
    assert len(encode_spans([span] * 10, max_bytes=11 * size)) == 10
    assert encode_spans([span], max_bytes=0) == []
