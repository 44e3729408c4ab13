"""When the KV pool is full: waiting in order, for a bounded time, or a refusal with the numbers."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.services import scripted, until
from test_cancellation import check_pool, model, waiting

from paceline.client import GenerateResult
from paceline.errors import InvalidArgumentError, ResourceExhaustedError

TEN_PAGES: Any = {"token_ids": [1, 2], "max_tokens": 38, "temperature": 0, "ignore_eos": True}
"""40 tokens: all ten pages of a pool."""


async def test_sessions_wait_for_room_in_the_order_in_which_they_came(
    byte_tokenizer_dir: Path,
) -> None:
    target = model(cost_s=0.002, num_pages=10)
    async with scripted(target, None, tokenizer=byte_tokenizer_dir) as stack:
        wanted = (await stack.generate(**TEN_PAGES)).token_ids
        order: list[int] = []

        async def one(index: int) -> list[int]:
            result = await stack.generate(**TEN_PAGES)
            order.append(index)
            return result.token_ids

        tasks = []
        for index in range(4):
            tasks.append(asyncio.ensure_future(one(index)))
            live = index + 1
            await until(partial(waiting, stack, live=live, queued=live - 1))
        assert (await stack.info("verifier")).kv_pages_used <= 10
        assert await asyncio.gather(*tasks) == [wanted] * 4
        assert order == [0, 1, 2, 3]
        assert await stack.is_idle()
    check_pool(target)


async def test_the_answers_of_one_request_do_not_wait_for_each_others_room(
    byte_tokenizer_dir: Path,
) -> None:
    """The pool holds two of the four; the others begin as those end, however long that takes."""
    target = model(cost_s=0.002, num_pages=20)
    runtime = {"runtime": {"max_waiting_s": 0.01}}
    async with scripted(target, None, tokenizer=byte_tokenizer_dir, verifier=runtime) as stack:
        wanted = (await stack.generate(**TEN_PAGES)).token_ids
        chunks = [chunk async for chunk in stack.client.generate(**TEN_PAGES, n=4)]
        answers = GenerateResult.all_of(chunks)
        assert [answer.token_ids for answer in answers] == [wanted] * 4
        assert await stack.is_idle()
    check_pool(target)


async def test_a_session_waits_no_longer_than_it_is_told(byte_tokenizer_dir: Path) -> None:
    """RESOURCE_EXHAUSTED with the numbers; who holds the room is not disturbed."""
    target = model(cost_s=0.02, num_pages=10)
    runtime = {"runtime": {"max_waiting_s": 0.2}}
    async with scripted(target, None, tokenizer=byte_tokenizer_dir, verifier=runtime) as stack:
        holder = asyncio.ensure_future(stack.generate(**TEN_PAGES))
        await until(partial(waiting, stack, live=1, queued=0))
        with pytest.raises(ResourceExhaustedError, match=r"after 0\.2 s: 10 pages needed, 0 of 10"):
            await stack.generate(**TEN_PAGES)
        assert not holder.done()
        assert len((await holder).token_ids) == 38
        assert len((await stack.generate(**TEN_PAGES)).token_ids) == 38
        assert await stack.is_idle()
    check_pool(target)


async def test_a_full_queue_refuses_at_once(byte_tokenizer_dir: Path) -> None:
    target = model(cost_s=0.005, num_pages=10)
    runtime = {"runtime": {"max_waiting_sessions": 1}}
    async with scripted(target, None, tokenizer=byte_tokenizer_dir, verifier=runtime) as stack:
        tasks = []
        for index in range(2):
            tasks.append(asyncio.ensure_future(stack.generate(**TEN_PAGES)))
            await until(partial(waiting, stack, live=index + 1, queued=index))
        with pytest.raises(ResourceExhaustedError, match="already wait"):
            await stack.generate(**TEN_PAGES)
        await asyncio.gather(*tasks)
    check_pool(target)


async def test_what_can_never_fit_is_refused_at_once_with_the_numbers(
    byte_tokenizer_dir: Path,
) -> None:
    target = model(num_pages=10)
    async with scripted(target, None, tokenizer=byte_tokenizer_dir) as stack:
        with pytest.raises(
            InvalidArgumentError, match=r"^max_tokens: .* need 11 KV pages of 4 .* pool has 10"
        ):
            await stack.generate(token_ids=[1, 2], max_tokens=39)
        assert len((await stack.generate(**TEN_PAGES)).token_ids) == 38
    check_pool(target)


async def test_a_drafter_without_room_costs_drafts_only(byte_tokenizer_dir: Path) -> None:
    """D08: fifty sessions in turn all speculate, though the draft pool holds only one."""
    target, draft = model(), model(0, num_pages=25)
    fields: Any = {"token_ids": [*range(40)], "max_tokens": 20, "temperature": 0}
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        wanted = (await stack.generate(**fields, speculation=False)).token_ids
        for _ in range(50):
            result = await stack.generate(**fields)
            assert result.token_ids == wanted
            assert result.stats.accepted > 0
            await until(stack.is_idle)
        together = await asyncio.gather(*(stack.generate(**fields) for _ in range(4)))
        assert [result.token_ids for result in together] == [wanted] * 4
        await until(stack.is_idle)
    check_pool(target)
    check_pool(draft)


async def test_a_prompt_above_the_drafters_whole_pool_goes_without_drafts(
    byte_tokenizer_dir: Path,
) -> None:
    target, draft = model(), model(0, num_pages=10)
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        result = await stack.generate(token_ids=[*range(100)], max_tokens=10, temperature=0)
        assert len(result.token_ids) == 10
        assert result.stats.drafted == 0
        short = await stack.generate(token_ids=[1], max_tokens=10, temperature=0)
        assert short.stats.accepted > 0
