"""Workers spoken to directly: what no orchestrator sends must hurt nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.byte_tokenizer import build_byte_tokenizer
from support.services import running, scripted, settings, take, until
from test_cancellation import VOCAB, check_pool, model

from paceline.config import GrpcConfig
from paceline.errors import PacelineError
from paceline.rpc.credentials import NO_CREDENTIALS
from paceline.rpc.worker_client import WorkerClient, connect_drafter, connect_verifier
from paceline.runtime.scripted import ScriptedRunner
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import SamplingParams
from paceline.types import (
    Advance,
    CloseSession,
    Credit,
    DraftBlock,
    DrafterState,
    OpenSession,
    SessionError,
    Verdict,
)


class RawLink:
    """A link whose replies a test waits for, session by session."""

    def __init__(self, client: WorkerClient[Any, Any]) -> None:
        self.client = client
        self.closed: asyncio.Future[PacelineError | None] = asyncio.Future()
        self._replies: dict[int, asyncio.Queue[Any]] = {}
        self._link: Any = None

    async def start(self) -> None:
        self._link = await self.client.open_link(
            lambda reply, _size: self._of(reply.session_id).put_nowait(reply),
            self.closed.set_result,
        )

    def _of(self, session_id: int) -> asyncio.Queue[Any]:
        return self._replies.setdefault(session_id, asyncio.Queue())

    def send(self, *events: Any) -> None:
        for event in events:
            self._link.send(event)

    async def reply(self, session_id: int) -> Any:
        return await asyncio.wait_for(self._of(session_id).get(), 30)

    async def verdicts(self, session_id: int, num_tokens: int) -> list[int]:
        """The next so many committed tokens of a session."""
        tokens: list[int] = []
        while len(tokens) < num_tokens:
            verdict = await self.reply(session_id)
            assert isinstance(verdict, Verdict), verdict
            tokens += verdict.token_ids
        assert len(tokens) == num_tokens
        return tokens

    async def close(self) -> None:
        await self._link.close()
        await self.client.close()


@asynccontextmanager
async def raw_link(
    connect: Callable[..., WorkerClient[Any, Any]], address: str
) -> AsyncIterator[RawLink]:
    link = RawLink(connect(address, NO_CREDENTIALS, GrpcConfig(), timeout_s=30))
    await link.start()
    try:
        yield link
    finally:
        await link.close()


def opening(session_id: int, token_ids: Sequence[int] = (1, 2, 3), **changes: Any) -> OpenSession:
    base = OpenSession(
        session_id=session_id,
        token_ids=tuple(token_ids),
        prompt_length=len(token_ids),
        sampling=SamplingParams(max_tokens=20, temperature=0.0),
        window=12,
        num_speculative_tokens=4,
        draft_top_k=0,
        committed_limit=10_000,
        speculation=False,
        epoch=0,
        eos_token_ids=(),
        vocab_size=VOCAB,
    )
    return replace(base, **changes)


def block(session_id: int, base: int, token_ids: Sequence[int]) -> DraftBlock:
    return DraftBlock(
        session_id, 0, base, tuple(token_ids), None, base, DrafterState.RUNNING, base, 1
    )


def probs(
    rows: Sequence[Sequence[float]], ids: Sequence[Sequence[int]] | None = None
) -> DraftProbs:
    return DraftProbs(None if ids is None else torch.tensor(ids), torch.tensor(rows))


HALF = [0.5, 0.5]
WRONG_BLOCKS: dict[str, Any] = {
    "minus one": {"token_ids": (5, -1)},
    "beyond the vocabulary": {"token_ids": (5, VOCAB)},
    "ids beyond the vocabulary": {"draft_probs": probs([HALF, HALF], [[5, VOCAB], [6, 5]])},
    "a negative probability": {"draft_probs": probs([[1.5, -0.5], HALF], [[5, 6], [6, 5]])},
    "no number": {"draft_probs": probs([[float("nan"), 0.5], HALF], [[5, 6], [6, 5]])},
    "a sum of two": {"draft_probs": probs([[1.0, 1.0], HALF], [[5, 6], [6, 5]])},
    "a draft of probability 0": {"draft_probs": probs([[0.0, 1.0], HALF], [[5, 6], [6, 5]])},
    "an id twice": {"draft_probs": probs([HALF, HALF], [[5, 5], [6, 5]])},
    "a dense row of another width": {"draft_probs": probs([HALF, HALF])},
    "inside the prompt": {"base": 1},
    "past the end": {"base": 40},
    "more than the window": {"token_ids": (5,) * 13},
}


@pytest.mark.parametrize("fault", WRONG_BLOCKS)
async def test_a_wrong_block_ends_its_own_session_and_no_other(
    fault: str, byte_tokenizer_dir: Path
) -> None:
    """E07: INVALID_ARGUMENT for that session; the service and the same link's others go on."""
    target = model()
    async with scripted(target, None, tokenizer=byte_tokenizer_dir) as stack:
        wanted = (await stack.generate(token_ids=[1, 2, 3], max_tokens=20, temperature=0)).token_ids
        address = stack.verifiers[0].address
        async with raw_link(connect_verifier, address) as link:
            sampling = SamplingParams(max_tokens=20, temperature=1.0)
            # the credit keeps both sessions from going on before the block is there
            link.send(
                opening(1, speculation=True, committed_limit=4, sampling=sampling),
                opening(2, committed_limit=10),
            )
            first = await link.verdicts(2, 7)
            assert len(await link.verdicts(1, 1)) == 1
            link.send(replace(block(1, 4, (5, 6)), **WRONG_BLOCKS[fault]))
            error = await link.reply(1)
            assert isinstance(error, SessionError), error
            assert error.code == "INVALID_ARGUMENT", error
            link.send(Credit(2, 10_000))
            assert first + await link.verdicts(2, 13) == wanted
            link.send(block(1, 4, (5, 6)), Credit(1, 100), CloseSession(1))  # too late, for nobody
            assert not link.closed.done()
        again = await stack.generate(token_ids=[1, 2, 3], max_tokens=20, temperature=0)
        assert again.token_ids == wanted
        await until(stack.is_idle)
    check_pool(target)


WRONG_OPENINGS: dict[str, Any] = {
    "minus one": {"token_ids": (5, -1), "prompt_length": 2},
    "beyond the vocabulary": {"token_ids": (5, VOCAB), "prompt_length": 2},
    "no prompt": {"token_ids": (), "prompt_length": 0},
    "a prompt longer than its tokens": {"prompt_length": 4},
    "nothing left to generate": {"sampling": SamplingParams(max_tokens=1), "prompt_length": 2},
    "another vocabulary": {"vocab_size": VOCAB + 1},
    "more than the context": {"sampling": SamplingParams(max_tokens=5000)},
    "a stop id beyond the vocabulary": {"sampling": SamplingParams(stop_token_ids=(VOCAB,))},
}


@pytest.mark.parametrize("fault", WRONG_OPENINGS)
async def test_a_wrong_opening_is_refused_and_nothing_else_happens(
    fault: str, byte_tokenizer_dir: Path
) -> None:
    """E07."""
    target = model()
    async with scripted(target, None, tokenizer=byte_tokenizer_dir) as stack:
        async with raw_link(connect_verifier, stack.verifiers[0].address) as link:
            link.send(opening(1, **WRONG_OPENINGS[fault]), opening(2))
            error = await link.reply(1)
            assert isinstance(error, SessionError), error
            assert error.code == "INVALID_ARGUMENT", error
            assert len(await link.verdicts(2, 20)) == 20
            link.send(opening(3), opening(3))  # opened twice
            while not isinstance(reply := await link.reply(3), SessionError):
                pass
            assert reply.code == "INVALID_ARGUMENT"
        await until(stack.is_idle)
    check_pool(target)


@pytest.mark.parametrize("token_id", [-1, VOCAB])
async def test_a_drafter_refuses_ids_that_its_model_lacks(
    token_id: int, byte_tokenizer_dir: Path
) -> None:
    """E07, in openings and advances."""
    draft = model()
    async with scripted(model(), draft, tokenizer=byte_tokenizer_dir) as stack:
        async with raw_link(connect_drafter, stack.drafters[0].address) as link:
            link.send(opening(1, (1, token_id)), opening(2), opening(3))
            assert (await link.reply(1)).code == "INVALID_ARGUMENT"
            link.send(Advance(2, 0, 3, (token_id,)))
            while not isinstance(reply := await link.reply(2), SessionError):
                pass
            assert reply.code == "INVALID_ARGUMENT"
            assert len((await link.reply(3)).token_ids) == 4
        await until(stack.is_idle)
    check_pool(draft)


async def test_a_drafter_asked_to_skip_a_position_ends_that_session(
    byte_tokenizer_dir: Path,
) -> None:
    draft = model()
    async with scripted(model(), draft, tokenizer=byte_tokenizer_dir) as stack:
        async with raw_link(connect_drafter, stack.drafters[0].address) as link:
            link.send(opening(1), Advance(1, 0, 7, (5,)))
            while not isinstance(reply := await link.reply(1), SessionError):
                pass
            assert reply.code == "INVALID_ARGUMENT"
        await until(stack.is_idle)
    check_pool(draft)


async def test_a_broken_link_frees_its_sessions_and_those_only(byte_tokenizer_dir: Path) -> None:
    """G01: no close is sent; the end of the link says it all."""
    target = model(cost_s=0.005)
    async with scripted(target, None, tokenizer=byte_tokenizer_dir) as stack:
        other = stack.client.generate(token_ids=[1], max_tokens=2000, temperature=0)
        await take(other, 1)
        async with raw_link(connect_verifier, stack.verifiers[0].address) as link:
            endless = SamplingParams(max_tokens=2000, temperature=0.0)
            link.send(*(opening(number, sampling=endless) for number in range(1, 6)))
            await link.reply(5)

        async def one_is_left() -> bool:
            return (await stack.info("verifier")).live_sessions == 1

        await until(one_is_left, 5.0)
        await take(other, 3)
        await other.aclose()
        await until(stack.is_idle)
    check_pool(target)


async def test_the_verifier_stops_at_the_commit_credit(byte_tokenizer_dir: Path) -> None:
    target = model()
    async with scripted(target, None, tokenizer=byte_tokenizer_dir) as stack:
        async with raw_link(connect_verifier, stack.verifiers[0].address) as link:
            link.send(opening(1, committed_limit=3 + 8))
            tokens = await link.verdicts(1, 8)
            before = (await stack.info("verifier")).counters["committed_tokens"]
            # another session's whole life passes, and this one stays where it is
            link.send(opening(2))
            assert len(await link.verdicts(2, 20)) == 20
            after = (await stack.info("verifier")).counters["committed_tokens"]
            assert after - before == 20
            link.send(Credit(1, 3 + 12), Credit(1, 3 + 5))  # a credit never shrinks
            tokens += await link.verdicts(1, 4)
            link.send(Credit(1, 10_000))
            tokens += await link.verdicts(1, 8)
        alone = await stack.generate(token_ids=[1, 2, 3], max_tokens=20, temperature=0)
        assert tokens == alone.token_ids
    check_pool(target)


def wordy_target(tmp_path: Path) -> ScriptedRunner:
    """Its twenty likeliest ids have long names, so that few tokens with alternatives fill 4 MiB."""
    names = [f"<{index:->1000}>" for index in range(20)]
    build_byte_tokenizer(extra_special=names).save_pretrained(tmp_path)
    vocab = 258 + len(names)
    return ScriptedRunner(lambda _: torch.arange(float(vocab)), vocab_size=vocab, num_pages=1000)


async def test_a_client_that_never_reads_again_loses_its_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its KV pages and its place are for others then."""
    target = wordy_target(tmp_path)
    settings = {"commit_credit": 8, "slow_client_timeout_s": 0.5}
    async with scripted(target, None, tokenizer=tmp_path, orchestrator=settings) as stack:
        slow = stack.client.generate(
            token_ids=[1], max_tokens=1500, temperature=0, logprobs=20, ignore_eos=True
        )
        chunks = await take(slow, 1)
        await until(stack.is_idle)
        with pytest.raises(PacelineError):
            chunks += [chunk async for chunk in slow]
        assert 0 < sum(len(chunk.tokens) for chunk in chunks) < 1500
        assert "orchestrator.slow_client_timeout_s" in caplog.text
    check_pool(target)


async def test_a_client_that_does_not_read_stops_the_verifier(tmp_path: Path) -> None:
    """The work stops once the transport's buffers are full, and goes on when the client reads."""
    target = wordy_target(tmp_path)
    length = 1500
    async with scripted(
        target, None, tokenizer=tmp_path, orchestrator={"commit_credit": 8}
    ) as stack:
        slow = stack.client.generate(
            token_ids=[1], max_tokens=length, temperature=0, logprobs=20, ignore_eos=True
        )
        chunks = await take(slow, 1)
        others = 0
        previous = -1

        async def has_stopped() -> bool:
            nonlocal others, previous
            await stack.generate(token_ids=[2], max_tokens=30, temperature=0)
            others += 30
            committed = (await stack.info("verifier")).counters["committed_tokens"] - others
            stopped, previous = committed == previous, committed
            return stopped

        await until(has_stopped)
        assert 8 <= previous < length // 2
        chunks += [chunk async for chunk in slow]
        assert sum(len(chunk.tokens) for chunk in chunks) == length
        assert await stack.is_idle()
    check_pool(target)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("top_k", [0, 16])
async def test_draft_distributions_read_from_the_wire_sum_to_one(
    dtype: str, top_k: int, tiny_dir: Callable[..., Path]
) -> None:
    """I04: float32 on the wire, whatever the drafter computes in; each token has a chance."""
    document = settings(tiny_dir(), tiny_dir(1))
    document["drafter"]["model"]["dtype"] = dtype
    async with (
        running(document) as stack,
        raw_link(connect_drafter, stack.drafters[0].address) as link,
    ):
        sampling = SamplingParams(temperature=1.0, seed=5)
        link.send(opening(1, vocab_size=258, sampling=sampling, draft_top_k=top_k))
        for _ in range(3):
            drafted = await link.reply(1)
            rows = drafted.draft_probs
            assert rows.probs.dtype == torch.float32
            assert rows.probs.shape[1] <= (top_k or 258)
            assert (rows.probs.sum(1) - 1).abs().max() < 1e-3
            assert rows.prob_of(torch.tensor(drafted.token_ids)).min() > 0
            rows.check(258)
