"""Copies a run of tokens from where the text read the same before."""

from __future__ import annotations

from dataclasses import dataclass

from drafter_service.drafter import Proposal, ProposeRequest
from drafter_service.evidence import Evidence
from drafter_service.ngram_index import NgramIndex
from drafter_service.ngram_reader import end_ids, has_ended
from paceline.sampling.draw import Draw
from paceline.types import OpenSession


@dataclass(frozen=True, slots=True)
class Copying:
    """What one session's copying goes by: how well it has served, and where the output ends."""

    evidence: Evidence
    ends: frozenset[int]

    @classmethod
    def of(cls, opening: OpenSession) -> Copying:
        """For a session that opens."""
        return cls(Evidence(len(opening.token_ids), opening.window), end_ids(opening))

    def run(
        self, request: ProposeRequest, index: NgramIndex, *, margin: float | None = None
    ) -> Proposal:
        """Tokens that the index expects, which are added to it.

        With a `margin` only while they are worth more than a model's. The run ends with the block
        where it is right, by the evidence, with less than the request's `min_copy_confidence`.
        """
        draws: list[Draw] = []
        found: list[float] = []
        confidence = request.confidence
        is_over = has_ended(request)
        self.evidence.at_end(index, self._num_final(request))  # so that it never has much to read
        while not is_over and len(draws) < request.limit and (guess := index.guesses[-1]):
            estimates = self.evidence.at_end(index, self._num_final(request))
            if margin is not None and not estimates.prefer_copy(guess.size, margin):
                break
            found.append(estimates.copying(guess.size))
            confidence *= found[-1]
            index.append(guess.token_id)
            draws.append(Draw(guess.token_id, None))
            is_over = guess.token_id in self.ends or confidence < request.min_copy_confidence
        ends_block = bool(draws) and confidence < request.min_copy_confidence
        return Proposal(draws, confidences=found, ends_block=ends_block)

    @staticmethod
    def _num_final(request: ProposeRequest) -> int | None:
        """What is known to be final is a matter of timing."""
        return None if request.opening.reproducible else request.num_committed
