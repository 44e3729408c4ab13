"""The Python client against a scripted server over real gRPC."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.scripted_orchestrator import (
    ORIGINS,
    STATS,
    TEXT,
    TOKENS,
    ScriptedOrchestrator,
    script,
    serving,
)

from paceline.client import Client, GenerateFields
from paceline.config import SecurityConfig
from paceline.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    PacelineError,
    UnavailableError,
)
from paceline.sampling.params import SamplingParams
from protos import common_pb2, orchestrator_pb2


@pytest.fixture
def server() -> Iterator[ScriptedOrchestrator]:
    with serving(ScriptedOrchestrator()) as orchestrator:
        yield orchestrator


@pytest.fixture
def endless() -> Iterator[ScriptedOrchestrator]:
    with serving(ScriptedOrchestrator(responses=script()[:1], endless=True)) as orchestrator:
        yield orchestrator


async def was_cancelled(orchestrator: ScriptedOrchestrator) -> bool:
    return await asyncio.to_thread(orchestrator.cancelled.wait, 10)


async def test_chunks_carry_tokens_and_the_last_one_the_outcome(
    server: ScriptedOrchestrator,
) -> None:
    async with Client(server.address) as client:
        chunks = [chunk async for chunk in client.generate(prompt="x")]
    assert [len(chunk.tokens) for chunk in chunks] == [2, 3, 0]
    assert chunks[0].text == "One <two"
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
    assert chunks[0].usage is None
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 5)
    assert chunks[-1].stats is not None
    assert {name: getattr(chunks[-1].stats, name) for name in STATS} == STATS
    assert chunks[-1].stats.acceptance_rate == 6 / 8


def test_generate_text_blocks_and_returns_everything(server: ScriptedOrchestrator) -> None:
    result = Client(server.address).generate_text(prompt="x")
    assert result.text == TEXT
    assert result.token_ids == [10, 11, 12, 13, 14]
    assert result.origins == ORIGINS
    assert result.logprobs == [None] * 5
    assert result.finish_reason == "length"
    assert result.usage.completion_tokens == 5
    assert result.stats.seed == 2**63 + 7


def test_two_blocking_calls_in_a_row_and_in_other_threads_work(
    server: ScriptedOrchestrator,
) -> None:
    """G06: each has an event loop and a channel of its own."""
    client = Client(server.address)
    texts = [client.generate_text(prompt="x").text for _ in range(2)]
    threads = [
        threading.Thread(target=lambda: texts.append(client.generate_text(prompt="x").text))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [TEXT] * 4


def test_two_event_loops_in_a_row_each_with_a_client_work(server: ScriptedOrchestrator) -> None:
    """G06: the channel is made inside the running loop."""

    async def text() -> str:
        async with Client(server.address) as client:
            return "".join([chunk.text async for chunk in client.generate(prompt="x")])

    assert [asyncio.run(text()) for _ in range(2)] == [TEXT, TEXT]


async def test_generate_text_inside_a_loop_is_refused(server: ScriptedOrchestrator) -> None:
    with pytest.raises(RuntimeError, match="inside an event loop use generate"):
        Client(server.address).generate_text(prompt="x")


def test_only_what_is_given_is_sent(server: ScriptedOrchestrator) -> None:
    Client(server.address).generate_text(prompt="hi", temperature=None, stop=None)
    assert server.requests == [orchestrator_pb2.GenerateRequest(prompt="hi", sampling={})]


def test_every_field_reaches_the_server(server: ScriptedOrchestrator) -> None:
    """Zero and false are values, not absence."""
    Client(server.address).generate_text(
        messages=[{"role": "user", "content": "hi"}],
        temperature=0,
        top_k=0,
        top_p=0.5,
        min_p=0.25,
        typical_p=0.75,
        repetition_penalty=1.5,
        presence_penalty=0.0,
        frequency_penalty=-1.0,
        logit_bias={5: -2.0},
        allowed_token_ids=[1, 5],
        bad_words_token_ids=[[1, 2], [3]],
        min_tokens=0,
        max_tokens=7,
        stop_token_ids=[9],
        ignore_eos=False,
        seed=2**64 - 1,
        logprobs=0,
        acceptance="coupled",
        speculation=False,
        window=3,
        num_speculative_tokens=2,
        stop="\nUser:",
        include_stop_in_output=True,
        bad_words=["no", "nope"],
        cache_salt="tenant",
        prompt_cache_key="chat-7",
    )
    sampling = common_pb2.SamplingParams(
        temperature=0.0,
        top_k=0,
        top_p=0.5,
        min_p=0.25,
        typical_p=0.75,
        repetition_penalty=1.5,
        presence_penalty=0.0,
        frequency_penalty=-1.0,
        logit_bias=[common_pb2.LogitBias(token_id=5, bias=-2.0)],
        allowed_token_ids=[1, 5],
        bad_words_token_ids=[
            common_pb2.TokenSequence(token_ids=[1, 2]),
            common_pb2.TokenSequence(token_ids=[3]),
        ],
        min_tokens=0,
        max_tokens=7,
        stop_token_ids=[9],
        ignore_eos=False,
        seed=2**64 - 1,
        logprobs=0,
        acceptance=common_pb2.ACCEPTANCE_COUPLED,
    )
    expected = orchestrator_pb2.GenerateRequest(
        messages=[orchestrator_pb2.ChatMessage(role="user", content="hi")],
        sampling=sampling,
        speculation=False,
        window=3,
        num_speculative_tokens=2,
        stop=["\nUser:"],
        include_stop_in_output=True,
        bad_words=["no", "nope"],
        cache_salt="tenant",
        prompt_cache_key="chat-7",
    )
    assert server.requests == [expected]


def test_every_sampling_parameter_and_request_field_is_a_keyword() -> None:
    """None is silently left out: the proto, the type and the client name the same fields."""
    keywords = set(GenerateFields.__annotations__)
    request = {field.name for field in orchestrator_pb2.GenerateRequest.DESCRIPTOR.fields}
    sampling = {field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields}
    assert keywords == (request - {"sampling"}) | sampling
    assert set(SamplingParams.__dataclass_fields__) <= keywords


def test_an_unknown_keyword_is_named_at_once() -> None:
    fields: Any = {"prompt": "x", "temprature": 1.0}
    with pytest.raises(TypeError, match="temprature"):
        Client("127.0.0.1:1").generate(**fields)
    with pytest.raises(TypeError, match="temprature"):
        Client("127.0.0.1:1").generate_text(**fields)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"seed": -1}, "-1 is not from 0 to 18446744073709551615"),
        ({"max_tokens": 2**31}, "2147483648 is not from -2147483648 to 2147483647"),
        ({"token_ids": [1, 2**40]}, "1099511627776 is not from -2147483648 to 2147483647"),
    ],
)
def test_a_number_that_the_wire_cannot_hold_names_its_limits(fields: Any, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        Client("127.0.0.1:1").generate(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": 5}, "prompt"),
        ({"token_ids": [2**40]}, "token_ids"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"temperature": "hot"}, "temperature"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"bad_words_token_ids": [["a"]]}, "bad_words_token_ids"),
        ({"bad_words_token_ids": [3]}, "bad_words_token_ids"),
        ({"stop": [3]}, "stop"),
        ({"acceptance": "always"}, "acceptance"),
        ({"window": "wide"}, "window"),
    ],
)
def test_a_value_that_the_wire_cannot_hold_names_its_field(fields: Any, named: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Client("127.0.0.1:1").generate(**fields)
    assert caught.value.field == named


def test_logprobs_arrive_with_their_alternatives() -> None:
    token = orchestrator_pb2.Token(
        id=5,
        text="a",
        origin=common_pb2.ORIGIN_BONUS,
        logprob=-0.5,
        top_logprobs=[orchestrator_pb2.TopLogprob(id=5, text="a", logprob=-0.5)],
    )
    responses = [orchestrator_pb2.GenerateResponse(tokens=[token]), script()[-1]]
    with serving(ScriptedOrchestrator(responses=responses)) as server:
        result = Client(server.address).generate_text(prompt="x", logprobs=1)
    assert result.logprobs == [-0.5]
    top = result.tokens[0].top_logprobs[0]
    assert (top.id, top.text, top.logprob) == (5, "a", -0.5)


@pytest.mark.parametrize(
    ("code", "message", "error"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "top_p: too high", InvalidArgumentError),
        (grpc.StatusCode.UNAVAILABLE, "the verifier is gone", UnavailableError),
        (grpc.StatusCode.DATA_LOSS, "odd", PacelineError),
    ],
)
def test_a_failure_after_some_tokens_is_a_paceline_error(
    code: grpc.StatusCode, message: str, error: type[PacelineError]
) -> None:
    scripted = ScriptedOrchestrator(responses=script()[:1], error=(code, message))
    with serving(scripted) as server, pytest.raises(error, match=message):
        Client(server.address).generate_text(prompt="x")


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(UnavailableError):
        Client("127.0.0.1:1").generate_text(prompt="x")


def test_a_call_that_takes_too_long_ends_at_its_deadline(endless: ScriptedOrchestrator) -> None:
    with pytest.raises(DeadlineExceededError):
        Client(endless.address, timeout_s=0.2).generate_text(prompt="x")
    assert endless.cancelled.wait(10)


def test_a_stream_without_an_outcome_is_an_error() -> None:
    with (
        serving(ScriptedOrchestrator(responses=script()[:1])) as server,
        pytest.raises(PacelineError, match="without an outcome"),
    ):
        Client(server.address).generate_text(prompt="x")


async def test_closing_the_iterator_cancels_the_generation(endless: ScriptedOrchestrator) -> None:
    """G01: the server sees it, and the client goes on to be usable."""
    async with Client(endless.address) as client:
        stream = client.generate(prompt="x")
        chunk = await anext(stream)
        assert chunk.tokens[0].id == TOKENS[0].id
        await stream.aclose()
        assert await was_cancelled(endless)
        assert (await anext(client.generate(prompt="x"))).text == "One <two"


async def test_breaking_out_of_the_loop_cancels_the_generation(
    endless: ScriptedOrchestrator,
) -> None:
    """G01."""
    async with Client(endless.address) as client:
        async for _ in client.generate(prompt="x"):
            break
        assert await was_cancelled(endless)


async def test_cancelling_the_task_cancels_the_generation(endless: ScriptedOrchestrator) -> None:
    """G01."""
    started = asyncio.Event()

    async def read(client: Client) -> None:
        async for _ in client.generate(prompt="x"):
            started.set()

    async with Client(endless.address) as client:
        task = asyncio.create_task(read(client))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await was_cancelled(endless)


async def test_a_closed_client_says_so(server: ScriptedOrchestrator) -> None:
    client = Client(server.address)
    with pytest.raises(RuntimeError, match="not open"):
        await anext(client.generate(prompt="x"))
    async with client:
        with pytest.raises(RuntimeError, match="open already"):
            await client.__aenter__()
    with pytest.raises(RuntimeError, match="not open"):
        await client.status()


async def test_the_token_rides_on_every_call(server: ScriptedOrchestrator, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("s3cret\n")
    async with Client(server.address, security=SecurityConfig(token_file=token_file)) as client:
        async for _ in client.generate(prompt="x"):
            pass
    assert server.metadata[0]["authorization"] == "Bearer s3cret"


async def test_status_tells_of_every_worker(server: ScriptedOrchestrator) -> None:
    described = common_pb2.WorkerDescription(kind="verifier", model="m", kv_pages_total=8)
    server.status = orchestrator_pb2.StatusResponse(
        model="m",
        context_length=64,
        live_sessions=2,
        workers=[
            orchestrator_pb2.WorkerStatus(
                role="verifier", address="h:1", connected=True, description=described
            ),
            orchestrator_pb2.WorkerStatus(role="drafter", address="h:2", detail="refused"),
        ],
    )
    async with Client(server.address) as client:
        status = await client.status()
    assert (status.model, status.context_length, status.live_sessions) == ("m", 64, 2)
    verifier, drafter = status.workers
    assert verifier.is_connected
    assert verifier.info is not None
    assert verifier.info.kv_pages_total == 8
    assert (drafter.is_connected, drafter.detail, drafter.info) == (False, "refused", None)


async def test_a_failed_status_is_a_paceline_error() -> None:
    error = (grpc.StatusCode.UNAUTHENTICATED, "no token")
    with serving(ScriptedOrchestrator(error=error)) as server:
        async with Client(server.address) as client:
            with pytest.raises(PacelineError, match="no token"):
                await client.status()


def test_the_client_needs_no_model_library_and_no_ray() -> None:
    code = (
        "import sys, paceline.client, paceline.cli;"
        "print([m for m in ('torch', 'transformers', 'ray', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
