"""A drafter's engine over a scripted model or a scripted `Drafter`, driven event by event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from support.pipeline import worker_info

from drafter_service.drafter import Drafter, Proposal, ProposeRequest
from drafter_service.engine import DrafterEngine
from drafter_service.model import ModelDrafter
from drafter_service.session import DraftSession
from paceline.config import RuntimeConfig
from paceline.runtime.engine_thread import SessionKey
from paceline.runtime.scripted import ScriptedRunner
from paceline.sampling.draw import Draw
from paceline.sampling.params import SamplingParams
from paceline.types import Advance, DraftBlock, DrafterEvent, OpenSession, SessionError, WorkerInfo

VOCAB = 11
PROMPT = (1, 2, 3)
LINK = 1


def opening(session_id: int = 1, **changes: Any) -> OpenSession:
    """A greedy session: window 8, blocks of 4."""
    plain = OpenSession(
        session_id=session_id,
        token_ids=PROMPT,
        prompt_length=len(PROMPT),
        sampling=SamplingParams(temperature=0, max_tokens=50),
        window=8,
        num_speculative_tokens=4,
        draft_top_k=0,
        committed_limit=10_000,
        speculation=True,
        epoch=0,
        eos_token_ids=(),
        vocab_size=VOCAB,
    )
    if "token_ids" in changes:
        changes.setdefault("prompt_length", len(changes["token_ids"]))
    return replace(plain, **changes)


class CountingDrafter:
    """Drafts 1, 2, 3, … by position, as many a step as it is asked for up to `at_once`."""

    def __init__(self, *, at_once: int = 1, context_length: int = 0) -> None:
        self.context_length = context_length
        self.at_once = at_once
        self.asked: list[ProposeRequest] = []
        self.rollbacks: list[int] = []
        self.released: list[SessionKey] = []
        self.answer: Callable[[ProposeRequest], Proposal] = self.count

    def count(self, request: ProposeRequest) -> Proposal:
        start = len(request.token_ids)
        num_tokens = min(self.at_once, request.limit)
        return Proposal([Draw((start + i) % VOCAB, None) for i in range(num_tokens)])

    def reserve(self, key: SessionKey, opening: OpenSession) -> None:
        pass

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        self.asked += [replace(r, token_ids=tuple(r.token_ids)) for r in requests]
        return [self.answer(request) for request in requests]

    def rollback(self, key: SessionKey, length: int) -> None:
        self.rollbacks.append(length)

    def release(self, key: SessionKey, committed: Sequence[int] = ()) -> None:
        self.released.append(key)

    def kv_length(self, key: SessionKey) -> int:
        return 7

    def describe(self) -> WorkerInfo:
        return worker_info("model", VOCAB)


class DrafterBench:
    """An engine and its drafter."""

    def __init__(self, drafter: Drafter | None = None) -> None:
        self.drafter: Any = drafter or CountingDrafter()
        self.engine = DrafterEngine(self.drafter)

    def post(self, event: DrafterEvent, link: int = LINK) -> list[Any]:
        return [reply for _, reply in self.engine.handle(link, event, 0.0)]

    def step(self) -> list[Any]:
        replies = [reply for _, reply in self.engine.step(0.0)]
        for session in self.engine._sessions.values():
            session.check_integrity()
        return replies

    def run(self, max_steps: int = 200) -> list[Any]:
        """Step until every session waits for an advance."""
        replies: list[Any] = []
        for _ in range(max_steps):
            if self.engine.next_step_at(0.0) is None:
                return replies
            replies += self.step()
        raise AssertionError("the drafter does not come to rest")

    def session(self, session_id: int = 1) -> DraftSession:
        return self.engine._sessions[LINK, session_id]

    def advance(self, *token_ids: int, epoch: int | None = None, session_id: int = 1) -> list[Any]:
        """Commit tokens after those that the session knows."""
        session = self.session(session_id)
        epoch = session.epoch if epoch is None else epoch
        return self.post(Advance(session_id, epoch, session.committed, token_ids))


def model_bench(runner: ScriptedRunner, *, max_batch_tokens: int = 512) -> DrafterBench:
    """An engine that drafts with a scripted model."""
    config = RuntimeConfig(max_batch_tokens=max_batch_tokens)
    return DrafterBench(ModelDrafter(runner, config, worker_info("model", VOCAB)))


def drafted(replies: Sequence[Any], session_id: int = 1) -> list[int]:
    """The tokens of a session's blocks, in order."""
    return [
        token_id
        for reply in replies
        if isinstance(reply, DraftBlock) and reply.session_id == session_id
        for token_id in reply.token_ids
    ]


def only_error(replies: Sequence[Any]) -> SessionError:
    (reply,) = replies
    assert isinstance(reply, SessionError)
    return reply
