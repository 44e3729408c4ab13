"""One ragged pass: forward what each session was granted, and judge the rows of logits.

It reads the sessions and extends their page tables; nothing is committed here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.device_clock import device_ended_at, wait_for_device
from paceline.errors import PacelineError
from paceline.features import Features
from paceline.runtime.engine_thread import SessionKey
from paceline.runtime.feature_source import FeatureSource
from paceline.runtime.runner import Chunk, Runner
from paceline.sampling.acceptance import Judgement
from paceline.sampling.judge import judge_pass
from paceline.types import PassTimings, PromptLogprobs
from verifier_service.plan import PassPlan
from verifier_service.session import VerifierSession


@dataclass(frozen=True, slots=True)
class Entry:
    """One session's part of a pass; `num_granted` below the plan's inputs is a prefill chunk."""

    key: SessionKey
    session: VerifierSession
    plan: PassPlan
    num_granted: int

    @property
    def is_complete(self) -> bool:
        return self.num_granted == self.plan.num_inputs

    @property
    def num_trial_rows(self) -> int:
        """Rows of logits for the judge, the last ones."""
        return self.plan.num_rows if self.is_complete else 0

    @property
    def num_prompt_rows(self) -> int:
        """Rows before them, if the prompt's own log-probabilities are asked for."""
        if not self.session.wants_prompt_logprobs:
            return 0
        return min(self.num_granted, self.plan.num_uncached - 1)

    def chunk(self) -> Chunk:
        """What the runner is given."""
        assert self.session.table is not None
        num_logits = self.num_prompt_rows + self.num_trial_rows
        token_ids = self.session.inputs(self.num_granted)
        tree = self.session.tail.tree(self.plan.num_drafts) if self.is_complete else None
        return Chunk(self.session.table, token_ids, num_logits, tree)


class PassResult(NamedTuple):
    """What a pass found, of all its sessions."""

    judged: list[tuple[Entry, Judgement | PacelineError]]
    """Of the complete entries, in order."""
    prompt_logprobs: list[tuple[SessionKey, PromptLogprobs]]
    num_prompt_tokens: int
    """Tokens computed of what sessions were opened with."""
    seconds: float
    timings: PassTimings
    """Without any session's time in the queue."""
    features: dict[SessionKey, Features]
    """Of all tokens that the sessions that send them fed, drafts included."""


def run_pass(
    runner: Runner, entries: Sequence[Entry], *, with_probs: Set[SessionKey]
) -> PassResult:
    """Forward and judge. The sessions of `with_probs` learn the target's probabilities.

    Where it raises, the tables may have grown already: the caller rolls them back.
    """
    started = time.perf_counter()
    starts = [entry.session.num_cached for entry in entries]
    logits, features = _forward(runner, entries, starts)
    forwarded = time.perf_counter()
    logits, prompt_logprobs = _split_prompt_rows(logits, entries, starts)
    complete = [entry for entry in entries if entry.is_complete]
    trials = [
        entry.session.trial(entry.plan, wants_probs=entry.key in with_probs) for entry in complete
    ]
    judgements = judge_pass(logits, trials)
    wait_for_device()  # a pass of which nothing is judged takes its time too
    judged = time.perf_counter()
    forwarded = max(forwarded, device_ended_at())
    return PassResult(
        judged=list(zip(complete, judgements, strict=True)),
        prompt_logprobs=prompt_logprobs,
        num_prompt_tokens=sum(
            len(range(start, min(entry.session.num_cached, len(entry.session.opening.token_ids))))
            for entry, start in zip(entries, starts, strict=True)
        ),
        seconds=judged - started,
        timings=PassTimings(
            queue_us=0,
            forward_us=int((forwarded - started) * 1e6),
            judge_us=int((judged - forwarded) * 1e6),
            rows=sum(entry.num_granted for entry in entries),
            sessions=len(entries),
        ),
        features=features,
    )


def _forward(
    runner: Runner, entries: Sequence[Entry], starts: Sequence[int]
) -> tuple[Tensor, dict[SessionKey, Features]]:
    """The logits of a pass, and the features of its tokens for the sessions that send them."""
    chunks = [entry.chunk() for entry in entries]
    if not any(entry.session.sends_features for entry in entries):
        return runner.forward(chunks), {}
    assert isinstance(runner, FeatureSource), "checked when a session is opened"
    logits, hidden = runner.forward_with_features(chunks)
    return logits, {
        entry.key: Features.of(start, rows)
        for entry, start, rows in zip(entries, starts, hidden, strict=True)
        if entry.session.sends_features
    }


def _split_prompt_rows(
    logits: Tensor,  # [sum of prompt and trial rows, V], entry by entry
    entries: Sequence[Entry],
    starts: Sequence[int],
) -> tuple[Tensor, list[tuple[SessionKey, PromptLogprobs]]]:
    """Take the prompts' own rows, which come first in each entry's, out of a pass's logits.

    The row at position `start` tells of the token after it.
    """
    counts = [entry.num_prompt_rows for entry in entries]
    if not any(counts):
        return logits, []
    parts = logits.split([entry.num_prompt_rows + entry.num_trial_rows for entry in entries])
    read = [
        (entry.key, entry.session.prompt_logprobs(start + 1, part[:count]))
        for entry, start, part, count in zip(entries, starts, parts, counts, strict=True)
        if count
    ]
    rest = [part[count:] for part, count in zip(parts, counts, strict=True)]
    return torch.cat(rest), read
