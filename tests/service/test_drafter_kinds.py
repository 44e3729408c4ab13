"""Every kind of drafter over gRPC: the same text, and statistics that tell them apart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.byte_tokenizer import build_byte_tokenizer
from support.reduced_models import save_reduced_model
from support.services import model_section, running, settings, until
from support.tiny_models import save_tiny_model

from paceline.client import GenerateResult
from paceline.runtime import device

Greedy = Callable[..., list[int]]

PROMPTS = ([*range(5, 18)] * 2, [*range(40, 52)], [7, 7, 7, 7, 3])
NUM_TOKENS = 40
WINDOWS = (1, 4, 12)
NUM_LAYERS = 5
SOME_IDS = [token_id for token_id in range(258) if token_id % 6]
"""Of the 258 of the target's tokenizer."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of five layers."""
    folder = tmp_path_factory.mktemp("five")
    tokenizer = build_byte_tokenizer(add_bos=True)
    return save_tiny_model(
        folder, tokenizer=tokenizer, eos_token_id=257, num_hidden_layers=NUM_LAYERS
    )


@pytest.fixture
def kinds(target: Path, tiny_dir: Callable[..., Path], tmp_path: Path) -> dict[str, Any]:
    """Drafter sections."""
    ids, text = tmp_path / "texts.jsonl", tmp_path / "text.txt"
    ids.write_text(json.dumps([*range(256), *PROMPTS[1]]))
    text.write_text("the text of the corpus")
    cut = model_section(target, layers=[0, 2, 4])
    short = {"min_match": 1, "max_match": 3}
    reduced = model_section(save_reduced_model(tmp_path / "reduced", target, SOME_IDS))
    return {
        "ngram": {"ngram": short},
        "ngram with a corpus of ids": {"ngram": {**short, "corpus": str(ids)}},
        "ngram with a corpus of text": {
            "ngram": {**short, "shared": True, "corpus": str(text), "tokenizer": str(target)}
        },
        "first layers": {"kind": "model", "model": model_section(target, layers=2)},
        "chosen layers": {"kind": "model", "model": cut},
        "trees": {"kind": "model", "model": cut, "tree": {"max_children": 3, "doubt": 1.0}},
        "cascade": {"kind": "cascade", "model": model_section(target), "ngram": short},
        "cascade over chosen layers": {
            "kind": "cascade",
            "model": cut,
            "ngram": {**short, "corpus": str(text)},
        },
        "cascade over a short context": {
            "kind": "cascade",
            "model": model_section(tiny_dir(context=32)),
            "ngram": short,
            "cascade": {"margin": 0},
        },
        "unsure model": {"kind": "model", "model": model_section(target), "min_confidence": 0.999},
        "reduced vocabulary": {"kind": "model", "model": reduced},
        "cascade over a reduced vocabulary": {
            "kind": "cascade",
            "model": reduced,
            "ngram": {**short, "corpus": str(text), "tokenizer": str(target)},
        },
    }


@pytest.mark.parametrize(
    "kind",
    [
        "ngram",
        "ngram with a corpus of ids",
        "ngram with a corpus of text",
        "first layers",
        "chosen layers",
        "trees",
        "cascade",
        "cascade over chosen layers",
        "cascade over a short context",
        "unsure model",
        "reduced vocabulary",
        "cascade over a reduced vocabulary",
    ],
)
async def test_every_kind_gives_the_targets_own_greedy_text(
    kind: str, kinds: dict[str, Any], target: Path, greedy: Greedy
) -> None:
    """A11, D04: sessions of windows 1, 4 and 12 side by side."""
    wanted = [greedy(target, prompt, NUM_TOKENS) for prompt in PROMPTS]
    async with running(settings(target, drafter=kinds[kind])) as stack:
        results = await asyncio.gather(
            *(
                stack.generate(
                    token_ids=prompt, max_tokens=NUM_TOKENS, temperature=0, window=window
                )
                for prompt in PROMPTS
                for window in WINDOWS
            )
        )
        for index, result in enumerate(results):
            assert result.token_ids == wanted[index // len(WINDOWS)]
        assert sum(result.stats.drafted for result in results) > 0
        counters = (await stack.info("drafter")).counters
        if kind.startswith("cascade"):
            assert counters["copied_tokens"] > 0
            made = counters["copied_tokens"] + counters["drawn_tokens"]
            assert made >= counters["draft_tokens"], "a rollback may come before the block is sent"
        if kind == "cascade":
            assert counters["drawn_tokens"] > 0
            assert sum(result.stats.accepted for result in results) > 100
        if kind == "unsure model":  # the target itself, yet a token a block
            assert 1.5 < max(result.stats.mean_acceptance_length for result in results) < 3
        if "reduced" in kind:
            assert sum(result.stats.accepted for result in results) > 40
        await until(stack.is_idle)


@pytest.fixture(params=[0.5, 1.0])
def share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """So much of one device is what every worker takes."""
    found = device.Device("the only one", request.param)
    monkeypatch.setattr(device, "device_of", lambda _name: found)
    return found.share


@pytest.mark.parametrize("kind", ["first layers", "cascade", "cascade over a reduced vocabulary"])
async def test_so_it_does_where_windows_adapt_and_one_device_is_shared(
    kind: str, share: float, kinds: dict[str, Any], target: Path, greedy: Greedy
) -> None:
    """With room for both at once, and in turns; one session after another, and all at once."""
    wanted = [greedy(target, prompt, NUM_TOKENS) for prompt in PROMPTS]
    adaptive = {"speculation": {"adaptive": True}}
    async with running(settings(target, drafter=kinds[kind], orchestrator=adaptive)) as stack:
        workers = [await stack.info(role) for role in ("verifier", "drafter")]
        assert [worker.device_id for worker in workers] == ["the only one"] * 2
        assert workers[0].competes_with(workers[1]) == (share == 1.0)

        async def generate(prompt: list[int]) -> GenerateResult:
            return await stack.generate(token_ids=prompt, max_tokens=NUM_TOKENS, temperature=0)

        results = [await generate(prompt) for prompt in PROMPTS]
        results += await asyncio.gather(*map(generate, PROMPTS))
        assert [result.token_ids for result in results] == wanted * 2
        assert sum(result.stats.drafted for result in results) > 0
        await until(stack.is_idle)


async def test_the_exit_layer_changes_the_statistics_and_never_the_answer(
    target: Path, greedy: Greedy
) -> None:
    """L02: the first 1 to 5 layers."""
    prompts = [[*range(start, start + 12)] for start in range(20, 200, 30)]
    wanted = [greedy(target, prompt, NUM_TOKENS) for prompt in prompts]
    judged: list[int] = []
    rates: list[float] = []
    for layers in range(1, NUM_LAYERS + 1):
        section = {"kind": "model", "model": model_section(target, layers=layers)}
        async with running(settings(target, drafter=section)) as stack:
            results = [
                await stack.generate(
                    token_ids=prompt, max_tokens=NUM_TOKENS, temperature=0, window=4
                )
                for prompt in prompts
            ]
            assert [result.token_ids for result in results] == wanted
            info = await stack.info("drafter")
            assert info.model.endswith(f", layers 0 to {layers - 1}")
        judged.append(sum(result.stats.judged for result in results))
        rates.append(sum(result.stats.accepted for result in results) / judged[-1])
    assert len(set(judged)) > 2
    assert rates[-1] > 0.95, "all of its layers: the target itself"
    assert max(rates[:-1]) < 0.9


async def test_layers_that_the_drafters_model_lacks_end_its_start(target: Path) -> None:
    """The setting and the number of layers are named."""
    section = {"kind": "model", "model": model_section(target, layers=[0, NUM_LAYERS])}
    with pytest.raises(Exception, match=r"model\.layers: layer 5 .* has only 5 layers, 0 to 4"):
        async with running(settings(target, drafter=section)):
            pass
