"""The orchestrator, and the defaults of a request."""

from __future__ import annotations

from pydantic import Field

from paceline.config.section import ListenAddress, PeerAddress, Section
from paceline.sampling.params import Acceptance, DraftProbsFormat


class SpeculationConfig(Section):
    """Defaults of a request's speculation."""

    num_speculative_tokens: int = Field(default=4, ge=1, le=32)
    window: int = Field(default=12, ge=1, le=256)
    adaptive: bool = True
    """Whether block length and window follow what is measured, down to no speculation; not for
    requests that set them, nor for seeded sampling, whose output would depend on timing."""
    max_sessions: int | None = Field(default=None, ge=0)
    """Live sessions of an orchestrator above which none drafts; unset leaves it to what adapts."""
    max_window: int = Field(default=40, ge=1, le=256)
    """Limit of an adaptive window."""
    num_outcome_tokens: int = Field(default=8, ge=0, le=32)
    """Draft tokens made ahead for the case that a draft on its way is rejected, while a target with
    a device of its own computes; for an adaptive window. 0 makes none."""
    draft_probs: DraftProbsFormat = DraftProbsFormat.SPARSE
    """How much of a draft distribution travels: `sparse`, `dense` or `none`."""
    draft_top_k: int = Field(default=64, ge=2, le=4096)
    """Ids that a sparse draft distribution keeps."""
    acceptance: Acceptance = Acceptance.REJECTION


class EmulatedDelayConfig(Section):
    """One-way delays in milliseconds, added to each direction of the links to the workers."""

    drafter: float = Field(default=0.0, ge=0, le=10_000)
    verifier: float = Field(default=0.0, ge=0, le=10_000)


class OrchestratorConfig(Section):
    """The orchestrator service."""

    listen: ListenAddress = "127.0.0.1:50050"
    drafters: tuple[PeerAddress, ...] | None = None
    """Addresses of drafters started by hand (with Ray they are found by name); unset takes
    `drafter.listen`, an empty list runs without."""
    verifiers: tuple[PeerAddress, ...] = ()
    """Addresses of verifiers started by hand; empty takes `verifier.listen`."""
    tokenizer: str | None = None
    """Where the tokenizer lies; unset takes the verifier's model."""
    speculation: SpeculationConfig = SpeculationConfig()
    require_drafter: bool = True
    """Whether start-up fails without a working drafter; otherwise sessions run without drafts."""
    commit_credit: int = Field(default=256, ge=8)
    """Tokens that the verifier may commit ahead of what the client has taken."""
    max_sessions: int = Field(default=1024, ge=1)
    max_answers: int = Field(default=16, ge=1, le=1024)
    """Limit of a request's `n`."""
    connect_timeout_s: float = Field(default=30.0, gt=0)
    """How long start-up waits for the workers."""
    failover_timeout_s: float = Field(default=3.0, ge=0)
    """How long a session that lost its verifier waits for another before UNAVAILABLE."""
    slow_client_timeout_s: float = Field(default=300.0, gt=0)
    """How long a client may leave a response untaken before its call is cancelled."""
    load_refresh_s: float = Field(default=1.0, ge=0.05, le=3600)
    """How often each worker is asked how busy it is, for the choice among several."""
    emulated_delay_ms: EmulatedDelayConfig = EmulatedDelayConfig()
    """A slower network than there is, for measurements."""
