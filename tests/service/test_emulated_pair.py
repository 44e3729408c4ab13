"""A synthetic pair on emulated devices, over real gRPC and without any model file."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.services import (
    collect,
    running,
    service_process,
    settings,
)

from paceline.client import Client
from paceline.config import SyntheticModelConfig
from paceline.runtime.worker_model import synthetic_law

PROMPT = list(range(20, 40))
NUM_TOKENS = 200


def model(**fields: Any) -> dict[str, Any]:
    return {"kind": "synthetic", "vocab_size": 128, "seed": 3, **fields}


def document(
    *,
    target: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
    delays: dict[str, float] | None = None,
) -> dict[str, Any]:
    return settings(
        verifier={"model": model(**(target or {}))},
        drafter={"kind": "model", "model": model(**(draft or {}))},
        orchestrator={"emulated_delay_ms": delays or {}},
    )


def reference(prompt: list[int], num_tokens: int) -> list[int]:
    """REF: the target alone, greedy, from its law."""
    law = synthetic_law(SyntheticModelConfig(**model()))
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_tokens:
        tokens.append(law.favourite(law.states(tokens)[-1]))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 0.9, 1.0])
async def test_greedy_output_is_the_targets_own_at_any_acceptance(acceptance: float) -> None:
    """A11 with a drafter that is right just so often."""
    wanted = reference(PROMPT, NUM_TOKENS)
    async with running(document(draft={"acceptance": acceptance})) as stack:
        for window, block in [(1, 1), (4, 4), (12, 4)]:
            result = await stack.generate(
                token_ids=PROMPT,
                max_tokens=NUM_TOKENS,
                temperature=0,
                window=window,
                num_speculative_tokens=block,
            )
            assert result.token_ids == wanted
            assert result.stats.drafted > 0
        if acceptance in (0.0, 1.0):
            # of a last pass only what fits is accepted
            assert result.stats.accepted == pytest.approx(acceptance * result.stats.judged, abs=1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_measured_acceptance_is_the_one_configured(temperature: float) -> None:
    """One draft a block: each judgement is an independent trial."""
    async with running(document(draft={"acceptance": 0.7})) as stack:
        results = await asyncio.gather(
            *(
                stack.generate(
                    token_ids=[seed, *PROMPT],
                    max_tokens=400,
                    temperature=temperature,
                    window=1,
                    num_speculative_tokens=1,
                )
                for seed in range(6)
            )
        )
    judged = sum(result.stats.judged for result in results)
    accepted = sum(result.stats.accepted for result in results)
    assert judged > 1000
    assert accepted / judged == pytest.approx(0.7, abs=4 * (0.21 / judged) ** 0.5)


async def test_the_acceptance_rate_changes_in_mid_stream() -> None:
    draft = {"acceptance": 1.0, "acceptance_changes": [[120, 0.0]]}
    async with running(document(draft=draft)) as stack:
        result = await stack.generate(
            token_ids=PROMPT, max_tokens=NUM_TOKENS, temperature=0, window=12
        )
    before, after = result.origins[:90], result.origins[105:]
    assert before.count("recovered") == 0
    assert after.count("accepted") == 0
    assert result.token_ids == reference(PROMPT, NUM_TOKENS)


async def test_passes_take_the_time_that_is_set() -> None:
    """Plain decoding: as long as its passes, and not the half of them longer."""
    async with running(document(target={"base_ms": 20.0})) as stack:
        await stack.generate(token_ids=PROMPT, max_tokens=2, speculation=False)
        started = time.perf_counter()
        result = await stack.generate(token_ids=PROMPT, max_tokens=20, speculation=False)
        elapsed = time.perf_counter() - started
    assert result.stats.verify_ms >= 20 * 20.0
    assert 0.4 <= elapsed < 0.6


async def test_a_network_delay_adds_to_every_hop() -> None:
    """The prompt's verdict needs both ways to the verifier; a block also those to the drafter."""
    delays = {"verifier": 15.0, "drafter": 25.0}
    async with running(document(draft={"acceptance": 1.0}, delays=delays)) as stack:
        fields: dict[str, Any] = {"token_ids": PROMPT, "max_tokens": 13, "temperature": 0}
        result = await stack.generate(**fields, window=6, num_speculative_tokens=6)
        assert result.stats.time_to_first_token_ms >= 30.0
        # the block for the first tokens comes along; the next one needs a whole round trip
        assert result.stats.total_ms >= 2 * 25 + 2 * 15 + 80.0
        assert result.token_ids == reference(PROMPT, 13)


async def test_text_works_without_any_model_file() -> None:
    """Prompt, conversation, stop string and log-probabilities, by the built-in tokenizer."""
    async with running(document(draft={"acceptance": 0.8})) as stack:
        plain = await stack.generate(prompt="Hello", max_tokens=60, temperature=0, logprobs=2)
        assert len(plain.text) == 60
        assert plain.usage.prompt_tokens == 5
        chat = await stack.generate(messages=[{"role": "user", "content": "hi"}], max_tokens=5)
        assert len(chat.token_ids) == 5
        stop = plain.text[30:33]
        stopped = await stack.generate(prompt="Hello", max_tokens=60, temperature=0, stop=[stop])
        assert stopped.finish_reason == "stop"
        assert stopped.text == plain.text[: plain.text.index(stop)]


async def test_the_three_services_run_as_processes(tmp_path: Path) -> None:
    """`python -m` each, with one configuration file and nothing else."""
    base = document(draft={"acceptance": 0.8})
    async with (
        service_process("verifier_service", base, tmp_path) as verifier,
        service_process("drafter_service", base, tmp_path) as drafter,
    ):
        addresses = {
            "verifiers": [await verifier.wait_listening()],
            "drafters": [await drafter.wait_listening()],
        }
        section = {**base["orchestrator"], "connect_timeout_s": 30.0, **addresses}
        async with (
            service_process("orchestrator", {**base, "orchestrator": section}, tmp_path) as service,
            Client(await service.wait_listening()) as client,
        ):
            result = await collect(
                client, token_ids=PROMPT, max_tokens=NUM_TOKENS, temperature=0, window=12
            )
    assert result.token_ids == reference(PROMPT, NUM_TOKENS)
    assert result.stats.accepted > 0


@pytest.mark.parametrize(
    "rule", [{"temperature": 0}, {"acceptance": "coupled", "seed": 7}], ids=str
)
async def test_rejections_find_what_was_drafted_ahead(rule: dict[str, Any]) -> None:
    """The same text as without."""
    draft = {"acceptance": 0.7, "second_guess": 0.8, "base_ms": 1.2}
    async with running(document(target={"base_ms": 10.0}, draft=draft)) as stack:
        fields: dict[str, Any] = {"token_ids": PROMPT, "max_tokens": 100, **rule}
        plain = await stack.generate(**fields, speculation=False)
        for window in ({"window": 12, "num_speculative_tokens": 3}, {}):
            ahead = await stack.generate(**fields, **window, num_outcome_tokens=6)
            assert ahead.token_ids == plain.token_ids
        counters = (await stack.info("drafter")).counters
    assert counters["outcomes_used"] > 5
