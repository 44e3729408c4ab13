"""Packed layers say what plain ones say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.runtime import packed_linear
from paceline.runtime.packed_linear import TOLERANCE, PackedLinear, pack, unpack


def model_of(dtype: torch.dtype = torch.float32, *, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 160, bias=bias), nn.SiLU(), nn.Linear(160, 32))
    return model.to(dtype).requires_grad_(requires_grad=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 96), (1, 7, 96), (2, 3, 5, 96), (300, 96)])
@torch.inference_mode()
def test_a_packed_layer_says_what_it_said(
    *, dtype: torch.dtype, bias: bool, shape: tuple[int, ...]
) -> None:
    model = model_of(dtype, bias=bias)
    inputs = torch.randn(shape).to(dtype)
    expected = model(inputs)
    undo = pack(model)
    assert [type(layer) for layer in model] == [PackedLinear, nn.SiLU, PackedLinear]
    found = model(inputs)
    assert found.shape == expected.shape
    assert found.dtype == dtype
    assert (found - expected).norm() <= 2 * TOLERANCE[dtype] * expected.norm()
    undo()
    assert [type(layer) for layer in model] == [nn.Linear, nn.SiLU, nn.Linear]
    assert torch.equal(model(inputs), expected)


@torch.inference_mode()
def test_what_it_is_given_need_not_be_contiguous() -> None:
    layer = model_of()[0]
    inputs = torch.randn(4, 2, 192)[..., ::2].transpose(0, 1)
    packed = PackedLinear(layer)
    assert torch.allclose(packed(inputs), layer(inputs), atol=1e-5)


def test_an_unusual_dtype_stays_plain() -> None:
    model = model_of(torch.float64)
    pack(model)
    assert type(model[0]) is nn.Linear


def test_a_tied_weight_stays_for_those_who_look_rows_up() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(40, 16), "head": nn.Linear(16, 40, bias=False)})
    model["head"].weight = model["embed"].weight  # type: ignore[assignment]
    row = model["embed"](torch.tensor([7]))
    pack(model)
    assert isinstance(model["head"], PackedLinear)
    assert torch.equal(model["embed"](torch.tensor([7])), row)
    with torch.inference_mode():
        assert torch.allclose(model["head"](row)[0], row[0] @ model["embed"].weight.T, atol=1e-5)


def test_a_layer_that_would_say_something_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = PackedLinear.forward

    def wrong(self: PackedLinear, inputs: Tensor) -> Tensor:
        return forward(self, inputs) + (self.out_features == 32)

    monkeypatch.setattr(PackedLinear, "forward", wrong)
    model = model_of()
    pack(model)
    assert [type(layer) for layer in model] == [PackedLinear, nn.SiLU, nn.Linear]


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, TypeError])
def test_where_torch_cannot_do_it_all_stays_plain(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_self: Any, _layer: nn.Linear) -> None:
        raise error("no such operator\nand more")

    monkeypatch.setattr(PackedLinear, "__init__", fail)
    caplog.set_level("INFO", logger=packed_linear.__name__)
    model = model_of()
    pack(model)
    assert type(model[0]) is nn.Linear
    assert [record.message for record in caplog.records] == [
        "linear layers are not packed: no such operator"
    ]


def test_without_onednn_all_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = model_of()
    pack(model)
    assert type(model[0]) is nn.Linear


def test_an_unpacked_layer_is_the_one_that_was_packed() -> None:
    model = model_of()
    weights = [model[place].weight.clone() for place in (0, 2)]
    biases = [model[place].bias.clone() for place in (0, 2)]
    pack(model)
    unpack(model)
    for place, weight, bias in zip((0, 2), weights, biases, strict=True):
        assert torch.equal(model[place].weight, weight)
        assert torch.equal(model[place].bias, bias)
