"""Clients that leave: their work stops within a step and everything of theirs is freed."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.services import ROOT, Stack, scripted, take, until
from test_concurrent_clients import EmulatedRunner

from orchestrator.servicer import OrchestratorServicer
from paceline.client import Client
from paceline.errors import PacelineError, SessionLostError
from paceline.runtime.scripted import ScriptedRunner, hashed_script

VOCAB = 200
STEP_S = 0.02


def model(
    seed: int = 0, *, cost_s: float = 0.0, num_pages: int = 4096, page_size: int = 4
) -> ScriptedRunner:
    return EmulatedRunner(
        hashed_script(VOCAB, seed=seed),
        cost_s=cost_s,
        vocab_size=VOCAB,
        num_pages=num_pages,
        page_size=page_size,
    )


def check_pool(runner: ScriptedRunner) -> None:
    runner.pool.check_integrity()
    assert runner.pool.used_pages == 0
    assert runner.pool.available_pages == runner.pool.num_pages


async def test_a_client_that_cancels_frees_its_pages_on_both_workers_within_a_step(
    byte_tokenizer_dir: Path,
) -> None:
    """G01: 3 chunks of 500 tokens, then the client leaves."""
    target, draft = model(cost_s=STEP_S), model(1, cost_s=STEP_S)
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        chunks = stack.client.generate(token_ids=[1, 2, 3], max_tokens=500, temperature=0)
        await take(chunks, 3)
        assert (await stack.info("verifier")).kv_pages_used > 0
        assert (await stack.info("drafter")).kv_pages_used > 0
        await chunks.aclose()
        await until(lambda: no_live_sessions(stack), 1.0, what="the orchestrator lets go")
        passes = len(target.passes), len(draft.passes)
        await until(stack.is_idle, 1.0, what="the workers let go")
        # the step that ran when the close arrived, and at most one that had begun before
        assert len(target.passes) - passes[0] <= 2
        assert len(draft.passes) - passes[1] <= 2
    check_pool(target)
    check_pool(draft)


async def no_live_sessions(stack: Stack) -> bool:
    return await stack.live_sessions() == 0


async def test_a_client_process_that_is_killed_frees_its_pages(byte_tokenizer_dir: Path) -> None:
    """G01."""
    target, draft = model(cost_s=STEP_S), model(1, cost_s=STEP_S)
    code = (
        "import asyncio, sys\n"
        "from paceline.client import Client\n"
        "async def main():\n"
        "    async with Client(sys.argv[1]) as client:\n"
        "        stream = client.generate(token_ids=[1, 2, 3], max_tokens=3000, temperature=0)\n"
        "        async for chunk in stream:\n"
        "            print('chunk', flush=True)\n"
        "asyncio.run(main())\n"
    )
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stack.orchestrator.address,
            cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(3):
            assert await process.stdout.readline() == b"chunk\n"
        assert await stack.live_sessions() == 1
        process.kill()
        await process.communicate()
        await until(stack.is_idle, 2.0, what="everything is freed")
    check_pool(target)
    check_pool(draft)


async def test_two_hundred_cancellations_leave_nothing_behind(byte_tokenizer_dir: Path) -> None:
    """G01, D08: after different numbers of chunks, ten at a time; no page, session or task."""
    target, draft = model(), model(1)
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:

        async def cancel_one(index: int) -> None:
            chunks = stack.client.generate(
                token_ids=[*range(1 + index % 40)], max_tokens=500, temperature=index % 2
            )
            await take(chunks, index % 7 + 1)
            await chunks.aclose()

        async def round_of(size: int) -> None:
            await asyncio.gather(*(cancel_one(index) for index in range(size)))

        await round_of(20)
        await until(stack.is_idle)
        tasks, objects, memory = len(asyncio.all_tasks()), own_objects(), resident_bytes()
        for _ in range(20):
            await round_of(10)
        await until(stack.is_idle)

        async def no_task_is_left() -> bool:
            return len(asyncio.all_tasks()) <= tasks

        await until(no_task_is_left, 5.0)
        assert own_objects() <= objects
        assert resident_bytes() - memory < 32 * 2**20
        result = await stack.generate(token_ids=[1, 2, 3], max_tokens=20, temperature=0)
        assert result.stats.drafted > 0
    check_pool(target)
    check_pool(draft)


def own_objects() -> int:
    """Live objects of our own classes."""
    gc.collect()
    own = ("paceline", "orchestrator", "verifier_service", "drafter_service")
    return sum(str(type(found).__module__).startswith(own) for found in gc.get_objects())


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


async def test_a_client_may_leave_in_the_prefill_and_before_the_first_token(
    byte_tokenizer_dir: Path,
) -> None:
    """G01, G08: the same prompt sent again gives what it should."""
    target, draft = model(cost_s=STEP_S), model(1)
    runtime = {"runtime": {"max_batch_tokens": 16}}
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir, verifier=runtime) as stack:
        for num_passes in (0, 1, 5):
            # a prompt of its own, whose pages nobody has computed before
            fields: Any = {"max_tokens": 5, "temperature": 0}
            fields["token_ids"] = [num_passes, *range(159)]
            done = len(target.passes)
            first = asyncio.ensure_future(anext(stack.client.generate(**fields)))
            await until(partial(reached, target, done + num_passes))
            assert not first.done(), "ten passes of prefill are needed"
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await until(stack.is_idle, 2.0, what="the prefill stops")
            assert len(target.passes) - done < 10
            again = await stack.generate(**fields)
            alone = await stack.generate(**fields, cache_salt="computed anew")
            assert again.token_ids == alone.token_ids
    check_pool(target)
    check_pool(draft)


async def reached(runner: ScriptedRunner, num_passes: int) -> bool:
    return len(runner.passes) >= num_passes


async def test_a_client_may_leave_while_it_waits_for_room(byte_tokenizer_dir: Path) -> None:
    """G01: the queue forgets it, the next in line is served, the one in front undisturbed."""
    target = model(cost_s=0.005, num_pages=20, page_size=4)
    async with scripted(target, None, tokenizer=byte_tokenizer_dir) as stack:
        fields: Any = {"max_tokens": 60, "temperature": 0}
        alone = await stack.generate(token_ids=[1], **fields)
        front = asyncio.ensure_future(stack.generate(token_ids=[1], **fields))
        await until(partial(waiting, stack, live=1, queued=0))
        leaver = asyncio.ensure_future(stack.generate(token_ids=[2], **fields))
        await until(partial(waiting, stack, live=2, queued=1))
        follower = asyncio.ensure_future(stack.generate(token_ids=[3], **fields))
        await until(partial(waiting, stack, live=3, queued=2))
        leaver.cancel()
        await until(partial(waiting, stack, live=2, queued=1))
        assert (await front).token_ids == alone.token_ids
        assert len((await follower).token_ids) == 60
        assert await stack.is_idle()
    check_pool(target)


async def waiting(stack: Stack, *, live: int, queued: int) -> bool:
    info = await stack.info("verifier")
    return (info.live_sessions, info.waiting_sessions) == (live, queued)


async def test_a_task_that_the_server_cancels_ends_the_call_with_a_status(
    byte_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G02: within a second, and everything is freed."""
    tasks: list[asyncio.Task[Any]] = []
    generate = OrchestratorServicer.Generate

    async def noted(self: Any, request: Any, context: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        async for response in generate(self, request, context):
            yield response

    monkeypatch.setattr(OrchestratorServicer, "Generate", noted)
    target, draft = model(cost_s=0.01), model(1)
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        chunks = stack.client.generate(token_ids=[1], max_tokens=3000, temperature=0)
        await take(chunks, 2)
        tasks[-1].cancel()

        async def drain() -> None:
            async for _ in chunks:
                pass

        with pytest.raises(SessionLostError, match="server cancelled"):
            await asyncio.wait_for(drain(), 1.0)
        await until(stack.is_idle, 1.0, what="everything is freed")


async def test_a_link_that_the_verifier_cancels_ends_its_calls_with_a_status(
    byte_tokenizer_dir: Path,
) -> None:
    """G02, H01: the verifier's Verify task ends; with nowhere to go the clients hear so."""
    target = model(cost_s=0.01)
    async with scripted(
        target, None, tokenizer=byte_tokenizer_dir, orchestrator={"failover_timeout_s": 0.2}
    ) as stack:
        chunks = stack.client.generate(token_ids=[1], max_tokens=3000, temperature=0)
        await take(chunks, 2)
        await stack.verifiers[0].stop(0.0)

        async def drain() -> None:
            async for _ in chunks:
                pass

        with pytest.raises(PacelineError, match="is lost"):
            await asyncio.wait_for(drain(), 1.0)
        assert await stack.live_sessions() == 0


async def test_closing_the_client_ends_its_generations(byte_tokenizer_dir: Path) -> None:
    target = model(cost_s=0.01)
    async with scripted(target, None, tokenizer=byte_tokenizer_dir) as stack:
        async with Client(stack.orchestrator.address) as leaving:
            streams: Sequence[Any] = [
                leaving.generate(token_ids=[n], max_tokens=2000, temperature=0) for n in range(3)
            ]
            for stream in streams:
                await anext(stream)
        await until(stack.is_idle, 2.0, what="everything is freed")
        for stream in streams:
            await stream.aclose()
