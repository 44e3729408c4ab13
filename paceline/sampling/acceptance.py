"""The acceptance rules: how a block of draft tokens is judged, so that the target's law is kept.

Words:

- *accepted* tokens are the draft tokens that become part of the output, a prefix of the block;
- the *recovered* token is sampled from the residual at the first position that is not accepted;
- the *bonus* token is sampled from the target after all drafts of the block were accepted, if a
  row of target probabilities for it is there;
- the *residual* is what the target has and the draft lacks: max(0, target - draft), normalised.

A block has m draft tokens x_1 .. x_m. Row i of `target_probs` (from 0) is the target's law of the
token after i drafts, given those drafts; row m, if present, is the bonus row. Row i of the draft's
distributions is what x_{i+1} was sampled from; a deterministic draft is a point mass.

Everything here is pure and sees one block; uniform numbers in [0, 1] are arguments. An event of
probability a happens iff its number is below a: never for a = 0, always for a = 1 and a number
below 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.selection import inverse_cdf

if TYPE_CHECKING:
    from paceline.sampling.logprobs import Logprobs


class Judgement(NamedTuple):
    """What was decided for one block.

    `next_token` is the recovered token after a rejection, the bonus token if all drafts were
    accepted and a bonus row was given, else None. `logprobs` has one entry for each committed
    token (accepted drafts, then the next token) if they were asked for, and so has `target_probs`:
    what the target's law, the one that decided, gives it. Of a draft that branches, `path` are the
    accepted nodes.
    """

    accepted_length: int
    next_token: int | None
    logprobs: tuple[Logprobs, ...] = ()
    target_probs: tuple[float, ...] = ()
    path: tuple[int, ...] | None = None

    @property
    def rows(self) -> Sequence[int]:
        """The rows of the pass that decided: of each accepted draft, then of the next token."""
        if self.path is None:
            return range(self.accepted_length + 1)
        return (0, *(node + 1 for node in self.path))


def judge_exact(
    target_tokens: Sequence[int],  # [m] or [m + 1]
    draft_tokens: Sequence[int],  # [m]
) -> Judgement:
    """Greedy and `coupled`: accept while a draft equals the target's own token.

    The target's token at a position does not depend on the draft, so the output is the target's
    own (for `coupled`: Daliri, Musco, Suresh 2024, arXiv 2408.07978).
    """
    accepted = 0
    while accepted < len(draft_tokens) and target_tokens[accepted] == draft_tokens[accepted]:
        accepted += 1
    return Judgement(accepted, target_tokens[accepted] if accepted < len(target_tokens) else None)


def judge_rejection(
    target_probs: Tensor,  # [m, V] or [m + 1, V]
    draft_tokens: Sequence[int],  # [m]
    draft_probs: DraftProbs | None,  # None: point masses
    accept_uniforms: Sequence[float],  # [m]
    next_uniforms: Sequence[float],  # one a row of target_probs
) -> Judgement:
    """Speculative sampling (Leviathan et al. 2023, Chen et al. 2023).

    Accept draft x with probability min(1, target(x) / draft(x)), token by token; at the first
    rejection sample the residual. Raises `InvalidArgumentError` if a draft token has draft
    probability 0.
    """
    draft = _distributions(draft_tokens, draft_probs, target_probs)
    thresholds = rejection_thresholds(target_probs, draft_tokens, draft)
    accepted = 0
    while accepted < len(draft_tokens) and accept_uniforms[accepted] < thresholds[accepted]:
        accepted += 1
    weights = next_weights(target_probs, draft, accepted)
    return _judgement(accepted, weights, next_uniforms)


def judge_block(
    target_probs: Tensor,  # [m, V] or [m + 1, V]
    draft_tokens: Sequence[int],  # [m]
    draft_probs: DraftProbs | None,  # None: point masses
    accept_uniforms: Sequence[float],  # [m]
    next_uniforms: Sequence[float],  # one a row of target_probs
) -> Judgement:
    """Block verification (Sun et al. 2024, arXiv 2403.10444).

    Every draft has a threshold of its own (`block_thresholds`); the longest prefix whose last
    draft passes is accepted, failed ones before it notwithstanding. Accepts at least as many
    drafts in expectation as `judge_rejection`. Raises as it does.
    """
    draft = _distributions(draft_tokens, draft_probs, target_probs)
    thresholds, joint = block_thresholds(target_probs, draft_tokens, draft)
    accepted = len(draft_tokens)
    while accepted > 0 and accept_uniforms[accepted - 1] >= thresholds[accepted - 1]:
        accepted -= 1
    weights = next_weights(target_probs, draft, accepted, joint[accepted])
    return _judgement(accepted, weights, next_uniforms)


def rejection_thresholds(
    target_probs: Tensor, draft_tokens: Sequence[int], draft: DraftProbs
) -> list[float]:
    """min(1, target(x_i) / draft(x_i)) of each draft token."""
    return [min(1.0, ratio) for ratio in _ratios(target_probs, draft_tokens, draft)]


def block_thresholds(
    target_probs: Tensor, draft_tokens: Sequence[int], draft: DraftProbs
) -> tuple[list[float], list[float]]:
    """Thresholds h_1 .. h_m and joint acceptance probabilities p_0 .. p_m of a block.

    p_0 = 1 and p_i = min(1, p_{i-1} target(x_i) / draft(x_i)) is the probability that x_1 .. x_i
    are accepted. Whether position i+1 goes on is settled there with probability p_i - S_i given
    x_1 .. x_i, where S_i = sum over x of max(0, p_i target(x) - draft(x)); h_i makes up the rest:

        (p_i - S_i) + (1 - p_i + S_i) h_i = p_i,  so  h_i = S_i / (S_i + 1 - p_i),  and h_m = p_m.

    S_i is computed as p_i - sum of min(p_i target(x), draft(x)), where only the draft's own ids
    count.
    """
    ratios = _ratios(target_probs, draft_tokens, draft)
    target_at_ids = draft.at_ids(target_probs[: len(draft_tokens)]).double()
    draft_at_ids = draft.probs.double()
    thresholds: list[float] = []
    joint = [1.0]
    for i, ratio in enumerate(ratios):
        if i > 0:
            common = torch.minimum(joint[i] * target_at_ids[i], draft_at_ids[i]).sum()
            gain = max(0.0, joint[i] - float(common))
            rest = gain + 1.0 - joint[i]
            thresholds.append(gain / rest if rest > 0.0 else 1.0)
        joint.append(min(1.0, joint[i] * ratio))
    if ratios:
        thresholds.append(joint[-1])
    return thresholds, joint


def next_weights(
    target_probs: Tensor, draft: DraftProbs, accepted: int, joint: float = 1.0
) -> Tensor | None:
    """What the token after `accepted` drafts is sampled from, `[V]`; None without a row for it.

    The target's bonus row after full acceptance, else the residual of joint x target and draft
    (`joint` is p_accepted under block verification, 1 under rejection).
    """
    if accepted == len(target_probs):
        return None
    target = target_probs[accepted]
    if accepted == draft.num_tokens:
        return target
    return residual(joint * target, draft.dense_row(accepted, len(target)).to(target))


def residual(
    target: Tensor,  # [V]
    draft: Tensor,  # [V]
) -> Tensor:  # [V]
    """max(0, target - draft), normalised; the target itself where nothing is left of it.

    Nothing is left when both agree: then a rejection happens only by rounding.
    """
    positive = (target - draft).clamp_(min=0.0)
    weights = positive if float(positive.sum()) > 0.0 else target
    return weights / weights.sum()


def _judgement(accepted: int, weights: Tensor | None, next_uniforms: Sequence[float]) -> Judgement:
    if weights is None:
        return Judgement(accepted, None)
    number = torch.tensor([next_uniforms[accepted]], dtype=torch.float64, device=weights.device)
    return Judgement(accepted, int(inverse_cdf(weights.unsqueeze(0), number)))


def _distributions(
    draft_tokens: Sequence[int], draft_probs: DraftProbs | None, target_probs: Tensor
) -> DraftProbs:
    if draft_probs is None:
        return DraftProbs.point_masses(draft_tokens, target_probs.device)
    return draft_probs.to(target_probs.device)


def _ratios(target_probs: Tensor, draft_tokens: Sequence[int], draft: DraftProbs) -> list[float]:
    """target(x_i) / draft(x_i) of each draft token."""
    tokens = torch.tensor(list(draft_tokens), dtype=torch.int64, device=target_probs.device)
    target_of = target_probs[: len(tokens)].gather(1, tokens.unsqueeze(1)).squeeze(1).double()
    draft_of = draft.prob_of(tokens)
    if not bool((draft_of > 0.0).all()):
        raise InvalidArgumentError("draft_probs", "a draft token has draft probability 0")
    ratios: list[float] = (target_of / draft_of).tolist()
    return ratios
