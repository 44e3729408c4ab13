"""Drafter and verifier count epochs apart, from what each sees, and always agree in the end."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from verifier_harness import SessionBench, opening

from drafter_service.outcomes import Outcome
from drafter_service.session import DraftSession
from orchestrator.session import Session
from paceline.sampling.draw import Draw
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import Advance, DraftBlock, Verdict

TOKENS = st.integers(0, 2)  # few, so that guesses are often right by chance
OTHERS = {0: (1, 2), 1: (2, 0), 2: (0, 1)}


class BothSides:
    """A drafting and a verifying session, the relay's part, and four hops that take their time."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        kind = data.draw(st.sampled_from(["greedy", "sampled", "block", "reproducible"]))
        options: dict[str, Any] = {
            "sampling": SamplingParams(
                temperature=0 if kind == "greedy" else 1,
                acceptance=Acceptance.BLOCK if kind == "block" else Acceptance.REJECTION,
                max_tokens=data.draw(st.sampled_from([8, 200])),
            ),
            "window": data.draw(st.integers(1, 6)),
            "num_speculative_tokens": data.draw(st.integers(1, 4)),
            "reproducible": kind == "reproducible",
            "epoch": data.draw(st.integers(0, 2)),
            "num_outcome_tokens": data.draw(st.integers(0, 4)),
        }
        self.bench = SessionBench(prefilled=False, **options)
        self.verifier = self.bench.session
        self.is_adaptive = kind != "reproducible" and data.draw(st.booleans())
        context_length = data.draw(st.sampled_from([0, 9]))
        self.drafter = DraftSession((1, 1), opening(**options), context_length=context_length)
        tokens = list(self.verifier.tokens)
        self.relay = Session(prompt_length=3, tokens=tokens, epoch=self.verifier.epoch)
        self.blocks_to_relay: deque[DraftBlock] = deque()
        self.blocks_to_verifier: deque[DraftBlock] = deque()
        self.verdicts_to_relay: deque[Verdict] = deque()
        self.advances: deque[Advance] = deque()
        self.untold: tuple[int, ...] = ()
        self.num_branches = 0
        self.is_over = False

    # --- what may happen ----------------------------------------------------------------------

    def draft(self) -> None:
        request = self.drafter.request()
        if request is None:
            found_nothing = True
        else:
            drawn = self.data.draw(st.lists(TOKENS, max_size=request.limit))
            self.drafter.add([Draw(token_id, None, OTHERS[token_id]) for token_id in drawn], 0.0)
            found_nothing = not drawn
        if self.drafter.is_active:
            block = self.drafter.take_block(found_nothing=found_nothing, kv_length=0)
            if block is not None:
                self.blocks_to_relay.append(block)
                self.branch_at(block.base, block.base + len(block.token_ids))
        self.drafter.check_integrity()

    def branch_at(self, start: int, end: int) -> None:
        """Some positions of sent drafts get an outcome: for the others there is no room."""
        drafter = self.drafter
        for position in range(start, end):
            room = drafter.room_behind(position + 1)
            for token_id in drafter.outcomes.take_guesses(position) if room > 0 else ():
                self.num_branches += 1
                if self.data.draw(st.booleans()):
                    outcome = Outcome(
                        (1, -self.num_branches),
                        base=position + 1,
                        token_id=token_id,
                        epoch=drafter.epoch + 1,
                        num_tokens=room,
                    )
                    drafter.outcomes.add(outcome)

    @property
    def unfinished(self) -> list[Outcome]:
        return [outcome for outcome in self.drafter.outcomes if not outcome.is_full]

    def draft_ahead(self) -> None:
        drafter = self.drafter
        outcome = self.data.draw(st.sampled_from(self.unfinished))
        limit = outcome.request(drafter.opening, drafter.tokens, None).limit
        drawn = self.data.draw(st.lists(TOKENS, max_size=limit))
        outcome.add([Draw(token_id, None, OTHERS[token_id]) for token_id in drawn])
        if outcome.is_full:
            block = outcome.block(drafter.opening, window=drafter.window, kv_length=0)
            self.blocks_to_relay.append(block)

    def relay_block(self) -> None:
        block = self.blocks_to_relay.popleft()
        if self.relay.takes(block):
            self.blocks_to_verifier.append(block)

    def take_block(self) -> None:
        self.verifier.add_block(self.blocks_to_verifier.popleft())

    def judge(self) -> None:
        plan = self.bench.plan()
        accepted = self.data.draw(st.integers(0, plan.num_drafts))
        has_row = accepted < plan.num_drafts or plan.wants_next
        next_token = self.data.draw(TOKENS) if has_row else None
        verdict = self.bench.decide(plan, accepted=accepted, next_token=next_token)
        self.verdicts_to_relay.append(verdict)
        self.is_over = verdict.finish_reason is not None

    def relay_verdict(self) -> None:
        verdict = self.verdicts_to_relay.popleft()
        self.relay.commit(verdict)
        untold, self.untold = self.untold, ()
        advance = Advance(
            1, verdict.epoch, verdict.base - len(untold), (*untold, *verdict.token_ids)
        )
        if self.is_adaptive and self.verdicts_to_relay and self.data.draw(st.booleans()):
            self.untold = advance.token_ids  # told together with what comes next
            return
        if self.is_adaptive and self.data.draw(st.booleans()):
            window = self.data.draw(st.integers(0, self.verifier.opening.window))
            block_length = self.data.draw(st.integers(1, 5))
            advance = replace(advance, window=window, num_speculative_tokens=block_length)
        self.advances.append(advance)

    def advance(self) -> None:
        rest: Advance | None = self.advances.popleft()
        while rest is not None:
            step, rest = self.drafter.step_of(rest)
            outcome = self.drafter.advance(step).outcome
            if outcome is not None and outcome.is_full:
                self.branch_at(outcome.base, outcome.base + len(outcome.draws))
        self.drafter.check_integrity()

    def hops(self) -> list[Any]:
        return [
            hop
            for queue, hop in (
                (self.blocks_to_relay, self.relay_block),
                (self.blocks_to_verifier, self.take_block),
                (self.verdicts_to_relay, self.relay_verdict),
                (self.advances, self.advance),
            )
            if queue
        ]

    def settle(self) -> None:
        """Let everything arrive, in a drawn order."""
        while hops := self.hops():
            self.data.draw(st.sampled_from(hops))()

    def check_agreement(self) -> None:
        """At rest both hold the same committed tokens, the same live drafts and the same epoch."""
        drafter, verifier = self.drafter, self.verifier
        assert drafter.committed == len(verifier.tokens) == len(self.relay.tokens)
        assert drafter.tokens[: drafter.committed] == verifier.tokens == self.relay.tokens
        if self.is_over:  # what is left of the tail is freed with the session
            return
        assert drafter.epoch == verifier.epoch >= self.relay.epoch
        assert drafter.tokens[drafter.committed : drafter._sent] == verifier.tail.token_ids


@settings(max_examples=800, deadline=None, derandomize=True)
@given(data=st.data())
def test_both_sides_reach_the_same_epoch_and_the_same_drafts(data: st.DataObject) -> None:
    """E08: in whatever order blocks and verdicts are made, delayed and delivered."""
    both = BothSides(data)
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(1, 12))):
            possible = [both.draft, *both.hops()]
            if not both.is_over:
                possible.append(both.judge)
            if both.unfinished:
                possible.append(both.draft_ahead)
            data.draw(st.sampled_from(possible))()
        both.settle()
        both.check_agreement()
