"""The client API on the wire: requests in, tokens and outcome out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from paceline.errors import InvalidArgumentError
from paceline.generation import GenerateCall, Outcome, OutputToken, SessionStatus, WorkerStatus
from paceline.rpc.codec.describe import encode_worker_info
from paceline.rpc.codec.enums import (
    decode_draft_probs_format,
    encode_finish_reason,
    encode_origin,
)
from paceline.rpc.codec.sampling import decode_sampling
from paceline.sampling.params import SamplingParams
from protos import orchestrator_pb2

MAX_MESSAGES = 4096
"""Of a conversation."""


def decode_generate(
    message: orchestrator_pb2.GenerateRequest, *, defaults: SamplingParams
) -> GenerateCall:
    """A client's call. Raises `InvalidArgumentError` naming a wrong sampling parameter."""

    if len(message.messages) > MAX_MESSAGES:
        raise InvalidArgumentError(
            "messages", f"{len(message.messages)} messages; at most {MAX_MESSAGES}"
        )

    def optional(name: str) -> int | None:
        return getattr(message, name) if message.HasField(name) else None

    return GenerateCall(
        prompt=message.prompt,
        messages=[{"role": turn.role, "content": turn.content} for turn in message.messages],
        token_ids=message.token_ids,
        sampling=decode_sampling(message.sampling, defaults=defaults),
        gives_max_tokens=message.sampling.HasField("max_tokens"),
        gives_seed=message.sampling.HasField("seed"),
        speculation=message.speculation if message.HasField("speculation") else None,
        window=optional("window"),
        num_speculative_tokens=optional("num_speculative_tokens"),
        num_outcome_tokens=optional("num_outcome_tokens"),
        stop=message.stop,
        include_stop_in_output=message.include_stop_in_output,
        bad_words=message.bad_words,
        draft_probs=decode_draft_probs_format(message.draft_probs),
        n=optional("n"),
        guided_json=message.guided_json,
        guided_regex=message.guided_regex,
        guided_choice=message.guided_choice,
        return_spans=message.return_spans,
        cache_salt=message.cache_salt,
        prompt_cache_key=message.prompt_cache_key,
    )


def encode_tokens(
    tokens: Sequence[OutputToken], *, index: int, prompt_tokens: Sequence[OutputToken] = ()
) -> orchestrator_pb2.GenerateResponse:
    """Some delivered tokens of answer `index`; the prompt's, too, where they were asked for."""
    return orchestrator_pb2.GenerateResponse(
        tokens=[_encode_token(token) for token in tokens],
        index=index,
        prompt_tokens=[_encode_token(token) for token in prompt_tokens],
    )


def _encode_token(token: OutputToken) -> orchestrator_pb2.Token:
    return orchestrator_pb2.Token(
        id=token.id,
        text=token.text,
        origin=encode_origin(token.origin),
        logprob=token.logprob,
        top_logprobs=[
            orchestrator_pb2.TopLogprob(id=top.id, text=top.text, logprob=top.logprob)
            for top in token.top_logprobs
        ],
    )


def encode_outcome(outcome: Outcome, *, index: int) -> orchestrator_pb2.GenerateResponse:
    """The last message of answer `index`."""
    return orchestrator_pb2.GenerateResponse(
        index=index,
        outcome=orchestrator_pb2.Outcome(
            finish_reason=encode_finish_reason(outcome.finish_reason),
            usage=orchestrator_pb2.Usage(**asdict(outcome.usage)),
            stats=orchestrator_pb2.SpeculationStats(**asdict(outcome.stats)),
        ),
    )


def encode_session_status(status: SessionStatus) -> orchestrator_pb2.SessionStatus:
    """One live answer of a `Status` answer."""
    return orchestrator_pb2.SessionStatus(**asdict(status))


def encode_worker_status(status: WorkerStatus) -> orchestrator_pb2.WorkerStatus:
    """One worker of a `Status` answer."""
    return orchestrator_pb2.WorkerStatus(
        role=status.role,
        address=status.address,
        connected=status.is_connected,
        detail=status.detail,
        description=None if status.info is None else encode_worker_info(status.info),
    )
