"""Reads the sessions' texts for the drafters that copy: an index a session, and shared corpora."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafter_service.corpus import Corpus
from drafter_service.drafter import ProposeRequest
from drafter_service.ngram_index import NgramIndex
from drafter_service.ngram_table import Text
from paceline.config import NgramConfig
from paceline.runtime.engine_thread import SessionKey
from paceline.types import OpenSession

TOKENS_A_STEP = 1024
"""Tokens of a session that are indexed in one step (milliseconds), so that a long prompt does not
hold up the others."""


@dataclass(slots=True)
class _Reading:
    index: NgramIndex
    is_shared: bool
    num_final: int = 0
    """Tokens of the index that are known to be committed."""


class NgramReader:
    """Keeps an index of every session's text, and with `ngram.shared` the ended ones' texts."""

    def __init__(self, config: NgramConfig, corpus: Corpus | None = None) -> None:
        self.sizes = range(config.min_match, config.max_match + 1)
        self._corpus = corpus
        self._shared = Corpus(self.sizes, config.max_corpus_tokens) if config.shared else None
        self._ended: deque[Sequence[int]] = deque()  # texts to share, in pieces of one step
        self._readings: dict[SessionKey, _Reading] = {}

    def open(self, key: SessionKey, opening: OpenSession) -> None:
        """Begin to read a session's text."""
        index = NgramIndex(
            self.sizes,
            may_come=_what_may_come(opening),
            further=self._further(opening),
            undo_depth=opening.window + 1,
        )
        self._readings[key] = _Reading(index, is_shared=not opening.cache_salt)

    def _further(self, opening: OpenSession) -> list[Text]:
        # what others said before is a matter of timing, so it has no say in reproducible output;
        # and a salt keeps its sessions apart from all others
        shared = None if opening.reproducible or opening.cache_salt else self._shared
        return [corpus for corpus in (shared, self._corpus) if corpus is not None]

    def read(self, request: ProposeRequest) -> NgramIndex | None:
        """The index of a session, level with its tokens; None if that takes a further step."""
        reading = self._readings[request.key]
        index = reading.index
        index.truncate(len(request.token_ids))  # drafts of a step that failed were not taken
        start = len(index.tokens)
        for token_id in request.token_ids[start : start + TOKENS_A_STEP]:
            index.append(token_id)
        reading.num_final = min(request.num_committed, len(index.tokens))
        return index if len(index.tokens) == len(request.token_ids) else None

    def share(self) -> None:
        """Take a piece of an ended session's text into the shared corpus."""
        if self._shared is not None and self._ended:
            self._shared.add(self._ended.popleft())

    def rollback(self, key: SessionKey, length: int) -> None:
        """Forget a session's tokens from `length` on."""
        self._readings[key].index.truncate(length)

    def close(self, key: SessionKey, committed: Sequence[int] = ()) -> None:
        """Forget a session; its committed tokens, as far as it heard of them or these, are shared
        if sharing is on and it has no cache salt."""
        reading = self._readings.pop(key, None)
        if reading is not None and self._shared is not None and reading.is_shared:
            tokens = list(committed) or reading.index.tokens[: reading.num_final]
            starts = range(0, len(tokens), TOKENS_A_STEP)
            self._ended.extend(tokens[start : start + TOKENS_A_STEP] for start in starts)


def has_ended(request: ProposeRequest) -> bool:
    """Whether the last draft is an end id: if it is accepted, nothing comes after it."""
    opening = request.opening
    is_draft = len(request.token_ids) > max(request.num_committed, opening.prompt_length)
    return is_draft and request.token_ids[-1] in end_ids(opening)


def end_ids(opening: OpenSession) -> frozenset[int]:
    """Ids with which the session's output ends."""
    params = opening.sampling
    eos = () if params.ignore_eos else opening.eos_token_ids
    return frozenset((*eos, *params.stop_token_ids))


def _what_may_come(opening: OpenSession) -> Callable[[int, int], bool]:
    """Says of an id and a position whether the target could accept the id there at all."""
    params = opening.sampling
    banned = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    allowed = frozenset(params.allowed_token_ids)
    ends = end_ids(opening)
    first_end = opening.prompt_length + params.min_tokens

    def may_come(token_id: int, position: int) -> bool:
        return (
            0 <= token_id < opening.vocab_size
            and token_id not in banned
            and (not allowed or token_id in allowed)
            and (position >= first_end or token_id not in ends)
        )

    return may_come
