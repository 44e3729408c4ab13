"""Workers that die, hang, fail once or never come: who notices, and what goes on."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.services import (
    LOOPBACK,
    NOT_SERVING,
    ROOT,
    SERVING,
    Stack,
    orchestrated,
    running,
    scripted,
    service_process,
    settings,
    take,
    until,
    watch_health,
    worker,
)
from test_cancellation import VOCAB, model
from test_concurrent_clients import EmulatedRunner
from torch import Tensor

import drafter_service.model
import drafter_service.service
import verifier_service.service
from paceline.client import Chunk, Client
from paceline.config import parse_config, split_address
from paceline.errors import ModelLoadError, PacelineError, StartupError, UnavailableError
from paceline.runtime.runner import Chunk as RunnerChunk
from paceline.runtime.scripted import ScriptedRunner, hashed_script

MakeDir = Callable[..., Path]
Greedy = Callable[..., list[int]]
PROMPT = [5, 6, 7]


def token_ids(chunks: Sequence[Chunk]) -> list[int]:
    return [token.id for chunk in chunks for token in chunk.tokens]


async def drain(stream: Any) -> list[Chunk]:
    return [chunk async for chunk in stream]


async def is_connected(stack: Stack, role: str) -> bool:
    workers = (await stack.client.status()).workers
    return all(worker.is_connected for worker in workers if worker.role == role)


async def test_a_killed_verifier_ends_its_streams_and_serves_again_after_a_restart(
    tmp_path: Path, tiny_dir: MakeDir, greedy: Greedy
) -> None:
    """H01: SIGKILL in mid-stream; an error within 5 s, health NOT_SERVING; then all is well."""
    target = tiny_dir(context=4096)
    document = settings(target, "ngram", orchestrator={"failover_timeout_s": 1.0})
    config = parse_config(document, source="test")
    async with (
        worker(drafter_service.service.start(config)) as ngram,
        service_process("verifier_service", document, tmp_path) as verifier,
    ):
        await verifier.wait_listening()
        async with orchestrated(document, [verifier], [ngram]) as stack:
            address = stack.orchestrator.address
            await watch_health(address, SERVING)
            streams = [
                stack.client.generate(
                    token_ids=[*PROMPT, number],
                    max_tokens=2000,
                    ignore_eos=True,
                    speculation=number == 0,
                )
                for number in range(3)
            ]
            await asyncio.gather(*(take(stream, 5) for stream in streams))
            verifier.process.kill()
            killed = time.monotonic()
            ends = await asyncio.gather(*map(drain, streams), return_exceptions=True)
            assert time.monotonic() - killed < 5
            assert [type(end) for end in ends] == 3 * [UnavailableError]
            await watch_health(address, NOT_SERVING)
            with pytest.raises(UnavailableError, match="no verifier is connected"):
                await stack.generate(token_ids=PROMPT)
            status = await stack.client.status()
            assert [w.is_connected for w in status.workers] == [False, True]
            assert status.workers[0].detail
            async with service_process(
                "verifier_service", document, tmp_path, "--listen", verifier.address
            ) as again:
                await again.wait_listening()
                await watch_health(address, SERVING)
                result = await stack.generate(token_ids=PROMPT, max_tokens=30, temperature=0)
                assert result.token_ids == greedy(target, PROMPT, 30)
                assert await stack.is_idle()
                again.process.send_signal(signal.SIGTERM)
                assert await again.wait() == 0
                await watch_health(address, NOT_SERVING)


async def test_a_drafter_that_dies_or_hangs_costs_drafts_only(
    tmp_path: Path, tiny_dir: MakeDir, greedy: Greedy
) -> None:
    """H02: SIGKILL, restart, SIGSTOP and SIGCONT; every stream equals the target's own."""
    target = tiny_dir()
    wanted = greedy(target, PROMPT, 300)
    document = settings(target, target)
    config = parse_config(document, source="test")

    async def speculates(stack: Stack) -> None:
        result = await stack.generate(token_ids=PROMPT, max_tokens=20, temperature=0)
        assert result.token_ids == wanted[:20]
        assert result.stats.accepted > 0

    async def interrupted(stack: Stack, interrupt: Callable[[], None]) -> Any:
        stream = stack.client.generate(token_ids=PROMPT, max_tokens=300, temperature=0)
        chunks: list[Chunk] = []
        while len(token_ids(chunks)) < 5:
            chunks += await take(stream, 1)
        interrupt()
        chunks += await drain(stream)
        assert token_ids(chunks) == wanted
        return chunks[-1].stats

    async with (
        worker(verifier_service.service.start(config)) as verifier,
        service_process("drafter_service", document, tmp_path) as drafter,
    ):
        await drafter.wait_listening()
        async with orchestrated(document, [verifier], [drafter]) as stack:
            await speculates(stack)
            stats = await interrupted(stack, drafter.process.kill)
            assert stats.drafted < 300
            await watch_health(stack.orchestrator.address, SERVING)
            async with service_process(
                "drafter_service", document, tmp_path, "--listen", drafter.address
            ) as again:
                await again.wait_listening()
                await until(lambda: is_connected(stack, "drafter"))
                await speculates(stack)
                stats = await interrupted(stack, lambda: again.process.send_signal(signal.SIGSTOP))
                assert stats.drafted < 300
                again.process.send_signal(signal.SIGCONT)
                await speculates(stack)
                await until(stack.is_idle)
                again.process.send_signal(signal.SIGTERM)
                assert await again.wait() == 0


async def test_a_lost_verifier_is_replaced_by_another_in_mid_stream(
    byte_tokenizer_dir: Path,
) -> None:
    """The session goes on from its committed tokens; nothing is doubled or lost."""
    targets, draft = [model(cost_s=0.005), model(cost_s=0.005)], model()
    async with scripted(targets, draft, tokenizer=byte_tokenizer_dir) as stack:
        fields: Any = {"token_ids": PROMPT, "max_tokens": 200, "temperature": 0}
        wanted = (await stack.generate(**fields)).token_ids
        seeded: Any = fields | {"temperature": 1.0, "acceptance": "coupled", "seed": 9}
        sampled = (await stack.generate(**seeded)).token_ids
        streams = [stack.client.generate(**fields), stack.client.generate(**seeded)]
        started = [await take(stream, 3) for stream in streams]
        await stack.verifiers[0].stop(0.0)
        rests = await asyncio.gather(*map(drain, streams))
        assert token_ids(started[0] + rests[0]) == wanted
        assert token_ids(started[1] + rests[1]) == sampled
        await watch_health(stack.orchestrator.address, SERVING)
        assert (await stack.generate(**fields)).token_ids == wanted


class FailingRunner(EmulatedRunner):
    """Fails in the passes whose numbers are given."""

    def __init__(
        self, script: Callable[[Sequence[int]], Tensor], *, fails: Sequence[int], **settings: Any
    ) -> None:
        super().__init__(script, cost_s=0.0, **settings)
        self.fails = set(fails)
        self._count = 0

    def forward(self, chunks: Sequence[RunnerChunk]) -> Tensor:
        self._count += 1
        if self._count in self.fails:
            raise RuntimeError("the device went away")
        return super().forward(chunks)


async def test_a_pass_that_fails_once_is_tried_again_elsewhere(byte_tokenizer_dir: Path) -> None:
    """D07: the third round fails; no token is doubled or lost."""
    script = hashed_script(VOCAB)
    target = FailingRunner(script, fails=[3, 9], vocab_size=VOCAB)
    sound = ScriptedRunner(script, vocab_size=VOCAB)
    fields: Any = {"token_ids": PROMPT, "max_tokens": 60, "temperature": 0}
    async with scripted(sound, None, tokenizer=byte_tokenizer_dir) as stack:
        wanted = (await stack.generate(**fields)).token_ids
    async with scripted(target, model(), tokenizer=byte_tokenizer_dir) as stack:
        result = await stack.generate(**fields)
        assert result.token_ids == wanted
        assert result.stats.accepted > 0
        assert await stack.is_idle()
        target.fails = set(range(10_000))
        with pytest.raises(UnavailableError, match="verification failed: unexpected RuntimeError"):
            await stack.generate(**fields)
        target.fails = set()
        assert (await stack.generate(**fields)).token_ids == wanted
        assert await stack.is_idle()


async def test_a_drafter_pass_that_fails_costs_that_sessions_drafts(
    byte_tokenizer_dir: Path,
) -> None:
    draft = FailingRunner(hashed_script(VOCAB), fails=[6], vocab_size=VOCAB)
    fields: Any = {"token_ids": PROMPT, "max_tokens": 60, "temperature": 0}
    async with scripted(model(), draft, tokenizer=byte_tokenizer_dir) as stack:
        wanted = (await stack.generate(**fields, speculation=False)).token_ids
        assert (await stack.generate(**fields)).token_ids == wanted
        result = await stack.generate(**fields)
        assert result.token_ids == wanted
        assert result.stats.accepted > 0


# --- drafters that do not come ------------------------------------------------------------------


async def test_a_draft_model_that_is_not_there_fails_its_service(
    tmp_path: Path, tiny_dir: MakeDir
) -> None:
    """H08."""
    document = settings(tiny_dir(), tmp_path / "missing")
    with pytest.raises(ModelLoadError, match="missing"):
        await drafter_service.service.start(parse_config(document, source="test"))


@pytest.mark.parametrize("module", [verifier_service.service, drafter_service.service])
async def test_a_model_whose_first_pass_fails_ends_the_start(
    module: Any, tiny_dir: MakeDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its reason, and the port is free again."""

    def no_memory(*_arguments: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(verifier_service.service, "warm_up", no_memory)
    monkeypatch.setattr(drafter_service.model, "warm_up", no_memory)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    document = settings(tiny_dir(), tiny_dir())
    document["verifier"]["listen"] = document["drafter"]["listen"] = address
    with pytest.raises(StartupError, match="model failed in its first pass: out of memory"):
        await module.start(parse_config(document, source="test"))
    socket.create_server(tuple(split_address(address))).close()


async def test_without_its_drafter_the_orchestrator_starts_only_where_allowed(
    tiny_dir: MakeDir, caplog: pytest.LogCaptureFixture
) -> None:
    """H08: a warning, and each answer says so; when the drafter comes, drafting begins."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    target = tiny_dir()
    document = settings(target, target, orchestrator={"connect_timeout_s": 0.3})
    document["drafter"]["listen"] = address
    config = parse_config(document, source="test")
    fields: Any = {"token_ids": PROMPT, "max_tokens": 10, "temperature": 0}
    async with worker(verifier_service.service.start(config)) as verifier:
        with pytest.raises(StartupError, match=f"drafter {address} does not answer"):
            async with orchestrated(document, [verifier], [Absent(address)]):
                pass
        document["orchestrator"]["require_drafter"] = False
        caplog.set_level(logging.WARNING)
        async with orchestrated(document, [verifier], [Absent(address)]) as stack:
            assert f"drafter {address} does not answer" in caplog.text
            assert "without drafts" in caplog.text
            result = await stack.generate(**fields)
            assert result.stats.speculation == "unavailable"
            assert result.stats.drafted == 0
            verifying, drafting = (await stack.client.status()).workers
            assert verifying.is_connected
            assert not drafting.is_connected
            assert drafting.detail
            async with worker(drafter_service.service.start(config)):
                await until(lambda: is_connected(stack, "drafter"))
                later = await stack.generate(**fields)
                assert later.token_ids == result.token_ids
                assert later.stats.speculation == "on"
                assert later.stats.accepted > 0


class Absent:
    """A worker that nobody has started."""

    def __init__(self, address: str) -> None:
        self.address = address


# --- processes and event loops ------------------------------------------------------------------

CLIENT = """
import asyncio, sys
from paceline.client import Client

async def ids():
    async with Client(sys.argv[1]) as client:
        stream = client.generate(token_ids=[5, 6, 7], max_tokens=12, temperature=0)
        return [token.id async for chunk in stream for token in chunk.tokens]

print(asyncio.run(ids()))
print(asyncio.run(ids()))
client = Client(sys.argv[1])
print(client.generate_text(token_ids=[5, 6, 7], max_tokens=12, temperature=0).token_ids)
print(client.generate_text(token_ids=[5, 6, 7], max_tokens=12, temperature=0).token_ids)
"""


async def test_an_orchestrator_process_serves_client_after_client_and_drains_on_a_signal(
    tmp_path: Path, byte_tokenizer_dir: Path
) -> None:
    """G06: event loop after event loop in one client process; SIGTERM lets streams end."""
    async with scripted(model(cost_s=0.005), model(), tokenizer=byte_tokenizer_dir) as stack:
        wanted = await stack.generate(token_ids=PROMPT, max_tokens=12, temperature=0)
        document = settings(
            orchestrator={
                "listen": LOOPBACK,
                "verifiers": [stack.verifiers[0].address],
                "drafters": [stack.drafters[0].address],
                "tokenizer": str(byte_tokenizer_dir),
            }
        )
        async with service_process("orchestrator", document, tmp_path) as process:
            address = await process.wait_listening()
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENT, address, cwd=ROOT, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await client.communicate()
            assert client.returncode == 0
            assert output.decode().splitlines() == 4 * [str(wanted.token_ids)]

            async with Client(address) as direct:
                stream = direct.generate(token_ids=PROMPT, max_tokens=300, temperature=0)
                chunks = await take(stream, 1)
                process.process.send_signal(signal.SIGTERM)
                chunks += await drain(stream)
                assert len(token_ids(chunks)) == 300
                assert await process.wait() == 0
                assert "Traceback" not in "\n".join(process.lines)
                with pytest.raises(PacelineError):
                    await direct.status()
        await until(stack.is_idle, 5.0)


async def test_services_start_and_stop_again_and_again_beside_a_live_channel(
    byte_tokenizer_dir: Path, tiny_dir: MakeDir
) -> None:
    """G06: ten times in one process, no hang and nothing left."""
    async with running(settings(tiny_dir(), "ngram")) as lasting:
        stream = lasting.client.generate(token_ids=PROMPT, max_tokens=400, temperature=0)
        chunks = await take(stream, 1)
        for _ in range(10):
            async with scripted(model(), model(), tokenizer=byte_tokenizer_dir) as stack:
                result = await stack.generate(token_ids=PROMPT, max_tokens=5, temperature=0)
                assert len(result.token_ids) == 5
        chunks += await drain(stream)
        assert chunks[-1].finish_reason is not None


async def test_a_worker_whose_engine_is_gone_ends_by_itself(byte_tokenizer_dir: Path) -> None:
    """H01: its health, links and description live elsewhere and would go on for ever."""
    async with scripted(model(), None, tokenizer=byte_tokenizer_dir) as stack:
        service = stack.verifiers[0]
        engine: Any = service._thread._engine
        engine.step = engine.fail_all = None
        request = asyncio.ensure_future(stack.generate(token_ids=[1], max_tokens=5))
        with pytest.raises(TypeError):
            await asyncio.wait_for(service.wait(), 10)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
