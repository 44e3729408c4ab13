"""A small model to train: some layers of a target, over some of its ids; and its checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM, PreTrainedModel

from paceline.config import ModelConfig
from paceline.errors import ModelLoadError
from paceline.runtime.layer_cut import chosen_layers
from paceline.runtime.loader import LoadedModel, load_config, load_model
from paceline.runtime.model_source import resolve_source
from paceline.runtime.quantization import bitsandbytes_config, check_available
from paceline.runtime.quiet import quiet_transformers

_ROWS_AT_ONCE = 4096


def student_layers(target: ModelConfig, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    """The layers to begin with: those wanted, else the first three and the last, or all of fewer.

    Raises `ModelLoadError` if the target has not got them.
    """
    source = resolve_source(target.path, target.revision)
    with quiet_transformers():
        config = load_config(source)
    if wanted is not None:
        return chosen_layers(wanted, config, source.label)
    total = int(config.get_text_config(decoder=True).num_hidden_layers)
    return tuple(sorted({*range(min(3, total)), total - 1}))


def load_student(target: ModelConfig) -> LoadedModel:
    """The layers of a target that `target.layers` names, in float32, still over all of its ids.

    Raises `ModelLoadError`.
    """
    return load_model(target.model_copy(update={"dtype": "float32", "quantization": "none"}))


@torch.no_grad()
def nearest_ids(model: PreTrainedModel, token_ids: Tensor, vocab_size: int) -> Tensor:
    """For each of the first `vocab_size` ids the place in `token_ids` of the one whose embedding
    is nearest by cosine, itself where it is among them: int64 `[vocab_size]`, on the CPU.
    """
    weight: Tensor = model.get_input_embeddings().weight
    directions = normalize(weight[:vocab_size].float(), dim=1)
    known = directions[token_ids.to(weight.device)]
    parts = [(rows @ known.T).argmax(dim=1) for rows in directions.split(_ROWS_AT_ONCE)]
    nearest = torch.cat(parts).cpu()
    # Rows may be equal, those of ids that were never trained say.
    nearest[token_ids] = torch.arange(len(token_ids))
    return nearest


@torch.no_grad()
def keep_ids(model: PreTrainedModel, token_ids: Tensor, end_ids: Sequence[int]) -> None:
    """Cut a model's embeddings and head to `token_ids`, which become its ids 0, 1, …

    `end_ids` are those at which it ends, of the new ids. Raises `ModelLoadError` if the model has
    something of the width of its vocabulary that is neither.
    """
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
        raise ModelLoadError(f"{type(model).__name__}: its embeddings or head cannot be cut")
    tied = head.weight is embedding.weight
    index = token_ids.to(embedding.weight.device)
    embedding.weight = nn.Parameter(embedding.weight[index].clone())
    embedding.num_embeddings = len(token_ids)
    embedding.padding_idx = None
    head.weight = embedding.weight if tied else nn.Parameter(head.weight[index].clone())
    head.out_features = len(token_ids)
    if head.bias is not None:
        head.bias = nn.Parameter(head.bias[index].clone())
    ends = list(end_ids) or None
    text = model.config.get_text_config(decoder=True)
    text.vocab_size = len(token_ids)
    for settings in {id(each): each for each in (model.config, text)}.values():
        settings.bos_token_id = settings.pad_token_id = None
        settings.eos_token_id = ends
    generation = model.generation_config
    if generation is not None:
        generation.bos_token_id = generation.pad_token_id = None
        generation.eos_token_id = ends


@torch.no_grad()
def begin_as(
    model: PreTrainedModel, token_ids: Tensor, other: PreTrainedModel, known_ids: Tensor
) -> None:
    """Give a model over `token_ids` the weights of one like it over `known_ids`, quantized or not.

    Ids that the other does not know keep their embeddings, moved as those of all others have moved
    on average: of a head, what they have in common says how likely ids are that were learnt beside
    ids that were not. Raises `ModelLoadError` if it is no model of the same shape.
    """
    if getattr(other, "hf_quantizer", None) is not None:
        with quiet_transformers():
            other = other.dequantize()
    place = torch.searchsorted(known_ids, token_ids).clamp_max(len(known_ids) - 1)
    known = (known_ids[place] == token_ids).nonzero()[:, 0]
    weights = dict(other.named_parameters())
    by_id = {id(each) for each in _of_ids(model)}
    for name, weight in model.named_parameters():
        found = weights.get(name)
        of_ids = id(weight) in by_id
        if found is None or found.shape[of_ids:] != weight.shape[of_ids:]:
            raise ModelLoadError(f"{other.name_or_path}: no {name} of the student's shape")
        if of_ids:
            rows = known.to(weight.device)
            learnt = found[place[known].to(found.device)].to(weight)
            moved = weight + (learnt - weight[rows]).mean(0)
            weight.copy_(moved.index_copy(0, rows, learnt))
        else:
            weight.copy_(found)


def _of_ids(model: PreTrainedModel) -> list[nn.Parameter]:
    """The parameters that have a row for each id: of the embeddings and the head."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return [each for module in modules for each in module.parameters()]


def student_logits(
    model: PreTrainedModel, input_ids: Tensor, rows: Tensor, compute_dtype: str
) -> Tensor:
    """Logits `[num_rows, vocab]` at these `rows` of the flattened `[num_texts, length]` positions.

    The head sees no others, whatever the architecture does to logits afterwards. Texts are padded
    behind. Matrix products are in `compute_dtype`.
    """

    def choose(_head: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (arguments[0].flatten(0, -2).index_select(0, rows)[None],)

    head: Any = model.get_output_embeddings()
    handle = head.register_forward_pre_hook(choose)
    half = compute_dtype != "float32"
    try:
        with torch.autocast(model.device.type, getattr(torch, compute_dtype), enabled=half):
            logits: Tensor = model(input_ids=input_ids, use_cache=False).logits[0]
    finally:
        handle.remove()
    return logits


def linear_weights(model: PreTrainedModel) -> list[nn.Parameter]:
    """The weights that quantization rounds: of all linear layers but the head."""
    head = model.get_output_embeddings()
    layers: list[Any] = [
        module for module in model.modules() if isinstance(module, nn.Linear) and module is not head
    ]
    return [layer.weight for layer in layers]


def save_student(model: PreTrainedModel, directory: Path, *, quantization: str) -> None:
    """Write an ordinary checkpoint in bfloat16, linear layers quantized if asked for.

    Raises `ModelLoadError` where bitsandbytes is missing.
    """
    if quantization != "none":
        check_available(quantization)
    half = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.generation_config = model.generation_config
    with quiet_transformers():
        if quantization == "none":
            half.save_pretrained(directory)
            return
        with tempfile.TemporaryDirectory() as place:
            half.save_pretrained(place)
            AutoModelForCausalLM.from_pretrained(
                place,
                dtype=torch.bfloat16,
                quantization_config=bitsandbytes_config(quantization),
                device_map={"": model.device},
            ).save_pretrained(directory)


def fast_compute_dtype(device: torch.device) -> str:
    """bfloat16 where the hardware multiplies it faster than float32, else float32."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
