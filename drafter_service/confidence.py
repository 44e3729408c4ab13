"""How sure a model is of its next token, before one is drawn.

A block may end where the drafter is unsure: what it drafts behind an unlikely token is mostly in
vain. The end must depend on the distribution and never on the token drawn from it: to throw a drawn
token away because it was unlikely makes unlikely tokens rarer than the target has them.
"""

from __future__ import annotations

from torch import Tensor


def confidences(
    logits: Tensor,  # [R, n]
) -> list[float]:
    """Each row's largest probability, by the model's own law: no request's parameters apply."""
    peak = logits.amax(1, keepdim=True)
    total = (logits - peak).float().exp().sum(1)
    found: list[float] = total.reciprocal().tolist()
    return found
