"""A scripted drafter that asks for the target's features, and remembers what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from drafter_service.drafter import Proposal, ProposeRequest
from drafter_service.ngram import NGRAM_INFO
from paceline.errors import InvalidArgumentError
from paceline.features import Features
from paceline.runtime.engine_thread import SessionKey
from paceline.sampling.draw import Draw
from paceline.tree_shape import TreeShape
from paceline.types import OpenSession, WorkerInfo


class FeatureWitness:
    """Drafts what `guess` says of a text, one token a step, and never before it knows the features
    of all but the last committed token."""

    context_length = 0

    def __init__(
        self,
        guess: Callable[[Sequence[int]], int],
        *,
        feature_size: int,
        others: Callable[[Sequence[int]], int] | None = None,
    ) -> None:
        self._others = others
        self.told: dict[SessionKey, list[Features]] = {}
        self.openings: list[OpenSession] = []
        self._guess = guess
        self._feature_size = feature_size

    def reserve(self, key: SessionKey, opening: OpenSession) -> None:
        self.openings.append(opening)
        if self._feature_size and not opening.features:
            raise InvalidArgumentError("features", "needed to draft")
        self.told[key] = []

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: ProposeRequest) -> Proposal:
        told = self.told[request.key]
        if self._feature_size and (not told or told[-1].end < request.num_committed - 1):
            return Proposal()  # the next advance brings them
        if self._others is not None and request.limit > 4:
            return self._fork(request.token_ids)
        return Proposal([Draw(self._guess(request.token_ids), None)] if request.limit else [])

    def _fork(self, tokens: Sequence[int]) -> Proposal:
        """A tree of two paths of two: one that begins otherwise, and the one that is guessed."""
        assert self._others is not None
        first, second = self._others(tokens), self._guess(tokens)
        if first == second:
            return Proposal([Draw(second, None)])
        heads = [Draw(first, None), Draw(second, None)]
        tails = [Draw(self._guess([*tokens, head.token_id]), None) for head in heads]
        return Proposal([*heads, *tails], tree=TreeShape((-1, -1, 0, 1)))

    def take_features(self, key: SessionKey, features: Features) -> None:
        self.told[key].append(features)

    def rollback(self, key: SessionKey, length: int) -> None:
        pass

    def release(self, key: SessionKey, committed: Sequence[int] = ()) -> None:
        pass

    def kv_length(self, key: SessionKey) -> int:
        return 0

    def describe(self) -> WorkerInfo:
        return replace(NGRAM_INFO, kind="witness", feature_size=self._feature_size)


def joined(told: Sequence[Features]) -> Tensor:
    """All that a session was told, `[positions, size]`; each position once, in order, from 0 on."""
    end = 0
    for features in told:
        assert features.base == end, "a gap or a repetition"
        end = features.end
    return torch.cat([features.values for features in told])
