"""The seam that every kind of drafter implements: propose tokens that continue a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from paceline.errors import PacelineError
from paceline.features import Features
from paceline.runtime.engine_thread import SessionKey
from paceline.sampling.draw import Draw
from paceline.sampling.probabilities import RowContext
from paceline.tree_shape import TreeShape
from paceline.types import OpenSession, WorkerInfo


@dataclass(frozen=True, slots=True)
class ProposeRequest:
    """Asks for up to `limit` tokens after `token_ids` (prompt, committed, earlier drafts).

    A limit of 0 asks to get ready only: to prefill the prompt. The first `num_committed` tokens
    are final. Of a drafter that copies, too, the model is not asked beyond `draw_window` tokens
    behind them. `confidence` is the probability, as far as the drafter can tell, that all before is
    right; nothing is drawn where it is below `min_confidence`, nor copied where it is below
    `min_copy_confidence`, and the block ends.
    """

    key: SessionKey
    opening: OpenSession
    token_ids: Sequence[int]
    epoch: int
    limit: int
    num_committed: int = 0
    draw_window: int | None = None
    confidence: float = 1.0
    min_confidence: float = 0.0
    min_copy_confidence: float = 0.0
    num_others: int = 0
    """How many of its `others` each draw shall tell."""
    final_ids: Sequence[int] | None = None
    """The final tokens as a sequence of their own, the same for all requests of a session: what a
    draw reads of them is read once."""

    @property
    def has_limits(self) -> bool:
        """Whether it matters how sure the drafter is."""
        return self.min_confidence > 0.0 or self.min_copy_confidence > 0.0

    @property
    def is_unsure(self) -> bool:
        """Whether a model's draft is not worth its time behind those that there are."""
        return self.confidence < self.min_confidence

    def context(self, draft_tokens: tuple[int, ...] = (), mask: Tensor | None = None) -> RowContext:
        """Where a token is drawn: behind further drafts, among the ids of a mask."""
        opening = self.opening
        token_ids = self.token_ids
        if self.final_ids is not None:
            behind = self.token_ids[len(self.final_ids) :]
            token_ids, draft_tokens = self.final_ids, (*behind, *draft_tokens)
        return RowContext(
            params=opening.sampling,
            token_ids=token_ids,
            prompt_length=opening.prompt_length,
            eos_token_ids=opening.eos_token_ids,
            draft_tokens=draft_tokens,
            mask=mask,
        )

    @property
    def may_draw(self) -> bool:
        """Whether the next token may be a model's."""
        if self.draw_window is None:
            return True
        return len(self.token_ids) < self.num_committed + self.draw_window


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draws that continue the sequence, each from the distribution it names.

    `is_pending`: no draw yet, but the drafter works on it (a prompt in prefill); otherwise an
    empty proposal means that there is nothing to guess from here. `is_waiting`: no draw before
    other sessions leave room. `error`: the session cannot be
    drafted for. `num_read`: tokens of the sequence that a model read for it in the first of its
    `num_steps`. `ends_block`: nothing
    behind the last draw is worth drafting until that is final, which follows from the tokens before
    that draw and never from the draw itself. With a `tree` the draws are its nodes, which branch.
    `is_copied` where a drafter that draws from a model as well has copied them. `confidences`: how
    likely each draw was to be right before it was drawn, or none where that was not asked.
    """

    draws: Sequence[Draw] = ()
    is_pending: bool = False
    is_waiting: bool = False
    error: PacelineError | None = None
    num_read: int = 0
    num_steps: int = 1
    ends_block: bool = False
    tree: TreeShape | None = None
    is_copied: bool = False
    confidences: Sequence[float] = ()


@runtime_checkable
class TakesFeatures(Protocol):
    """A drafter that drafts from the target's features: it describes itself by `feature_size`."""

    def take_features(self, key: SessionKey, features: Features) -> None:
        """Those of further committed positions of a session that was opened with `features`.

        Each position comes once and in order: the prompt's, then what verdicts committed but for
        the last token, which the target has not read yet. They begin later than at 0, or have a
        gap, where the session had no drafter, or another one, meanwhile.
        """
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """A drafter whose first steps would take longer than later ones."""

    def warm_up(self) -> None:
        """Do once, before any session, what is done only once."""
        ...


@runtime_checkable
class DrawsRuns(Protocol):
    """A drafter that may draw several tokens for a proposal, one after the other."""

    def draw_while(self, is_undisturbed: Callable[[], bool]) -> None:
        """Go on within a proposal for as long as that holds, which is asked before each token."""
        ...


@runtime_checkable
class Forks(Protocol):
    """A drafter that can continue a sequence in several ways at once."""

    wants_room: bool
    """Whether sessions wait for room that branches take."""

    def fork(
        self, key: SessionKey, branches: Sequence[tuple[SessionKey, int]], num_tokens: int
    ) -> int:
        """Take in branches of a session: each a key, the first so many tokens of the session, and
        `num_tokens` at most behind them.

        What was computed of them serves all. Returns how many of the first were taken in: fewer
        where there is no room, none of a session that cannot be drafted for so. Nothing of the
        session is rolled back to before a branch while that lives.
        """
        ...

    def graft(self, key: SessionKey, branch: SessionKey) -> None:
        """A branch has come true: the session goes on with what was computed for it."""
        ...

    def prune(self, branch: SessionKey) -> None:
        """Free what a branch has. Unknown keys are fine."""
        ...


class Drafter(Protocol):
    """One way to guess tokens, for many sessions at once. Used by the engine thread only."""

    context_length: int
    """Longest sequence it can continue; 0 is unlimited."""

    def reserve(self, key: SessionKey, opening: OpenSession) -> None:
        """Take a session in. Raises `PacelineError` if it can never be served."""
        ...

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        """Guess, for all sessions together; one proposal a request, in order."""
        ...

    def rollback(self, key: SessionKey, length: int) -> None:
        """Forget what was computed for tokens from `length` on."""
        ...

    def release(self, key: SessionKey, committed: Sequence[int] = ()) -> None:
        """Free everything of a session. Unknown keys are fine.

        What was computed for its `committed` tokens may be kept for sessions that begin alike.
        """
        ...

    def kv_length(self, key: SessionKey) -> int:
        """Tokens of the session in the drafter's KV cache."""
        ...

    def describe(self) -> WorkerInfo:
        """Model, vocabulary and KV use."""
        ...
