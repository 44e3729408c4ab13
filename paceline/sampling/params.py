"""Sampling parameters of one request: frozen, validated on construction, free of torch."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from paceline.errors import InvalidArgumentError

MAX_SEED = 2**64 - 1


class Acceptance(enum.Enum):
    """How a draft is judged; see DESIGN notes in `docs/structure.md` and `acceptance.py`."""

    REJECTION = "rejection"
    BLOCK = "block"
    COUPLED = "coupled"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What shapes the target distribution, with OpenAI's and vLLM's names.

    Raises `InvalidArgumentError` naming the field. Ids are checked against a vocabulary by
    `check_vocabulary`. `temperature` 0 is greedy; `top_k` 0 keeps every id; `logprobs` None asks
    for none and k >= 0 for the token's own and the k most likely alternatives.
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

    @property
    def is_greedy(self) -> bool:
        """Whether the target distribution is a point mass on the argmax."""
        return self.temperature == 0.0

    @property
    def is_deterministic(self) -> bool:
        """Whether the target's token at a position does not depend on the draft."""
        return self.is_greedy or self.acceptance is Acceptance.COUPLED
