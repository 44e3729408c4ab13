"""What the orchestrator knows of one generation: committed tokens, epoch, KV lengths, counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.types import DraftBlock, Verdict


@dataclass(slots=True)
class SessionCounts:
    """Raw counts and times of one session; ratios are for whoever reads them."""

    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    passes: int = 0
    committed: int = 0
    bytes_drafter: int = 0
    bytes_verifier: int = 0
    draft_us: int = 0
    verify_us: int = 0
    queue_us: int = 0
    epochs: int = 0
    dropped: int = 0
    """Draft tokens that were not passed on to a verifier."""
    reopenings: int = 0
    cached_prompt_tokens: int = 0


@dataclass(slots=True)
class Session:
    """State of one generation. Only `commit` appends tokens."""

    prompt_length: int
    tokens: list[int]
    epoch: int = 0
    drafter_kv_length: int = 0
    verifier_kv_length: int = 0
    counts: SessionCounts = field(default_factory=SessionCounts)

    def commit(self, verdict: Verdict) -> None:
        """Take a verdict's tokens as final."""
        assert verdict.base == len(self.tokens), "a verdict skipped or repeated a position"
        self.tokens.extend(verdict.token_ids)
        self.verifier_kv_length = verdict.kv_length
        if verdict.epoch > self.epoch:
            self.epoch = verdict.epoch
            self.counts.epochs += 1
        counts = self.counts
        counts.passes += 1
        counts.judged += verdict.num_judged
        counts.accepted += verdict.accepted_length
        counts.committed += len(verdict.token_ids)
        counts.verify_us += verdict.timings.forward_us + verdict.timings.judge_us
        counts.queue_us += verdict.timings.queue_us
        counts.cached_prompt_tokens += verdict.cached_prompt_tokens

    def takes(self, block: DraftBlock) -> bool:
        """Count a block; whether it is still of use, or of an epoch that has passed."""
        self.counts.drafted += len(block.token_ids)
        self.counts.draft_us += block.draft_us
        if block.epoch < self.epoch:
            return False
        if block.outcome is None:  # else its epoch may never come
            self.epoch = block.epoch
            self.drafter_kv_length = block.kv_length
        return True

    def begin_epoch(self) -> int:
        """An epoch above any that a worker can have reached, or drafted ahead for.

        Both count epochs by what they see, of blocks too that were not seen here. But each begins
        with a committed token, and what is drafted ahead is for one epoch more.
        """
        self.epoch += len(self.tokens) - self.prompt_length + 2
        self.counts.epochs += 1
        self.drafter_kv_length = min(self.drafter_kv_length, len(self.tokens))
        return self.epoch
