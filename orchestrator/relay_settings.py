"""How one generation speculates, and the session that a worker opens for it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.session import Session
from paceline.sampling.params import SamplingParams
from paceline.types import OpenSession, SessionId, WorkerInfo


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """How one generation speculates."""

    speculation: bool
    window: int
    num_speculative_tokens: int
    draft_top_k: int
    commit_credit: int
    failover_timeout_s: float
    reproducible: bool
    adaptive: bool = False
    start_window: int = 1
    """Where an adaptive window begins; `window` is its limit."""
    num_outcome_tokens: int = 0
    """Drafts behind each other outcome that is drafted ahead; 0: none is."""
    grammar: str = ""
    cache_salt: str = ""
    cache_key: str = ""
    prefix_keys: tuple[bytes, ...] = ()
    """Of the prompt; with the cache key they tell the router where its KV may lie."""

    def opening(
        self,
        session: Session,
        sampling: SamplingParams,
        target: WorkerInfo,
        *,
        session_id: SessionId,
        epoch: int,
        committed_limit: int,
        speculation: bool,
    ) -> OpenSession:
        """What a worker is told at first: all that is committed, and how to go on from there."""
        return OpenSession(
            session_id=session_id,
            token_ids=tuple(session.tokens),
            prompt_length=session.prompt_length,
            sampling=sampling,
            window=self.window,
            num_speculative_tokens=self.num_speculative_tokens,
            draft_top_k=self.draft_top_k,
            committed_limit=committed_limit,
            speculation=speculation,
            epoch=epoch,
            eos_token_ids=target.eos_token_ids,
            vocab_size=target.vocab_size,
            reproducible=self.reproducible,
            grammar=self.grammar,
            cache_salt=self.cache_salt,
            num_outcome_tokens=self.num_outcome_tokens,
        )
