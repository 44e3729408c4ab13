"""What is simulated, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from paceline.runtime.pass_cost import PassCost

Outcome: TypeAlias = Callable[[int, int], bool]
"""Whether a draft is right: (index of the session, position of the token in its sequence)."""
OtherGuess: TypeAlias = Callable[[int, int], int | None]
"""Where it is not, which of the drafter's next likeliest tokens is, from 0; None if none is."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One pair of devices, a network, and sessions that all begin at time 0.

    The delays are one-way, between the orchestrator and each worker: the round trip from a draft
    block to hearing of its verdict takes twice their sum. `is_deterministic` is the greedy or
    coupled rule; otherwise targets are sampled, without a seed. The other settings mean what they
    mean in `paceline.config`.
    """

    verify: PassCost
    draft: PassCost
    num_speculative_tokens: int = 4
    window: int = 12
    max_tokens: int = 1000
    prompt_length: int = 1
    num_sessions: int = 1
    verifier_delay_s: float = 0.0
    drafter_delay_s: float = 0.0
    is_deterministic: bool = True
    speculation: bool = True
    draft_patience_s: float = 0.2
    max_drafts_per_pass: int = 32
    max_batch_tokens: int = 512
    num_outcome_tokens: int = 0
    """Drafts behind each other outcome of a draft, made ahead."""


@dataclass(slots=True)
class SimulationResult:
    """Raw counts over all sessions, and their ratios."""

    seconds: float = 0.0
    """Until the orchestrator had heard of the last token."""
    first_token_s: float = 0.0
    """Until it had heard of the first token of every session."""
    tokens: int = 0
    passes: int = 0
    """Of the verifier's device, over all sessions together."""
    verdicts: int = 0
    draft_steps: int = 0
    drafted: int = 0
    """Draft tokens that reached the orchestrator."""
    judged: int = 0
    accepted: int = 0
    verifier_busy_s: float = 0.0
    drafter_busy_s: float = 0.0
    heard: list[tuple[int, float, int]] = field(default_factory=list)
    """Every verdict as the orchestrator heard of it: session, time in seconds, committed tokens."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def mean_acceptance_length(self) -> float:
        """Committed tokens per verification."""
        return self.tokens / self.verdicts

    @property
    def wasted(self) -> int:
        """Draft tokens that did not become output."""
        return self.drafted - self.accepted

    @property
    def verifier_busy_share(self) -> float:
        return self.verifier_busy_s / self.seconds
