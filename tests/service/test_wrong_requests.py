"""Whatever is wrong with a request is one clear error that names it, and the next one works."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.byte_tokenizer import build_byte_tokenizer
from support.services import (
    LOOPBACK,
    Stack,
    model_section,
    scripted,
    service_process,
    settings,
    until,
)

import paceline.rpc.main
from paceline.config import Config, GrpcConfig, parse_config
from paceline.errors import (
    ConfigError,
    InvalidArgumentError,
    ModelLoadError,
    ResourceExhaustedError,
    StartupError,
)
from paceline.rpc.channel import open_channel
from paceline.rpc.credentials import NO_CREDENTIALS
from paceline.rpc.main import run_service
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from protos import common_pb2, orchestrator_pb2
from protos.orchestrator_pb2_grpc import OrchestratorStub

VOCAB = 258
CONTEXT = 64
IDS: dict[str, Any] = {"token_ids": [1, 2, 3]}
HELLO = [{"role": "user", "content": "hello"}]

OUT_OF_RANGE: dict[str, Sequence[Any]] = {
    "max_tokens": (0, -1, CONTEXT, 2**31 - 1),
    "temperature": (math.nan, -0.5, math.inf),
    "top_p": (0.0, 1.5, math.nan, -0.1),
    "top_k": (-1,),
    "min_p": (-0.1, 1.1, math.nan),
    "typical_p": (0.0, 1.1, math.nan),
    "repetition_penalty": (0.0, -1.0, math.nan, math.inf),
    "presence_penalty": (2.1, -2.1, math.nan),
    "frequency_penalty": (2.1, -2.1, math.nan),
    "logit_bias": ({VOCAB: 1.0}, {-1: 1.0}, {5: math.nan}, {5: 101.0}, [(5, 1), (5, 2)]),
    "allowed_token_ids": ([VOCAB], [-1]),
    "stop_token_ids": ([VOCAB], [-1]),
    "bad_words_token_ids": ([[]], [[VOCAB]]),
    "bad_words": ([""], ["a"] * 1000),
    "stop": ([""],),
    "logprobs": (-1, 21),
    "min_tokens": (-1,),
    "window": (0, -1, 257),
    "num_speculative_tokens": (0, -1, 65),
}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"token_ids": []}, "prompt"),
    ({"messages": []}, "prompt"),
    ({"prompt": "a", "messages": HELLO}, "prompt"),
    ({"prompt": "a", "token_ids": [1]}, "prompt"),
    ({"messages": HELLO, "token_ids": [1]}, "messages"),
    ({"token_ids": [1, -1]}, "token_ids"),
    ({"token_ids": [1, VOCAB]}, "token_ids"),
    ({"token_ids": [2**31 - 1]}, "token_ids"),
    ({"prompt": "x" * CONTEXT}, "prompt"),
    ({"prompt": "x" * 100_000}, "prompt"),
    ({"token_ids": [1] * CONTEXT}, "token_ids"),
    ({"messages": [{"role": "user", "content": "x" * CONTEXT}]}, "messages"),
    ({"messages": [{"role": "", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
    *((IDS | {field: value}, field) for field, values in OUT_OF_RANGE.items() for value in values),
    (IDS | {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    (IDS | {"allowed_token_ids": [7], "bad_words_token_ids": [[7]]}, "allowed_token_ids"),
]


@pytest.fixture(scope="module")
def strict_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose chat template knows two roles only."""
    folder = tmp_path_factory.mktemp("strict")
    template = (
        "{% for message in messages %}{% if message.role not in ['user', 'assistant'] %}"
        "{{ raise_exception('unknown role ' + message.role) }}{% endif %}"
        "{{ message.content }}\n{% endfor %}"
    )
    build_byte_tokenizer(chat_template=template).save_pretrained(folder)
    return folder


@pytest.fixture
async def stack(strict_tokenizer_dir: Path) -> AsyncIterator[Stack]:
    target, draft = [
        ScriptedRunner(hashed_script(VOCAB, seed=seed), vocab_size=VOCAB, context_length=CONTEXT)
        for seed in (0, 1)
    ]
    async with scripted(target, draft, tokenizer=strict_tokenizer_dir) as running:
        yield running


async def test_every_wrong_field_is_named_and_the_next_request_works(stack: Stack) -> None:
    good = IDS | {"max_tokens": 4, "temperature": 0}
    wanted = (await stack.generate(**good)).token_ids
    for fields, named in WRONG:
        with pytest.raises(InvalidArgumentError, match=f"^{named}: ") as caught:
            await stack.generate(**fields)
        assert len(str(caught.value)) < 400, fields
        assert (await stack.generate(**good)).token_ids == wanted, fields
    assert await stack.is_idle()


async def test_the_limit_itself_is_allowed(stack: Stack) -> None:
    """The room of the context is `max_tokens`' limit, and its default where it is smaller."""
    room = CONTEXT - 3
    result = await stack.generate(**IDS, max_tokens=room, temperature=0, ignore_eos=True)
    assert len(result.token_ids) == room
    result = await stack.generate(**IDS, temperature=0, ignore_eos=True)
    assert len(result.token_ids) == room
    longest = {"token_ids": [1] * (CONTEXT - 1)}
    result = await stack.generate(**longest, temperature=0, ignore_eos=True)
    assert len(result.token_ids) == 1
    assert result.finish_reason == "length"


async def test_numbers_that_no_field_has_are_refused(stack: Stack) -> None:
    """An acceptance rule of a later version must not be ignored."""
    channel = open_channel(stack.orchestrator.address, NO_CREDENTIALS, GrpcConfig())
    request = orchestrator_pb2.GenerateRequest(
        token_ids=[1],
        sampling=common_pb2.SamplingParams(acceptance=99),  # type: ignore[arg-type]
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in OrchestratorStub(channel).Generate(request):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "acceptance" in str(caught.value.details())
    await channel.close(None)


async def test_masks_that_leave_no_token_end_their_own_request_only(stack: Stack) -> None:
    """Found while sampling, not when the request comes."""
    other = asyncio.ensure_future(stack.generate(**IDS, max_tokens=40, temperature=0))
    with pytest.raises(InvalidArgumentError):
        await stack.generate(
            **IDS, allowed_token_ids=[7, 8], bad_words_token_ids=[[7, 8], [8, 7], [7, 7], [8, 8]]
        )
    assert len((await other).token_ids) > 0
    assert await stack.is_idle()


async def test_messages_without_a_chat_template_are_refused(tmp_path: Path) -> None:
    build_byte_tokenizer().save_pretrained(tmp_path)
    target = ScriptedRunner(hashed_script(VOCAB), vocab_size=VOCAB)
    async with scripted(target, None, tokenizer=tmp_path) as stack:
        with pytest.raises(InvalidArgumentError, match=r"^messages: .*no chat template"):
            await stack.generate(messages=HELLO)


async def test_a_session_above_the_limit_is_refused_until_another_ends(
    strict_tokenizer_dir: Path,
) -> None:
    target = ScriptedRunner(hashed_script(VOCAB), vocab_size=VOCAB)
    async with scripted(
        target, None, tokenizer=strict_tokenizer_dir, orchestrator={"max_sessions": 1}
    ) as stack:
        first = stack.client.generate(**IDS, max_tokens=500, ignore_eos=True)
        await anext(first)
        with pytest.raises(ResourceExhaustedError, match="limit is 1"):
            await stack.generate(**IDS, max_tokens=2)
        await first.aclose()
        await until(stack.is_idle)
        assert (await stack.generate(**IDS, max_tokens=2)).usage.completion_tokens == 2


# --- wrong settings -----------------------------------------------------------------------------


async def test_each_process_says_in_one_line_why_it_cannot_start(
    tmp_path: Path, tiny_dir: Callable[..., Path]
) -> None:
    """Exit code 2 and the key or value at fault."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as taken,
        closing(socket.create_server(("127.0.0.1", 0))) as unused,
    ):
        port = taken.getsockname()[1]
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        unused.close()
        here = f"127.0.0.1:{port}"
        nowhere = str(tmp_path / "no-model")
        cases: list[tuple[str, dict[str, Any], Sequence[str]]] = [
            (
                "verifier_service",
                {"verifier": {"listen": LOOPBACK, "model": {"path": nowhere}}},
                (nowhere,),
            ),
            ("drafter_service", {"drafter": {"listen": here}}, (here, "already in use")),
            (
                "orchestrator",
                {
                    "orchestrator": {
                        "listen": LOOPBACK,
                        "verifiers": [nobody],
                        "connect_timeout_s": 0.5,
                    }
                },
                (nobody, "does not answer"),
            ),
        ]

        async def check(index: int) -> None:
            module, document, words = cases[index]
            folder = tmp_path / str(index)
            folder.mkdir()
            async with service_process(module, document, folder) as process:
                assert await process.wait() == 2, process.lines
                errors = [line for line in process.lines if line.startswith("paceline: error: ")]
                assert len(errors) == 1
                assert all(word in errors[0] for word in words), errors
                assert "Traceback" not in "\n".join(process.lines)

        await asyncio.gather(*(check(index) for index in range(len(cases))))


@pytest.mark.parametrize("name", ["drafter", "verifier", "orchestrator"])
def test_an_unknown_key_is_named_before_anything_is_loaded(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(_config: Config) -> Any:
        raise AssertionError("started")

    monkeypatch.setattr(paceline.rpc.main, "setup_logging", lambda *_: None)
    path = tmp_path / "paceline.yaml"
    path.write_text("verifier: {model: {path: x, dtyp: y}, runtim: {}}\n")
    assert run_service(name, never, ["-c", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: error: ")
    assert "verifier.model.dtyp: unknown key" in line
    assert "verifier.runtim: unknown key" in line


async def test_a_wrong_worker_is_told_at_once_and_not_waited_for(
    strict_tokenizer_dir: Path,
) -> None:
    """Time does not turn a verifier into a drafter."""
    import orchestrator.service

    target = ScriptedRunner(hashed_script(VOCAB), vocab_size=VOCAB)
    async with scripted(target, None, tokenizer=strict_tokenizer_dir) as stack:
        address = stack.verifiers[0].address
        document = settings(
            orchestrator={
                "verifiers": [address],
                "drafters": [address],
                "tokenizer": str(strict_tokenizer_dir),
                "connect_timeout_s": 300,
            }
        )
        config = parse_config(document, source="test")
        with pytest.raises(StartupError, match=f"drafter {address} cannot be used: UNIMPL"):
            await asyncio.wait_for(orchestrator.service.start(config), 10)


async def test_a_missing_model_and_a_missing_tokenizer_are_named(
    tmp_path: Path, tiny_dir: Callable[..., Path]
) -> None:
    import orchestrator.service
    import verifier_service.service

    document = settings(tmp_path / "nothing")
    with pytest.raises(ModelLoadError, match="nothing"):
        await verifier_service.service.start(parse_config(document, source="test"))

    service = await verifier_service.service.start(
        parse_config(settings(tiny_dir()), source="test")
    )
    document = settings(
        orchestrator={"verifiers": [service.address], "tokenizer": str(tmp_path / "none")}
    )
    with pytest.raises(ConfigError, match=r"orchestrator\.tokenizer: .*none"):
        await orchestrator.service.start(parse_config(document, source="test"))
    await service.stop(0.0)
    assert model_section(tmp_path)["path"] == str(tmp_path)
