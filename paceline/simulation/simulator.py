"""The pipeline's policy in simulated time: the same decisions as the three services, no software.

Discrete events: a message arrives, a pass ends. What a session does then is in `draft_side.py` and
`verify_side.py`; a test holds them to the real engines, event by event.
"""

from __future__ import annotations

import itertools
import random

from paceline.outcomes import MAX_SESSIONS_AHEAD
from paceline.runtime.scheduler import share_budget
from paceline.simulation.clock import Clock
from paceline.simulation.draft_side import Advance, Block, DraftSide
from paceline.simulation.scenario import OtherGuess, Outcome, Scenario, SimulationResult
from paceline.simulation.verify_side import Plan, Verdict, VerifySide
from paceline.simulation.worker import SimulatedWorker

_ENDED = -1
"""In place of the epoch of a session that is over."""


def simulate(
    scenario: Scenario,
    *,
    acceptance: float | Outcome,
    right_other: OtherGuess = lambda _session, _position: None,
    seed: int = 0,
) -> SimulationResult:
    """Run all sessions to their last token.

    `acceptance` is the probability that a draft is right, drawn anew at every position from
    `seed`, or says for each position whether it is. `right_other` says which of the drafter's next
    likeliest tokens is, where it is not.
    """
    if callable(acceptance):
        return _Simulation(scenario, acceptance, right_other).run()
    draw = random.Random(seed).random
    is_right: Outcome = lambda _session, _position: draw() < acceptance  # noqa: E731
    return _Simulation(scenario, is_right, right_other).run()


class _Simulation:
    """The three services, with every session's state on each."""

    def __init__(self, scenario: Scenario, is_right: Outcome, right_other: OtherGuess) -> None:
        self._scenario = scenario
        self._clock = Clock()
        self._result = SimulationResult()
        self._epochs = [0] * scenario.num_sessions  # as the orchestrator knows them
        self._is_right = is_right
        self._right_other = right_other
        self._drafts: dict[int, DraftSide] = {}
        self._verifies: dict[int, VerifySide] = {}
        self._drafter = SimulatedWorker(self._clock, self._draft)
        self._verifier = SimulatedWorker(self._clock, self._verify)
        self._turn = itertools.count(1)
        self._wakes_at = 0.0  # when the verifier's patience will be looked at

    def run(self) -> SimulationResult:
        scenario, clock = self._scenario, self._clock
        for session in range(scenario.num_sessions):
            if scenario.speculation:
                clock.after(scenario.drafter_delay_s, self._drafter.post, self._open_draft, session)
            clock.after(scenario.verifier_delay_s, self._verifier.post, self._open_verify, session)
        clock.run()
        assert self._result.tokens == scenario.num_sessions * scenario.max_tokens
        return self._result

    # --- the drafter --------------------------------------------------------------------------

    def _open_draft(self, session: int) -> None:
        scenario = self._scenario
        self._drafts[session] = DraftSide(
            prompt_length=scenario.prompt_length,
            max_length=scenario.prompt_length + scenario.max_tokens,
            window=scenario.window,
            num_speculative_tokens=min(scenario.num_speculative_tokens, scenario.window),
            is_right=lambda position: self._is_right(session, position),
            is_deterministic=scenario.is_deterministic,
            right_other=lambda position: self._right_other(session, position),
            num_outcome_tokens=scenario.num_outcome_tokens,
        )

    def _close_draft(self, session: int) -> None:
        self._drafts.pop(session, None)

    def _hear_verdict(self, session: int, event: Advance) -> None:
        if session in self._drafts:
            self._drafts[session].advance(event)

    def _draft(self) -> None:
        """One step: a token for every session with room in its window."""
        asked: list[tuple[int, DraftSide]] = []
        blocks: list[tuple[int, Block]] = []
        for session, side in self._drafts.items():
            side.drafts_ahead = len(self._drafts) <= MAX_SESSIONS_AHEAD
            if not side.is_active:
                continue
            if side.wants_draft():
                asked.append((session, side))
            else:
                block = side.take_block()
                assert block is not None
                blocks.append((session, block))
        ahead = [
            (session, side, each)
            for session, side in self._drafts.items()
            for each in side.unfinished
        ]
        if not asked and (blocks or not ahead):
            self._send_blocks(blocks)
            if blocks:  # they go out first, then other outcomes are drafted on
                self._drafter.wake()
            return
        chunks = self._share_draft_pass([side for _, side in asked])
        num_tokens = sum(chunks) + len(ahead)  # the token that one begins with, or its last draft
        seconds = self._scenario.draft.seconds(num_tokens, sum(map(bool, chunks)) + len(ahead))
        self._result.draft_steps += 1
        self._result.drafter_busy_s += seconds
        for (session, side), granted in zip(asked, chunks, strict=True):
            if side.num_cached + granted < side.length:  # part of a prompt
                side.num_cached += granted
                continue
            side.draw()
            block = side.take_block()
            if block is not None:
                blocks.append((session, block))
        for session, side, each in ahead:
            block = side.draw_ahead(each)
            if block is not None:
                blocks.append((session, block))
        self._drafter.run(seconds, self._send_blocks, blocks)

    def _share_draft_pass(self, sides: list[DraftSide]) -> list[int]:
        uncached = [side.length - side.num_cached for side in sides]
        if sum(uncached) <= self._scenario.max_batch_tokens:
            return uncached
        decodes = [i for i, side in enumerate(sides) if uncached[i] <= side.window]
        prefills = [i for i, side in enumerate(sides) if uncached[i] > side.window]
        return _granted(uncached, decodes, prefills, self._scenario.max_batch_tokens)

    def _send_blocks(self, blocks: list[tuple[int, Block]]) -> None:
        for session, block in blocks:
            self._clock.after(self._scenario.drafter_delay_s, self._relay_block, session, block)

    # --- the orchestrator ---------------------------------------------------------------------

    def _relay_block(self, session: int, block: Block) -> None:
        if self._epochs[session] == _ENDED:
            return
        self._result.drafted += block.num_tokens
        if block.epoch >= self._epochs[session]:
            if not block.is_ahead:
                self._epochs[session] = block.epoch
            self._clock.after(
                self._scenario.verifier_delay_s,
                self._verifier.post,
                self._take_block,
                session,
                block,
            )

    def _relay_verdict(self, session: int, verdict: Verdict) -> None:
        result, scenario = self._result, self._scenario
        if verdict.base == scenario.prompt_length:
            result.first_token_s = self._clock.now
        result.seconds = self._clock.now
        result.tokens += verdict.end - verdict.base
        result.heard.append((session, self._clock.now, verdict.end - verdict.base))
        result.verdicts += 1
        result.judged += verdict.num_judged
        result.accepted += verdict.num_accepted
        delay, post = scenario.drafter_delay_s, self._drafter.post
        if verdict.is_last:
            self._epochs[session] = _ENDED
            self._clock.after(delay, post, self._close_draft, session)
            return
        self._epochs[session] = max(self._epochs[session], verdict.epoch)
        event = Advance(verdict.epoch, verdict.base, verdict.end, verdict.num_accepted)
        self._clock.after(delay, post, self._hear_verdict, session, event)

    # --- the verifier -------------------------------------------------------------------------

    def _open_verify(self, session: int) -> None:
        scenario = self._scenario
        self._verifies[session] = VerifySide(
            prompt_length=scenario.prompt_length,
            max_length=scenario.prompt_length + scenario.max_tokens,
            speculation=scenario.speculation,
            patience_s=scenario.draft_patience_s,
            max_drafts=scenario.max_drafts_per_pass,
            is_deterministic=scenario.is_deterministic,
        )

    def _take_block(self, session: int, block: Block) -> None:
        if session in self._verifies:
            self._verifies[session].add_block(block)

    def _verify(self) -> None:
        """One pass over all sessions that are ready; if none is, wake when one will be."""
        now = self._clock.now
        planned: list[tuple[int, VerifySide, Plan]] = []
        sides = self._verifies.items()
        for session, side in sorted(sides, key=lambda item: item[1].last_served):
            plan = side.plan(now)
            if plan is not None:
                planned.append((session, side, plan))
        if not planned:
            times = [side.ready_at(now) for side in self._verifies.values()]
            if times and not now < self._wakes_at <= min(times):
                self._wakes_at = min(times)
                self._clock.at(self._wakes_at, self._verifier.wake)
            return
        chunks = self._share_verify_pass([plan for _, _, plan in planned])
        for (_, side, _), granted in zip(planned, chunks, strict=True):
            if granted:
                side.last_served = next(self._turn)
        seconds = self._scenario.verify.seconds(sum(chunks), sum(map(bool, chunks)))
        self._result.passes += 1
        self._result.verifier_busy_s += seconds
        self._verifier.run(seconds, self._commit, list(zip(planned, chunks, strict=True)))

    def _share_verify_pass(self, plans: list[Plan]) -> list[int]:
        inputs = [plan.num_inputs for plan in plans]
        if sum(inputs) <= self._scenario.max_batch_tokens:
            return inputs
        decodes = [i for i, plan in enumerate(plans) if plan.num_uncached == 1]
        prefills = [i for i, plan in enumerate(plans) if plan.num_uncached > 1]
        granted = _granted(inputs, decodes, prefills, self._scenario.max_batch_tokens)
        return [
            given if given == plan.num_inputs else min(given, plan.num_uncached - 1)
            for given, plan in zip(granted, plans, strict=True)
        ]

    def _commit(self, passed: list[tuple[tuple[int, VerifySide, Plan], int]]) -> None:
        for (session, side, plan), granted in passed:
            if granted < plan.num_inputs:  # part of a prompt, or nothing
                side.num_cached += granted
                continue
            verdict = side.commit(plan)
            if verdict.is_last:
                del self._verifies[session]
            self._clock.after(
                self._scenario.verifier_delay_s, self._relay_verdict, session, verdict
            )


def _granted(wanted: list[int], decodes: list[int], prefills: list[int], budget: int) -> list[int]:
    """Tokens granted to each session of a pass under the token budget."""
    shares = share_budget([wanted[i] for i in decodes], [wanted[i] for i in prefills], budget)
    granted = [0] * len(wanted)
    for index, share in zip(decodes + prefills, shares[0] + shares[1], strict=True):
        granted[index] = share
    return granted
