"""Random interleavings of blocks, verdicts, cancellations, failures and late messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.pipeline import Pipeline, outputs, reference, verdicts

from orchestrator.relay import Relay
from paceline.config import TreeConfig
from paceline.errors import UnavailableError
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.randomness import gumbel_noise

VOCAB = 5
TARGET = hashed_script(VOCAB, seed=1)
MAX_TOKENS = 24
END = 4
SHARED = [1, 3, 0, 2, 2, 1, 0, 3, 1, 1, 2, 0, 3, 3, 1, 0, 2, 1]
"""Prompts that begin alike share pages of the cache."""


def half_right(history: Sequence[int]) -> torch.Tensor:
    """Agrees with the target at some positions."""
    other = hashed_script(VOCAB, seed=2)
    return TARGET(history) if hash(tuple(history[-2:])) % 3 else other(history)


def coupled_reference(prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
    """The target's own seeded sampling, one token at a time."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + sampling.max_tokens:
        noise = gumbel_noise(sampling.seed, len(tokens), torch.arange(VOCAB))
        tokens.append(int((TARGET(tokens).double() + noise).argmax()))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


def failed(relay: Relay) -> bool:
    """Whether the generation ended with an error."""
    try:
        verdicts(relay)
    except UnavailableError:
        return True
    return False


class Interleavings(RuleBasedStateMachine):
    """DESIGN 3.8, under every order in which messages may be made, delivered and lost."""

    tree: TreeConfig | None = None

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pipeline: Pipeline = self._do(self._build)
        self.expected: dict[Relay, list[int]] = {}
        self.live: list[Relay] = []

    def _build(self) -> Pipeline:
        return Pipeline(
            ScriptedRunner(TARGET, vocab_size=VOCAB, num_pages=40),
            ScriptedRunner(half_right, vocab_size=VOCAB, num_pages=24, context_length=32),
            eos_token_ids=[END],
            tree=self.tree,
        )

    def _do(self, action: Callable[[], object]) -> object:
        """Run an action inside the loop and let its tasks come to rest."""

        async def run() -> object:
            result = action()
            for _ in range(5):
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(run())

    def teardown(self) -> None:
        self.loop.close()

    # --- what may happen ----------------------------------------------------------------------

    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)
        | st.integers(5, 18).map(lambda length: SHARED[:length]),
        window=st.integers(1, 8),
        block=st.integers(1, 5),
        seed=st.integers(0, 3),
        kind=st.sampled_from(["greedy", "coupled", "rejection", "block", "reproducible"]),
        credit=st.sampled_from([8, 100]),
        ahead=st.sampled_from([0, 1, 3, 8]),
    )
    def open(  # noqa: PLR0917  (hypothesis passes them by name)
        self,
        prompt: list[int],
        window: int,
        block: int,
        seed: int,
        kind: str,
        credit: int,
        ahead: int,
    ) -> None:
        if len(self.live) >= 4 or not self.pipeline.verifier.is_connected:
            return
        rule_of = {"coupled": Acceptance.COUPLED, "block": Acceptance.BLOCK}
        sampling = SamplingParams(
            temperature=0.0 if kind == "greedy" else 1.0,
            acceptance=rule_of.get(kind, Acceptance.REJECTION),
            seed=seed,
            max_tokens=MAX_TOKENS,
        )
        relay = self._do(
            lambda: self.pipeline.open(
                prompt,
                sampling,
                window=window,
                num_speculative_tokens=block,
                draft_top_k=seed,
                reproducible=kind == "reproducible",
                commit_credit=credit,
                num_outcome_tokens=ahead,
            )
        )
        assert isinstance(relay, Relay)
        self.live.append(relay)
        if kind == "greedy":
            self.expected[relay] = reference(TARGET, prompt, MAX_TOKENS, ends=[END])
        elif kind == "coupled":
            self.expected[relay] = coupled_reference(prompt, sampling)

    @rule(choices=st.lists(st.integers(0, 5), min_size=1, max_size=20))
    def hop(self, choices: list[int]) -> None:
        for choice in choices:
            possible = self.pipeline.hops()
            if not possible:
                return
            self._do(possible[choice % len(possible)])
            self._check()

    @rule(milliseconds=st.sampled_from([1, 10, 30]))
    def wait(self, milliseconds: int) -> None:
        self.pipeline.now += milliseconds / 1e3

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 3))
    def read(self, index: int) -> None:
        relay = self.live[index % len(self.live)]
        self._do(lambda: relay.taken(len(outputs(relay))))

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 3))
    def cancel(self, index: int) -> None:
        relay = self.live.pop(index % len(self.live))
        self._do(relay.close)

    @rule()
    def lose_the_drafter(self) -> None:
        assert self.pipeline.drafter is not None
        if self.pipeline.drafter.is_connected:
            self._do(self.pipeline.drafter.lose)

    @rule()
    def restore_the_drafter(self) -> None:
        assert self.pipeline.drafter is not None
        if not self.pipeline.drafter.is_connected:
            self._do(self.pipeline.drafter.restore)

    @rule()
    def replace_the_verifier(self) -> None:
        verifier = self.pipeline.verifier

        def replace() -> None:
            verifier.lose()
            verifier.restore()

        self._do(replace)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def _every_draft_token_that_reached_the_verifier_has_one_fate(self) -> None:
        verifier = self.pipeline.verifier_engine
        fates = verifier.counters["draft_tokens"] + sum(verifier.metrics.discards.values())
        for session in verifier._sessions.values():
            fates += len(session.tail) + session.outcomes.num_tokens
            fates += sum(session.discards.by_reason.values())
        assert fates == verifier.metrics.num_received

    @invariant()
    def _check(self) -> None:
        pipeline = self.pipeline
        pipeline.target.pool.check_integrity()
        for session in pipeline.verifier_engine._sessions.values():
            if session.table is not None:
                assert session.table.length < len(session.tokens) + 1
        assert pipeline.drafter is not None
        pipeline.drafter.engine._drafter._runner.pool.check_integrity()
        for drafting in pipeline.drafter.engine._sessions.values():
            drafting.check_integrity()
        for relay in self.live:
            produced = outputs(relay)
            counts = relay.session.counts
            assert len(produced) <= MAX_TOKENS
            assert END not in produced[:-1]
            assert counts.accepted <= counts.judged <= counts.drafted
            assert relay._drafts._is_wanted, "a worker has refused what the other said"
            if relay in self.expected:
                assert produced == self.expected[relay][: len(produced)]

    @rule()
    def let_all_end(self) -> None:
        """Everyone reads and waits: each generation ends, right, and leaves nothing behind."""
        if self.pipeline.drafter is not None and not self.pipeline.drafter.is_connected:
            self._do(self.pipeline.drafter.restore)
        for _ in range(MAX_TOKENS):
            self._do(self.pipeline.run)
            for relay in self.live:
                self._do(lambda relay=relay: relay.taken(len(outputs(relay))))
        self._do(self.pipeline.run)
        for relay in self.live:
            produced = outputs(relay)
            if failed(relay):  # the verifier was replaced again and again without progress
                continue
            assert len(produced) == MAX_TOKENS or produced[-1] == END
            assert produced == self.expected.get(relay, produced)
            self._do(relay.close)
        self.live.clear()
        self._do(self.pipeline.run)
        assert self.pipeline.target.pool.used_pages == 0
        assert self.pipeline.verifier_engine.describe().live_sessions == 0
        assert self.pipeline.drafter.engine.describe().live_sessions == 0
        assert self.pipeline.drafter.engine.describe().kv_pages_used == 0


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True
)


class BranchingInterleavings(Interleavings):
    """The same with drafts that branch, at most 3 ways."""

    tree = TreeConfig(max_children=3, doubt=1.0)


TestBranchingInterleavings = BranchingInterleavings.TestCase
TestBranchingInterleavings.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
