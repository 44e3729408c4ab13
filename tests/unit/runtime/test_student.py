"""A student: some layers of a target over some of its ids, and the weights it is stored with."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import ARCHITECTURES, save_tiny_model, tiny_model

from paceline.config import ModelConfig
from paceline.errors import ModelLoadError
from paceline.runtime.loader import load_model
from paceline.runtime.student import (
    begin_as,
    keep_ids,
    linear_weights,
    load_student,
    nearest_ids,
    save_student,
    student_layers,
    student_logits,
)
from paceline.runtime.weight_rounding import NF4_BLOCK, rounded, rounded_weights

KEPT = torch.tensor([2, 3, 10, 11, 40, 41, 100, 319])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_model_of_fewer_ids_says_of_them_what_the_whole_one_said(
    tmp_path: Path, arch: str
) -> None:
    whole = tiny_model(arch, seed=3)
    small = tiny_model(arch, seed=3)
    keep_ids(small, KEPT, end_ids=(0,))
    draft_ids = torch.tensor([[1, 3, 0, 7, 2, 2]])
    rows = torch.tensor([1, 4, 5])
    with torch.no_grad():
        expected = whole(input_ids=KEPT[draft_ids], use_cache=False).logits[0, rows][:, KEPT]
        found = student_logits(small, draft_ids, rows, "float32")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    save_student(small, tmp_path, quantization="none")
    loaded = load_model(ModelConfig(path=str(tmp_path), dtype="float32", device="cpu"))
    assert loaded.vocab_width == len(KEPT)
    assert loaded.eos_token_ids == (0,)
    with torch.no_grad():
        stored = student_logits(loaded.model, draft_ids, rows, "float32")
    assert float((stored - found).norm() / found.norm()) < 0.02  # bfloat16


def test_ids_that_are_not_kept_are_read_as_their_nearest_neighbour() -> None:
    model = tiny_model()
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight[7] = 3 * weight[41]  # the same direction
        weight[8] = weight[100] + 0.01
        weight[11] = weight[10]  # kept both, though equal
    kept = KEPT[:-1]
    nearest = nearest_ids(model, kept, vocab_size=310)  # the rest of the rows is padding
    assert len(nearest) == 310
    assert nearest[kept].tolist() == list(range(7))
    assert kept[nearest[7]] == 41
    assert kept[nearest[8]] == 100


def test_layers_are_the_first_three_and_the_last_unless_named(tmp_path: Path) -> None:
    deep = save_tiny_model(tmp_path / "deep", num_hidden_layers=6)
    shallow = save_tiny_model(tmp_path / "shallow", num_hidden_layers=2)
    assert student_layers(ModelConfig(path=str(deep)), None) == (0, 1, 2, 5)
    assert student_layers(ModelConfig(path=str(shallow)), None) == (0, 1)
    assert student_layers(ModelConfig(path=str(deep)), (0, 3)) == (0, 3)
    with pytest.raises(ModelLoadError, match=r"layer 2 was asked for and .* has only 2 layers"):
        student_layers(ModelConfig(path=str(shallow)), (0, 2))
    student = load_student(ModelConfig(path=str(deep), layers=(0, 5), device="cpu"))
    assert student.model.dtype == torch.float32
    assert student.model.config.num_hidden_layers == 2


def test_rounding_is_what_bitsandbytes_stores() -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    weight = torch.randn(64, 3 * NF4_BLOCK, generator=torch.Generator().manual_seed(0))
    weight[0, :NF4_BLOCK] = 0.0
    stored = dequantize_4bit(*quantize_4bit(weight, blocksize=NF4_BLOCK, quant_type="nf4"))
    assert torch.equal(rounded(weight, "nf4"), stored)
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    assert float(((rounded(weight, "int8") - weight).abs() / scale).max()) <= 0.501


def test_weights_are_rounded_for_a_while_and_exact_afterwards_whatever_happens() -> None:
    model = tiny_model(hidden_size=64, intermediate_size=64)
    weights = linear_weights(model)
    exact = [weight.detach().clone() for weight in weights]
    with pytest.raises(KeyboardInterrupt), rounded_weights(weights, "nf4"):
        for weight, value in zip(weights, exact, strict=True):
            assert torch.equal(weight, rounded(value, "nf4"))
        raise KeyboardInterrupt
    for weight, value in zip(weights, exact, strict=True):
        assert torch.equal(weight, value)
    head = model.get_output_embeddings().weight
    assert not any(weight is head for weight in weights)


def test_a_quantized_checkpoint_holds_the_rounded_weights(tmp_path: Path) -> None:
    model = tiny_model(hidden_size=64, intermediate_size=128)
    keep_ids(model, KEPT, end_ids=(0, 1))
    draft_ids, rows = torch.tensor([[1, 3, 0, 7, 2, 2]]), torch.arange(6)
    with torch.no_grad(), rounded_weights(linear_weights(model), "nf4"):
        expected = student_logits(model, draft_ids, rows, "float32")
    save_student(model, tmp_path, quantization="nf4")
    loaded = load_model(ModelConfig(path=str(tmp_path), device="cpu"))
    assert loaded.eos_token_ids == (0, 1)
    with torch.no_grad():
        found = student_logits(loaded.model, draft_ids, rows, "float32").float()
    assert float((found - expected).norm() / expected.norm()) < 0.12  # it computes in bfloat16
    with torch.no_grad():
        exact = student_logits(model, draft_ids, rows, "float32")
    assert float((found - exact).norm() / exact.norm()) > 0.15


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
def test_a_student_begins_as_an_older_one_which_knows_some_of_its_ids(
    tmp_path: Path, quantization: str, tied: bool
) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 128, "tie_word_embeddings": tied}
    old, new = tiny_model(seed=1, **shape), tiny_model(seed=2, **shape)
    old_ids = torch.tensor([2, 3, 10, 41, 100, 319])
    new_ids = torch.tensor([2, 5, 10, 11, 100, 200, 319])
    both = torch.tensor([2, 10, 100, 319])
    keep_ids(old, old_ids, end_ids=(0,))
    keep_ids(new, new_ids, end_ids=(0,))
    before = [each.clone() for each in _of_ids(new)]
    save_student(old, tmp_path, quantization=quantization)
    stored = load_model(ModelConfig(path=str(tmp_path), device="cpu"))
    begin_as(new, new_ids, stored.model, old_ids)

    own = ~torch.isin(new_ids, both)
    for matrix, first in zip(_of_ids(new), before, strict=True):
        moved = (matrix - first)[~own].mean(0)
        torch.testing.assert_close(matrix[own], first[own] + moved)
    texts, rows = both[torch.tensor([[0, 3, 1, 2, 2, 0]])], torch.arange(6)
    stored_as = (
        nullcontext()
        if quantization == "none"
        else rounded_weights(linear_weights(old), quantization)
    )
    with torch.no_grad(), stored_as:
        expected = student_logits(old, torch.searchsorted(old_ids, texts), rows, "float32")
        found = student_logits(new, torch.searchsorted(new_ids, texts), rows, "float32")
    expected = expected[:, torch.searchsorted(old_ids, both)]
    found = found[:, torch.searchsorted(new_ids, both)]
    # a checkpoint is rounded to bfloat16 before it is quantized
    rough = 0.02 if quantization == "none" else 0.12
    assert float((found - expected).norm() / expected.norm()) < rough


def _of_ids(model: Any) -> list[torch.Tensor]:
    return [model.get_input_embeddings().weight.data, model.get_output_embeddings().weight.data]


def test_a_student_cannot_begin_as_a_model_of_another_shape() -> None:
    student, other = tiny_model(), tiny_model(intermediate_size=96)
    ids = torch.arange(student.get_input_embeddings().num_embeddings)
    with pytest.raises(
        ModelLoadError, match=r"no model\.layers\.0\.mlp\..* of the student's shape"
    ):
        begin_as(student, ids, other, ids)
