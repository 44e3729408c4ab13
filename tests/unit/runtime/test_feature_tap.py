"""Hidden states of ragged passes: the plain model's own, for all architectures."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import ARCHITECTURES, tiny_loaded, tiny_model
from torch import Tensor

from paceline.config import RuntimeConfig
from paceline.runtime.feature_source import FeatureSource
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner
from paceline.runtime.scripted import ScriptedRunner, hashed_script

RUNTIME = RuntimeConfig(kv_tokens=256, page_size=4)
TEXTS = ([5, 6, 7, 8, 9, 10, 11], [20, 21], [30, 31, 32, 33], [40])


def plain_hidden(arch: str, token_ids: list[int]) -> Tensor:
    with torch.inference_mode():
        output = tiny_model(arch)(torch.tensor([token_ids]), output_hidden_states=True)
    hidden: Tensor = output.hidden_states[-1][0]
    return hidden


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_chunk_is_told_its_own_hidden_states(arch: str) -> None:
    """Prefill and decoding side by side, with few rows of logits and with none."""
    runner = build_runner(tiny_loaded(arch), RUNTIME)
    tables = [runner.pool.open_table(16) for _ in TEXTS]
    starts = [5, 0, 3, 0]
    runner.forward(
        [Chunk(tables[i], TEXTS[i][: starts[i]], num_logits=1) for i in range(4) if starts[i]]
    )
    chunks = [
        Chunk(table, text[start:], num_logits=rows)
        for table, text, start, rows in zip(tables, TEXTS, starts, (2, 0, 1, 1), strict=True)
    ]
    logits, hidden = runner.forward_with_features(chunks)
    assert logits.shape[0] == 4
    for text, start, found in zip(TEXTS, starts, hidden, strict=True):
        assert found.shape == (len(text) - start, runner.feature_size)
        assert torch.allclose(found, plain_hidden(arch, text)[start:], atol=1e-4)


def test_a_pass_that_is_not_asked_keeps_no_hidden_states() -> None:
    runner = build_runner(tiny_loaded(), RUNTIME)
    runner.forward([Chunk(runner.pool.open_table(16), [1, 2, 3], 1)])
    assert runner._tap._hidden is None
    runner.forward_with_features([Chunk(runner.pool.open_table(16), [1, 2, 3], 1)])
    assert runner._tap._hidden is None


def test_only_models_that_show_them_are_sources() -> None:
    assert isinstance(build_runner(tiny_loaded(), RUNTIME), FeatureSource)
    assert not isinstance(ScriptedRunner(hashed_script(4), vocab_size=4), FeatureSource)
