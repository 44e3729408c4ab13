"""Prompt lookup: continue as the text did where it last read the same. No model, no KV.

Longest suffix match in prompt + output (Saxena 2023, prompt lookup decoding), on an index that
grows with the text. A draft's distribution is a point mass.
"""

from __future__ import annotations

from collections.abc import Sequence

from drafter_service.copying import Copying
from drafter_service.corpus import Corpus
from drafter_service.drafter import Proposal, ProposeRequest
from drafter_service.ngram_index import Match
from drafter_service.ngram_reader import NgramReader
from paceline.config import NgramConfig
from paceline.runtime.engine_thread import SessionKey
from paceline.types import OpenSession, WorkerInfo

NGRAM_INFO = WorkerInfo(
    kind="ngram",
    model="",
    dtype="",
    quantization="",
    device="cpu",
    vocab_size=0,
    tokenizer_fingerprint="",
    context_length=0,
)


class NgramDrafter:
    """Proposes what the index expects, token after token, for as long as it expects anything."""

    context_length = 0

    def __init__(
        self, config: NgramConfig, corpus: Corpus | None = None, info: WorkerInfo = NGRAM_INFO
    ) -> None:
        self._reader = NgramReader(config, corpus)
        self._info = info
        self._copying: dict[SessionKey, Copying] = {}

    def reserve(self, key: SessionKey, opening: OpenSession) -> None:
        self._reader.open(key, opening)
        self._copying[key] = Copying.of(opening)

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        self._reader.share()
        return [self._propose(request) for request in requests]

    def _propose(self, request: ProposeRequest) -> Proposal:
        index = self._reader.read(request)
        if index is None:
            return Proposal(is_pending=True)
        return self._copying[request.key].run(request, index)

    def candidates(self, request: ProposeRequest) -> Match | None:
        """All that may come next by the longest match, the likeliest first; None if none is.

        A draft that branches takes more than the first. None also while the text is being read.
        """
        index = self._reader.read(request)
        return None if index is None else index.match()

    def rollback(self, key: SessionKey, length: int) -> None:
        self._reader.rollback(key, length)
        self._copying[key].evidence.rollback(length)

    def release(self, key: SessionKey, committed: Sequence[int] = ()) -> None:
        self._reader.close(key, committed)
        self._copying.pop(key, None)

    def kv_length(self, key: SessionKey) -> int:
        return 0

    def describe(self) -> WorkerInfo:
        return self._info
