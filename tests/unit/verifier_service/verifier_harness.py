"""A verifier over a scripted target, driven event by event, and one of its sessions alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from support.pipeline import worker_info
from torch import Tensor

from paceline.config import RuntimeConfig, VerifierConfig
from paceline.runtime.page_pool import PagePool
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.acceptance import Judgement
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import SamplingParams
from paceline.types import (
    DraftBlock,
    DrafterState,
    OpenSession,
    PassTimings,
    SessionError,
    Verdict,
    VerifierEvent,
)
from verifier_service.plan import PassPlan
from verifier_service.session import VerifierSession
from verifier_service.verifier import Verifier

VOCAB = 11
TARGET = hashed_script(VOCAB, seed=1)
PROMPT = (1, 2, 3)
LINK = 1
PATIENCE_S = 0.01
TIMINGS = PassTimings(0, 0, 0, 0, 0)
GREEDY = SamplingParams(temperature=0, max_tokens=50)


def opening(session_id: int = 1, **changes: Any) -> OpenSession:
    """A greedy session with speculation."""
    plain = OpenSession(
        session_id=session_id,
        token_ids=PROMPT,
        prompt_length=len(PROMPT),
        sampling=GREEDY,
        window=12,
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


def block(
    base: int,
    token_ids: Sequence[int],
    *,
    epoch: int = 0,
    session_id: int = 1,
    state: DrafterState = DrafterState.RUNNING,
    known_committed: int = 0,
    draft_probs: DraftProbs | None = None,
    parents: Sequence[int] = (),
) -> DraftBlock:
    """A draft block."""
    return DraftBlock(
        session_id=session_id,
        epoch=epoch,
        base=base,
        token_ids=tuple(token_ids),
        draft_probs=draft_probs,
        known_committed=known_committed,
        state=state,
        kv_length=0,
        draft_us=0,
        parents=tuple(parents),
    )


class SessionBench:
    """One `VerifierSession` with pages, and a judge that decides what the test says."""

    def __init__(self, *, max_drafts: int = 32, prefilled: bool = True, **changes: Any) -> None:
        self.now = 0.0
        self.pool = PagePool(64, 4)
        self.session = VerifierSession(
            opening(**changes), patience_s=PATIENCE_S, max_drafts=max_drafts
        )
        self.session.table = self.pool.open_table(self.session.opening.max_length)
        if prefilled:  # the first output token is 4, at position 3
            self.decide(self.plan(), accepted=0, next_token=4)

    def plan(self) -> PassPlan:
        """The next pass, once patience is over; fails if only an event can bring one."""
        due = self.session.ready_at(self.now)
        assert due is not None, "nothing to do"
        self.now = max(self.now, due)
        plan = self.session.plan(self.now)
        assert plan is not None
        return plan

    def decide(self, plan: PassPlan, *, accepted: int, next_token: int | None) -> Verdict:
        """Run a planned pass with a given judgement."""
        assert self.session.table is not None
        inputs = self.session.inputs(plan.num_inputs)
        assert len(inputs) == plan.num_inputs
        self.session.table.grow(len(inputs))
        verdict = self.session.commit(plan, Judgement(accepted, next_token), TIMINGS)
        self.pool.check_integrity()
        return verdict


class VerifierBench:
    """A whole verifier, its clock in the hands of the test."""

    def __init__(
        self,
        script: Callable[[Sequence[int]], Tensor] = TARGET,
        *,
        vocab_size: int = VOCAB,
        max_batch_tokens: int = 512,
        max_drafts_per_pass: int = 32,
        max_waiting_s: float = 30.0,
        max_waiting_sessions: int = 1024,
        **runner_options: Any,
    ) -> None:
        self.now = 0.0
        self.runner = ScriptedRunner(script, vocab_size=vocab_size, **runner_options)
        runtime = RuntimeConfig(
            max_batch_tokens=max_batch_tokens,
            max_waiting_s=max_waiting_s,
            max_waiting_sessions=max_waiting_sessions,
        )
        config = VerifierConfig(
            draft_patience_ms=PATIENCE_S * 1e3,
            max_drafts_per_pass=max_drafts_per_pass,
            runtime=runtime,
        )
        self.verifier = Verifier(self.runner, config, worker_info("verifier", vocab_size))

    def post(self, event: VerifierEvent, link: int = LINK) -> list[Any]:
        return [reply for _, reply in self.verifier.handle(link, event, self.now)]

    def step(self) -> list[Any]:
        replies = [reply for _, reply in self.verifier.step(self.now)]
        self.runner.pool.check_integrity()
        return replies

    def session(self, session_id: int = 1, link: int = LINK) -> VerifierSession:
        return self.verifier._sessions[link, session_id]

    def run(self, max_steps: int = 1000) -> list[Any]:
        """Step until only an event can bring more; the clock jumps over waiting."""
        replies: list[Any] = []
        for _ in range(max_steps):
            due = self.verifier.next_step_at(self.now)
            if due is None:
                return replies
            self.now = max(self.now, due)
            replies += self.step()
        raise AssertionError("the verifier does not come to rest")


def tokens_of(replies: Sequence[Any], session_id: int = 1) -> list[int]:
    """What the verdicts for a session committed, in order."""
    return [
        token_id
        for reply in replies
        if isinstance(reply, Verdict) and reply.session_id == session_id
        for token_id in reply.token_ids
    ]


def only_error(replies: Sequence[Any]) -> SessionError:
    """The one reply, which is an error."""
    (reply,) = replies
    assert isinstance(reply, SessionError)
    return reply
