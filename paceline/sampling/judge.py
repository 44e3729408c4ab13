"""Judging one ragged pass: the target's logits of many sessions, each by its own rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.errors import PacelineError
from paceline.sampling.acceptance import Judgement, judge_block, judge_exact, judge_rejection
from paceline.sampling.coupled import coupled_tokens
from paceline.sampling.dead_ends import dead_ends, ends_dead, without_dead_ends
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.isolation import each_or_error
from paceline.sampling.logprobs import token_logprobs
from paceline.sampling.params import Acceptance
from paceline.sampling.probabilities import greedy_tokens, target_probs, target_weights
from paceline.sampling.randomness import Purpose, keyed_epoch, uniform
from paceline.sampling.tree_acceptance import TreeNumbers, judge_tree_exact, judge_tree_rejection
from paceline.sampling.trial import Trial

# Rows whose probabilities are made at once: on a CPU a chunk's arrays should fit the cache, on an
# accelerator few large kernels are better.
_ROWS_AT_ONCE_CPU = 16
_ROWS_AT_ONCE = 256
_ROWS_A_WAVE = 2


def judge_pass(
    logits: Tensor,  # [sum of num_rows, V], rows in the order of trials
    trials: Sequence[Trial],
) -> list[Judgement | PacelineError]:
    """Judge every trial by its own rule; see `acceptance.py` for the rules.

    A trial that fails has its error in its place, the others are judged: its masks leave no
    token, its draft distributions contradict its draft tokens, or its logits are not numbers. What
    is so only behind drafts that are not accepted is no failure (`dead_ends.py`).
    """
    for trial in trials:
        assert trial.num_rows - len(trial.draft_tokens) in (0, 1)
        assert trial.num_rows > 0
    starts = [0]
    for trial in trials:
        starts.append(starts[-1] + trial.num_rows)
    on_cpu = logits.device.type == "cpu"
    outcomes: dict[int, Judgement | PacelineError] = {}
    parts = [_Part(index, trial, starts[index]) for index, trial in enumerate(trials)]
    if on_cpu:  # rows past a rejection decide nothing: look at a few, go on where all passed
        parts = [part.first_rows() for part in parts]
    while parts:
        following = []
        for part, judged in zip(parts, _judge_parts(logits, parts), strict=True):
            outcome = judged
            if isinstance(judged, PacelineError):
                outcome = _as_far_as_it_goes(logits, part, judged)
            if part.rest is not None and part.is_passed(outcome):
                following.append(part.following(outcome).first_rows())
            else:
                outcomes[part.index] = part.joined(outcome)
        parts = following
    return [
        _with_logprobs(outcomes[i], trial, logits[starts[i] : starts[i + 1]])
        for i, trial in enumerate(trials)
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive rows of a trial as a trial of their own, and the `rest` after them.

    Positions are judged one by one by every rule but `block`, so that a trial may be judged part
    by part; `num_before` drafts of it were accepted already.
    """

    index: int
    trial: Trial
    start: int  # of its rows in the pass's logits
    num_before: int = 0
    rest: _Part | None = None
    probs_before: tuple[float, ...] = ()

    def first_rows(self) -> _Part:
        """The part's own first rows, with the others as its rest."""
        trial = self.trial
        count = _ROWS_A_WAVE
        by_position = trial.params.is_deterministic or (
            trial.params.acceptance is not Acceptance.BLOCK
        )
        # greedy rows cost too little to be worth a second look, and a tree has no first rows
        by_position = by_position and trial.tree is None
        if trial.params.is_greedy or not by_position or trial.num_rows <= count:
            return self
        head = replace(
            trial,
            draft_tokens=trial.draft_tokens[:count],
            draft_probs=_rows_of(trial.draft_probs, 0, count),
            num_rows=count,
            masks=trial.masks[:count],
        )
        tail = replace(
            trial,
            token_ids=[*trial.token_ids, *trial.draft_tokens[:count]],
            draft_tokens=trial.draft_tokens[count:],
            draft_probs=_rows_of(trial.draft_probs, count, len(trial.draft_tokens)),
            num_rows=trial.num_rows - count,
            masks=trial.masks[count:],
        )
        rest = _Part(self.index, tail, self.start + count, self.num_before + count)
        return replace(self, trial=head, rest=rest)

    def is_passed(self, outcome: Judgement | PacelineError) -> bool:
        """Whether all drafts of this part were accepted."""
        return isinstance(outcome, Judgement) and (
            outcome.accepted_length == len(self.trial.draft_tokens)
        )

    def following(self, outcome: Judgement | PacelineError) -> _Part:
        """The rest, once all drafts of this part were accepted."""
        assert self.rest is not None
        assert isinstance(outcome, Judgement)
        return replace(self.rest, probs_before=self.probs_before + outcome.target_probs)

    def joined(self, outcome: Judgement | PacelineError) -> Judgement | PacelineError:
        """The outcome of the whole trial, if this part decided it."""
        if isinstance(outcome, PacelineError):
            return outcome
        return outcome._replace(
            accepted_length=self.num_before + outcome.accepted_length,
            target_probs=self.probs_before + outcome.target_probs,
        )


def _rows_of(probs: DraftProbs | None, start: int, stop: int) -> DraftProbs | None:
    return None if probs is None or start == stop else probs.rows(start, stop)


def _judge_parts(logits: Tensor, parts: Sequence[_Part]) -> list[Judgement | PacelineError]:
    at_once = _ROWS_AT_ONCE_CPU if logits.device.type == "cpu" else _ROWS_AT_ONCE
    trials = [part.trial for part in parts]
    outcomes: dict[int, Judgement | PacelineError] = {}
    for judge, rows_at_once in (
        (_judge_greedy, len(logits)),
        (_judge_coupled, at_once),
        (_judge_sampled, at_once),
    ):
        alike = [i for i, trial in enumerate(trials) if _judge_of(trial) is judge]
        for chunk in _chunks(alike, trials, rows_at_once):
            spans = [(parts[i].start, parts[i].start + trials[i].num_rows) for i in chunk]
            chosen = [trials[i] for i in chunk]
            num_rows = [trial.num_rows for trial in chosen]
            judged = each_or_error(judge, _gather(logits, spans), chosen, num_rows)
            outcomes.update(zip(chunk, judged, strict=True))
    return [outcomes[i] for i in range(len(parts))]


def _as_far_as_it_goes(
    logits: Tensor, part: _Part, error: PacelineError
) -> Judgement | PacelineError:
    """A part that failed, judged anew without what leads nowhere; the error if that is needed."""
    rows = logits[part.start : part.start + part.trial.num_rows]
    dead = dead_ends(rows, part.trial)
    if dead and dead[0] == 0 and part.num_before:
        return Judgement(0, None)  # behind drafts that were accepted: the next pass begins there
    if not dead or dead[0] == 0:
        return error
    rows, trial = without_dead_ends(rows, part.trial, dead)
    (outcome,) = _judge_parts(rows, [_Part(part.index, trial, 0)])
    return error if isinstance(outcome, Judgement) and ends_dead(outcome, trial) else outcome


_Judge = Callable[[Tensor, Sequence[Trial]], list[Judgement]]


def _judge_of(trial: Trial) -> _Judge:
    if trial.params.is_greedy:
        return _judge_greedy
    if trial.params.acceptance is Acceptance.COUPLED:
        return _judge_coupled
    return _judge_sampled


def _judge_greedy(logits: Tensor, trials: Sequence[Trial]) -> list[Judgement]:
    contexts = [context for trial in trials for context in trial.contexts]
    return _judge_own_tokens(greedy_tokens(logits, contexts), trials)


def _judge_coupled(logits: Tensor, trials: Sequence[Trial]) -> list[Judgement]:
    contexts = [context for trial in trials for context in trial.contexts]
    weights = target_weights(logits, contexts)
    seeds = [context.params.seed for context in contexts]
    positions = [context.position for context in contexts]
    return _judge_own_tokens(coupled_tokens(weights, seeds, positions), trials)


def _judge_own_tokens(own_tokens: Tensor, trials: Sequence[Trial]) -> list[Judgement]:
    tokens: list[int] = own_tokens.tolist()
    judgements = []
    start = 0
    for trial in trials:
        own = tokens[start : start + trial.num_rows]
        if trial.tree is None:
            judgements.append(judge_exact(own, trial.draft_tokens))
        else:
            judgements.append(judge_tree_exact(trial.tree, own, trial.draft_tokens))
        start += trial.num_rows
    return judgements


def _judge_sampled(logits: Tensor, trials: Sequence[Trial]) -> list[Judgement]:
    contexts = [context for trial in trials for context in trial.contexts]
    probs = target_probs(logits, contexts)
    judgements = []
    start = 0
    for trial in trials:
        rows = probs[start : start + trial.num_rows]
        start += trial.num_rows
        seed, acceptance = trial.params.seed, trial.params.acceptance
        if trial.tree is not None:
            assert acceptance is not Acceptance.BLOCK, "it judges chains"
            numbers = TreeNumbers(seed, len(trial.token_ids))
            judgement = judge_tree_rejection(
                trial.tree, rows, trial.draft_tokens, trial.draft_probs, numbers
            )
            judgements.append(_with_target_probs(judgement, trial, rows))
            continue
        epoch = keyed_epoch(acceptance, trial.epoch)
        accept_uniforms = [
            uniform(seed, position, Purpose.ACCEPT, epoch)
            for position in trial.positions[: len(trial.draft_tokens)]
        ]
        next_uniforms = [uniform(seed, position, Purpose.NEXT) for position in trial.positions]
        rule = judge_block if acceptance is Acceptance.BLOCK else judge_rejection
        judgement = rule(
            rows, trial.draft_tokens, trial.draft_probs, accept_uniforms, next_uniforms
        )
        judgements.append(_with_target_probs(judgement, trial, rows))
    return judgements


def _with_target_probs(judgement: Judgement, trial: Trial, rows: Tensor) -> Judgement:
    committed = trial.committed(judgement)
    if not trial.wants_probs or not committed:
        return judgement
    chosen = torch.tensor(committed, device=rows.device).unsqueeze(1)
    deciding = _deciding_rows(rows, judgement, len(committed))
    probs: list[float] = deciding.gather(1, chosen).squeeze(1).tolist()
    return judgement._replace(target_probs=tuple(probs))


def _with_logprobs(
    outcome: Judgement | PacelineError, trial: Trial, rows: Tensor
) -> Judgement | PacelineError:
    if isinstance(outcome, PacelineError) or trial.params.logprobs is None:
        return outcome
    committed = trial.committed(outcome)
    top_k = trial.params.logprobs
    deciding = _deciding_rows(rows, outcome, len(committed))
    return outcome._replace(logprobs=token_logprobs(deciding, committed, top_k))


def _deciding_rows(rows: Tensor, judgement: Judgement, num_tokens: int) -> Tensor:
    """The rows that the first committed tokens come from."""
    if judgement.path is None:
        return rows[:num_tokens]
    return rows[list(judgement.rows[:num_tokens])]


def _chunks(indices: Sequence[int], trials: Sequence[Trial], rows_at_once: int) -> list[list[int]]:
    """Split trials into runs of at most `rows_at_once` rows, at least one trial each."""
    chunks: list[list[int]] = []
    room = 0
    for index in indices:
        if trials[index].num_rows > room:
            chunks.append([])
            room = rows_at_once
        chunks[-1].append(index)
        room -= trials[index].num_rows
    return chunks


def _gather(logits: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """The rows of some spans; a view where they are contiguous."""
    first, last = spans[0][0], spans[-1][1]
    if sum(stop - start for start, stop in spans) == last - first:
        return logits[first:last]
    return torch.cat([logits[start:stop] for start, stop in spans])
