"""Every field of the sampling parameters is validated and named."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from paceline.errors import InvalidArgumentError
from paceline.sampling.params import MAX_SEED, Acceptance, SamplingParams

WRONG: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", True),
    ("temperature", "1"),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_k", True),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("typical_p", 0.0),
    ("typical_p", 2.0),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", math.inf),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("logit_bias", ((1, math.nan),)),
    ("logit_bias", ((1, 101.0),)),
    ("logit_bias", ((-1, 1.0),)),
    ("logit_bias", ((1, 1.0), (1, 2.0))),
    ("logit_bias", [(1, 1.0)]),
    ("logit_bias", (1,)),
    ("allowed_token_ids", (-1,)),
    ("allowed_token_ids", (True,)),
    ("bad_words_token_ids", ((),)),
    ("bad_words_token_ids", ((2**31,),)),
    ("bad_words_token_ids", (3,)),
    ("min_tokens", -1),
    ("min_tokens", 129),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("stop_token_ids", (-2,)),
    ("ignore_eos", 1),
    ("seed", -1),
    ("seed", MAX_SEED + 1),
    ("seed", 1.0),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", False),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("acceptance", "rejection"),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=str)
def test_a_value_outside_its_limits_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_the_message_gives_the_limit_and_the_value() -> None:
    with pytest.raises(InvalidArgumentError, match=r"> 0 and <= 1, got 1\.5"):
        SamplingParams(top_p=1.5)
    with pytest.raises(InvalidArgumentError, match=r"from 1 to \d+, got 0"):
        SamplingParams(max_tokens=0)


def test_values_on_the_limits_are_taken() -> None:
    SamplingParams(
        temperature=0,
        top_k=0,
        top_p=1,
        min_p=1.0,
        typical_p=1.0,
        repetition_penalty=1e-9,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        logit_bias=((0, -100.0), (1, 100)),
        min_tokens=1,
        max_tokens=1,
        seed=MAX_SEED,
        logprobs=20,
    )


def test_allowed_ids_that_are_all_banned_contradict() -> None:
    with pytest.raises(InvalidArgumentError, match="allowed_token_ids"):
        SamplingParams(allowed_token_ids=(3, 4), bad_words_token_ids=((3,), (4,), (5,)))
    SamplingParams(allowed_token_ids=(3, 4), bad_words_token_ids=((3,), (4, 4)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", ((10, 1.0),)),
        ("allowed_token_ids", (3, 10)),
        ("bad_words_token_ids", ((1, 10),)),
        ("stop_token_ids", (10,)),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_name(field: str, value: Any) -> None:
    params = SamplingParams(**{field: value})
    params.check_vocabulary(11)
    with pytest.raises(InvalidArgumentError, match="below the vocabulary size 10, got 10") as error:
        params.check_vocabulary(10)
    assert error.value.field == field


def test_greedy_and_coupled_are_deterministic() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=0).is_deterministic
    assert SamplingParams(acceptance=Acceptance.COUPLED).is_deterministic
    assert not SamplingParams(acceptance=Acceptance.BLOCK).is_deterministic


def test_the_module_does_not_import_torch() -> None:
    code = "import sys, paceline.sampling.params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("stop_token_ids", tuple(range(257)), "257 entries; at most 256"),
        ("allowed_token_ids", (1,) * 65_537, "65537 entries; at most 65536"),
        ("logit_bias", tuple((i, 0.0) for i in range(4097)), "4097 entries; at most 4096"),
        ("bad_words_token_ids", ((1,),) * 1025, "1025 entries; at most 1024"),
        ("bad_words_token_ids", ((1,) * 16_385,), "16385 ids in all; at most 16384"),
    ],
)
def test_lists_have_limits(field: str, value: object, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{field}: {problem}$"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
