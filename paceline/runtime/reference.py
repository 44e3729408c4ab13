"""Generation by transformers alone, in a process of its own, for comparisons.

Runs as `python -m paceline.runtime.reference`, one JSON value a line on standard input and output:
first `{"target": model section, "draft": model section or null}`, answered with `{}` once both are
loaded; then requests `{"encode": {"prompt" | "messages"}}`, answered with `{"token_ids"}`, and
`{"system", "token_ids", "max_tokens"}`, answered with `{"token_ids", "seconds"}`.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

import torch
from transformers import PreTrainedModel

from paceline.config import ModelConfig
from paceline.errors import PacelineError
from paceline.runtime.loader import LoadedModel, load_model
from paceline.runtime.quiet import quiet_transformers
from paceline.runtime.tokenizer import Tokenizer

PLAIN, ASSISTED, PROMPT_LOOKUP = "generate", "assisted", "prompt_lookup"
PROMPT_LOOKUP_TOKENS = 10
"""As the documentation of transformers has it."""


class Reference:
    """`generate` of transformers as its documentation says: greedy, with its KV cache, and past the
    model's own end of text.
    """

    def __init__(self, target: LoadedModel, draft: LoadedModel | None) -> None:
        self._target = _endless(target.model)
        self._draft = None if draft is None else _endless(draft.model)

    def generate(
        self, system: str, token_ids: Sequence[int], max_tokens: int
    ) -> tuple[list[int], float]:
        """The ids that follow, and the seconds that it took."""
        arguments: dict[str, Any] = {}
        if system == ASSISTED:
            assert self._draft is not None, "the draft model is loaded for it"
            arguments["assistant_model"] = self._draft
        elif system == PROMPT_LOOKUP:
            arguments["prompt_lookup_num_tokens"] = PROMPT_LOOKUP_TOKENS
        ids = torch.tensor([list(token_ids)], device=self._target.device)
        with torch.inference_mode():
            started = time.perf_counter()
            output = self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                use_cache=True,
                **arguments,
            )
            answer: list[int] = output[0, len(token_ids) :].tolist()  # waits for the device
            return answer, time.perf_counter() - started


def _endless(model: PreTrainedModel) -> PreTrainedModel:
    """The model with a generation config that knows no end, and none of a checkpoint's tastes."""
    generation = copy.deepcopy(model.generation_config)
    assert generation is not None
    pad = generation.eos_token_id
    generation.eos_token_id = None
    generation.pad_token_id = pad[0] if isinstance(pad, list) else pad or 0
    for sampling in ("temperature", "top_p", "top_k"):
        setattr(generation, sampling, None)
    generation.repetition_penalty = None
    model.generation_config = generation
    return model


def serve(lines: IO[str], answers: IO[str]) -> None:
    """Answer requests until the end of input. Raises `ModelLoadError`."""
    opening = json.loads(lines.readline())
    target = ModelConfig(**opening["target"])
    draft = None if opening["draft"] is None else ModelConfig(**opening["draft"])
    tokenizer = Tokenizer.load(target.path, target.revision)
    with quiet_transformers():
        reference = Reference(load_model(target), None if draft is None else load_model(draft))
        _answer(answers, {})
        for line in lines:
            request = json.loads(line)
            if "encode" in request:
                _answer(answers, {"token_ids": _encode(tokenizer, request["encode"])})
                continue
            token_ids, seconds = reference.generate(**request)
            _answer(answers, {"token_ids": token_ids, "seconds": seconds})


def _encode(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> list[int]:
    if "prompt" in fields:
        return tokenizer.encode(fields["prompt"])
    return tokenizer.encode_chat(fields["messages"])


def _answer(answers: IO[str], value: Mapping[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    try:
        serve(sys.stdin, sys.stdout)
    except PacelineError as error:
        sys.stderr.write(f"paceline: error: {' '.join(str(error).split())}\n")
        raise SystemExit(2) from error
