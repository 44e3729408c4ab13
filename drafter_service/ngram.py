"""Prompt lookup: continue as the text did where it last read the same. No model, no KV.

Longest suffix match in prompt + output (Saxena 2023, prompt lookup decoding). A draft's
distribution is a point mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drafter_service.drafter import Proposal, ProposeRequest
from paceline.config import NgramConfig
from paceline.runtime.engine_thread import SessionKey
from paceline.sampling.draw import Draw
from paceline.types import OpenSession, WorkerInfo


@dataclass(slots=True)
class _Index:
    """For each n-gram of a sequence, where its latest occurrence ends."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    previous: list[list[tuple[tuple[int, ...], int | None]]] = field(default_factory=list)
    """What each indexed position replaced, so that a rollback can undo it."""

    @property
    def length(self) -> int:
        return len(self.previous)

    def extend(self, token_ids: Sequence[int], sizes: range) -> None:
        """Index every n-gram that ends before the last token of `token_ids`."""
        for end in range(self.length + 1, len(token_ids)):
            replaced = []
            for size in sizes:
                if size <= end:
                    gram = tuple(token_ids[end - size : end])
                    replaced.append((gram, self.ends.get(gram)))
                    self.ends[gram] = end
            self.previous.append(replaced)

    def truncate(self, length: int) -> None:
        """Forget every n-gram that ends after `length`."""
        while self.length > length:
            for gram, end in self.previous.pop():
                if end is None:
                    del self.ends[gram]
                else:
                    self.ends[gram] = end


class NgramDrafter:
    """Proposes the tokens that followed the latest earlier occurrence of the longest suffix."""

    context_length = 0

    def __init__(self, config: NgramConfig) -> None:
        self._sizes = range(config.min_match, config.max_match + 1)
        self._indexes: dict[SessionKey, _Index] = {}

    def reserve(self, key: SessionKey, opening: OpenSession) -> None:
        self._indexes[key] = _Index()

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: ProposeRequest) -> Proposal:
        token_ids = request.token_ids
        index = self._indexes[request.key]
        index.extend(token_ids, self._sizes)
        banned = _banned_ids(request.opening)
        for size in reversed(self._sizes):
            end = index.ends.get(tuple(token_ids[-size:])) if size < len(token_ids) else None
            if end is not None:
                copied = _until_banned(token_ids[end : end + request.limit], banned)
                return Proposal([Draw(token_id, None) for token_id in copied])
        return Proposal()

    def rollback(self, key: SessionKey, length: int) -> None:
        # the n-gram that ends at `length` is indexed once a token follows it
        self._indexes[key].truncate(max(length - 1, 0))

    def release(self, key: SessionKey, committed: Sequence[int] = ()) -> None:
        self._indexes.pop(key, None)

    def kv_length(self, key: SessionKey) -> int:
        return 0

    def describe(self) -> WorkerInfo:
        return WorkerInfo(
            kind="ngram",
            model="",
            dtype="",
            quantization="",
            device="cpu",
            vocab_size=0,
            tokenizer_fingerprint="",
            context_length=0,
        )


def _banned_ids(opening: OpenSession) -> frozenset[int]:
    """Single ids that the target can never accept."""
    return frozenset(ids[0] for ids in opening.sampling.bad_words_token_ids if len(ids) == 1)


def _until_banned(token_ids: Sequence[int], banned: frozenset[int]) -> list[int]:
    stop = next((i for i, token_id in enumerate(token_ids) if token_id in banned), None)
    return list(token_ids[:stop])
