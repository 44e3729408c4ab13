"""Drafters of a reduced vocabulary, cut out of a model directory without any training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from drafter_service.model import ModelDrafter
from paceline.config import RuntimeConfig, TreeConfig
from paceline.runtime.draft_model import ReducedRunner
from paceline.runtime.draft_vocabulary import DraftVocabulary
from paceline.runtime.runner import Runner
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.columns import Columns
from paceline.types import WorkerInfo


def reduced_vocabulary(
    token_ids: Sequence[int], vocab_size: int, fingerprint: str = "f", name: str = "the target"
) -> DraftVocabulary:
    """These ids of so many; an id that is none of them is read as the next lower one, or the first
    of all."""
    lower = [sum(known <= token_id for known in token_ids) - 1 for token_id in range(vocab_size)]
    return DraftVocabulary(
        target_name=name,
        tokenizer_fingerprint=fingerprint,
        vocab_size=vocab_size,
        layers=(0,),
        token_ids=tuple(token_ids),
        input_ids=tuple(max(0, place) for place in lower),
    )


def save_reduced_model(
    path: Path, target: Path, token_ids: Sequence[int], *, quantization: Any = None
) -> Path:
    """A target's own layers under its embeddings and head of these ids, without a tokenizer."""
    tokenizer = Tokenizer.load(str(target))
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    kept = torch.tensor(list(token_ids))
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    rows, columns = embeddings.weight[kept].clone(), head.weight[kept].clone()
    model.resize_token_embeddings(len(kept), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(rows)
        model.get_output_embeddings().weight.copy_(columns)
    model.save_pretrained(path)
    if quantization is not None:
        model = AutoModelForCausalLM.from_pretrained(
            path, quantization_config=quantization, device_map={"": "cpu"}, dtype=torch.bfloat16
        )
        model.save_pretrained(path)
    reduced_vocabulary(
        token_ids, tokenizer.vocab_size, tokenizer.fingerprint, name=str(target)
    ).write(path)
    return path


def reduced_drafter(
    runner: Runner,
    vocabulary: DraftVocabulary,
    info: WorkerInfo,
    runtime: RuntimeConfig | None = None,
    tree: TreeConfig | None = None,
) -> ModelDrafter:
    """A drafter over a (scripted) model whose ids are those of the vocabulary's."""
    columns = Columns(vocabulary.to_target(), vocabulary.vocab_size)
    return ModelDrafter(
        ReducedRunner(runner, vocabulary),
        runtime or RuntimeConfig(),
        info,
        tree=tree,
        columns=columns,
    )
