"""Above the configured load nobody drafts, and the drafter is not asked for anything."""

from __future__ import annotations

import asyncio
from typing import Any

from support.services import Stack, running, settings

PAIR = {"kind": "synthetic", "vocab_size": 128, "seed": 3}
LENGTHS = (60, 100, 140, 300, 300, 300, 300, 450)


async def drafter_counters(stack: Stack) -> dict[str, int]:
    counters = (await stack.info("drafter")).counters
    return {name: counters[name] for name in ("steps", "blocks", "draft_tokens")}


async def test_above_the_limit_there_are_no_drafts_and_below_it_they_come_back() -> None:
    """E04: eight sessions where four may draft; every output stays right across the switch."""
    document = settings(
        verifier={"model": {**PAIR, "base_ms": 2.0}},
        drafter={"kind": "model", "model": {**PAIR, "acceptance": 0.8}},
        orchestrator={"speculation": {"max_sessions": 4}},
    )
    async with running(document) as stack:

        async def one(number: int, **fields: Any) -> Any:
            prompt = [(number * 5 + at) % 100 for at in range(10)]
            length = LENGTHS[number]
            return await stack.generate(
                token_ids=prompt, max_tokens=length, temperature=0, **fields
            )

        alone = [await one(number, speculation=False) for number in range(8)]
        together = [asyncio.ensure_future(one(number)) for number in range(8)]
        await together[0]  # by now the drafter has heard that it is not needed
        before = await drafter_counters(stack)
        await asyncio.wait(together[:3])  # five are left
        assert await drafter_counters(stack) == before
        results = await asyncio.gather(*together)
        after = await drafter_counters(stack)
        assert after["draft_tokens"] > before["draft_tokens"], "drafts came back"
        assert results[-1].stats.accepted > 0
        assert [r.token_ids for r in results] == [r.token_ids for r in alone]
        assert await stack.is_idle()
