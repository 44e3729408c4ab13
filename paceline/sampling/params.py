"""Sampling parameters of one request: frozen, validated on construction, free of torch."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from paceline.errors import InvalidArgumentError

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 100.0
MAX_TOKEN_ID = 2**31 - 1
MAX_ENTRIES: Mapping[str, int] = MappingProxyType(
    {
        "logit_bias": 4096,
        "allowed_token_ids": 65_536,
        "bad_words_token_ids": 1024,
        "stop_token_ids": 256,
    }
)
"""Of each list. They are read in Python, and those of bans again in every pass."""
MAX_BANNED_IDS = 16_384
"""In all of `bad_words_token_ids`."""
MAX_COUNT = 2**31 - 1


class Acceptance(enum.Enum):
    """How a draft is judged; `acceptance.py` defines the rules."""

    REJECTION = "rejection"
    BLOCK = "block"
    COUPLED = "coupled"


class DraftProbsFormat(enum.Enum):
    """How much of a draft distribution travels to the verifier for a sampled request."""

    SPARSE = "sparse"
    DENSE = "dense"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What shapes the target distribution, with OpenAI's and vLLM's names.

    Raises `InvalidArgumentError` naming the field. Ids are checked against a vocabulary by
    `check_vocabulary`. `temperature` 0 is greedy; `top_k` 0 keeps every id; an empty
    `allowed_token_ids` allows every id; `logprobs` None asks for none and k >= 0 for the token's
    own and the k most likely alternatives; `prompt_logprobs` the same for the prompt's ids.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    max_tokens: int = 128
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    logprobs: int | None = None
    acceptance: Acceptance = Acceptance.REJECTION
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, 0.0)
        _check_int("top_k", self.top_k, 0, MAX_COUNT)
        _check_real("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_real("min_p", self.min_p, 0.0, 1.0)
        _check_real("typical_p", self.typical_p, 0.0, 1.0, above=True)
        _check_real("repetition_penalty", self.repetition_penalty, 0.0, above=True)
        _check_real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_ids()
        _check_int("min_tokens", self.min_tokens, 0, MAX_COUNT)
        _check_int("max_tokens", self.max_tokens, 1, MAX_COUNT)
        if self.min_tokens > self.max_tokens:
            raise InvalidArgumentError(
                "min_tokens",
                f"must not exceed max_tokens ({self.max_tokens}), got {self.min_tokens}",
            )
        if not isinstance(self.ignore_eos, bool):
            raise InvalidArgumentError("ignore_eos", f"must be a bool, got {self.ignore_eos!r}")
        _check_int("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if not isinstance(self.acceptance, Acceptance):
            raise InvalidArgumentError("acceptance", f"unknown rule {self.acceptance!r}")

    def _check_ids(self) -> None:
        for name in MAX_ENTRIES:
            _check_tuple(name, getattr(self, name))
            check_count(name, len(getattr(self, name)))
        for entry in self.logit_bias:
            if not isinstance(entry, tuple) or len(entry) != 2:
                raise InvalidArgumentError("logit_bias", f"needs (id, bias) pairs, got {entry!r}")
            _check_int("logit_bias", entry[0], 0, MAX_TOKEN_ID)
            _check_real("logit_bias", entry[1], -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        biased = [token_id for token_id, _ in self.logit_bias]
        if len(set(biased)) != len(biased):
            raise InvalidArgumentError("logit_bias", "must name each token id once")
        _check_id_tuple("allowed_token_ids", self.allowed_token_ids)
        _check_id_tuple("stop_token_ids", self.stop_token_ids)
        for word in self.bad_words_token_ids:
            _check_id_tuple("bad_words_token_ids", word)
            if not word:
                raise InvalidArgumentError("bad_words_token_ids", "must hold no empty sequence")
        check_banned_ids(sum(map(len, self.bad_words_token_ids)))
        banned = {word[0] for word in self.bad_words_token_ids if len(word) == 1}
        if self.allowed_token_ids and banned.issuperset(self.allowed_token_ids):
            raise InvalidArgumentError(
                "allowed_token_ids", "contradicts bad_words_token_ids, which ban every allowed id"
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidArgumentError` naming the field and the first id outside `vocab_size`."""
        named_ids = {
            "logit_bias": tuple(token_id for token_id, _ in self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids,
            "bad_words_token_ids": tuple(i for word in self.bad_words_token_ids for i in word),
            "stop_token_ids": self.stop_token_ids,
        }
        for name, token_ids in named_ids.items():
            for token_id in token_ids:
                if token_id >= vocab_size:
                    raise InvalidArgumentError(
                        name,
                        f"token ids must be below the vocabulary size {vocab_size}, got {token_id}",
                    )

    @property
    def is_greedy(self) -> bool:
        """Whether the target distribution is a point mass on the argmax."""
        return self.temperature == 0.0

    @property
    def reads_text(self) -> bool:
        """Whether a token's probability depends on all tokens before it, not on the last few."""
        is_repetition_free = self.repetition_penalty == 1.0
        return not is_repetition_free or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def is_deterministic(self) -> bool:
        """Whether the target's token at a position does not depend on the draft."""
        return self.is_greedy or self.acceptance is Acceptance.COUPLED


def check_count(field: str, count: int) -> None:
    """Raise `InvalidArgumentError` if a list has more entries than `MAX_ENTRIES` allows."""
    if count > MAX_ENTRIES[field]:
        raise InvalidArgumentError(field, f"{count} entries; at most {MAX_ENTRIES[field]}")


def check_banned_ids(count: int) -> None:
    """Raise `InvalidArgumentError` if the sequences of `bad_words_token_ids` have too many ids."""
    if count > MAX_BANNED_IDS:
        raise InvalidArgumentError(
            "bad_words_token_ids", f"{count} ids in all; at most {MAX_BANNED_IDS}"
        )


def _check_real(
    field: str, value: object, low: float, high: float = math.inf, *, above: bool = False
) -> None:
    """Require a finite number in [low, high], or in (low, high] with `above`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and low <= value <= high and not (above and value == low):  # type: ignore[arg-type,operator]
        return
    limit = f"> {low:g}" if above else f">= {low:g}"
    if high < math.inf:
        limit += f" and <= {high:g}"
    raise InvalidArgumentError(field, f"must be a finite number {limit}, got {value!r}")


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return
    raise InvalidArgumentError(field, f"must be an integer from {low} to {high}, got {value!r}")


def _check_tuple(field: str, value: object) -> None:
    if not isinstance(value, tuple):
        raise InvalidArgumentError(field, f"must be a tuple, got {type(value).__name__}")


def _check_id_tuple(field: str, value: object) -> None:
    _check_tuple(field, value)
    assert isinstance(value, tuple)
    for token_id in value:
        _check_int(field, token_id, 0, MAX_TOKEN_ID)
