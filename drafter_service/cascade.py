"""Copies where the text repeats itself and asks a model where it does not, whichever serves better.

A copied token's distribution is a point mass, a drawn one's the model's own. Which of the two a
position gets depends on the tokens before it, and on how far the model may draw just now, but never
on a draw there, so each is a valid draft law given its prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drafter_service.copying import Copying
from drafter_service.drafter import Drafter, Proposal, ProposeRequest, WarmsUp
from drafter_service.ngram_index import NgramIndex
from drafter_service.ngram_reader import NgramReader, has_ended
from paceline.config import CascadeConfig
from paceline.runtime.engine_thread import SessionKey
from paceline.types import OpenSession, WorkerInfo


class CascadeDrafter:
    """An n-gram index and a model drafter, which reads what was copied when its turn comes."""

    context_length = 0
    """Copying goes on where the model's context has ended."""

    def __init__(self, reader: NgramReader, model: Drafter, config: CascadeConfig) -> None:
        self._reader = reader
        self._model = model
        self._margin = config.margin
        self._copying: dict[SessionKey, Copying] = {}
        self._counters = dict.fromkeys(("copied_tokens", "drawn_tokens"), 0)

    def warm_up(self) -> None:
        if isinstance(self._model, WarmsUp):
            self._model.warm_up()

    def reserve(self, key: SessionKey, opening: OpenSession) -> None:
        self._model.reserve(key, opening)
        self._reader.open(key, opening)
        self._copying[key] = Copying.of(opening)

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        self._reader.share()
        indexes = [self._reader.read(request) for request in requests]
        proposals = [self._copy(*pair) for pair in zip(requests, indexes, strict=True)]
        asked = [i for i, proposal in enumerate(proposals) if proposal is None]
        drawn = self._model.propose([requests[i] for i in asked]) if asked else []
        for i, proposal in zip(asked, drawn, strict=True):
            proposals[i] = self._take(requests[i], indexes[i], proposal)
        return [proposal for proposal in proposals if proposal is not None]

    def _copy(self, request: ProposeRequest, index: NgramIndex | None) -> Proposal | None:
        """Copied tokens, or that there are none; None leaves it to the model."""
        has_model = self._has_model(request)
        if request.limit == 0:
            return None if has_model else Proposal()
        if has_ended(request):
            return Proposal()
        if index is None:
            return Proposal(is_pending=True, is_copied=True)  # the model has no part in that time
        copied = self._copied(request, index, margin=self._margin if has_model else None)
        if not copied.draws and has_model and request.may_draw:
            return Proposal(ends_block=True) if request.is_unsure else None
        return copied

    def _has_model(self, request: ProposeRequest) -> bool:
        """Whether the model takes part: it is wanted, and its context has room."""
        limit = self._model.context_length
        return request.draw_window != 0 and (not limit or len(request.token_ids) < limit)

    def _copied(
        self, request: ProposeRequest, index: NgramIndex, *, margin: float | None
    ) -> Proposal:
        """Tokens that the index expects, with a margin only while that is better than drawing."""
        proposal = self._copying[request.key].run(request, index, margin=margin)
        self._counters["copied_tokens"] += len(proposal.draws)
        return replace(proposal, is_copied=True)

    def _take(
        self, request: ProposeRequest, index: NgramIndex | None, proposal: Proposal
    ) -> Proposal:
        """The model's proposal; while it has no room for the session, what can be copied.

        Room is a matter of timing, so a reproducible session goes without.
        """
        if proposal.is_waiting and index is not None and not request.opening.reproducible:
            copied = self._copied(request, index, margin=None)
            return copied if copied.draws else proposal
        evidence = self._copying[request.key].evidence
        for position, draw in enumerate(proposal.draws, start=len(request.token_ids)):
            evidence.drew(position, draw.token_id)
        self._counters["drawn_tokens"] += len(proposal.draws)
        return proposal

    def rollback(self, key: SessionKey, length: int) -> None:
        self._model.rollback(key, length)
        self._reader.rollback(key, length)
        self._copying[key].evidence.rollback(length)

    def release(self, key: SessionKey, committed: Sequence[int] = ()) -> None:
        self._model.release(key, committed)
        self._reader.close(key, committed)
        self._copying.pop(key, None)

    def kv_length(self, key: SessionKey) -> int:
        return self._model.kv_length(key)

    def describe(self) -> WorkerInfo:
        model = self._model.describe()
        counters = {**model.counters, **self._counters}
        return replace(model, kind="cascade", context_length=0, counters=counters)
