"""Layers that read one input compute in one product, and say what each would say alone."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from ragged_harness import plain_logits
from support.tiny_models import tiny_loaded, tiny_model
from torch import Tensor, nn

from paceline.config import RuntimeConfig
from paceline.runtime import runner_factory
from paceline.runtime.merged_linear import MergedLinear, MergedPart, SharedInputs, merge
from paceline.runtime.packed_linear import PackedLinear
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner

IDS = (5, 9, 300, 4, 77, 12)


class Branching(nn.Module):
    """Three layers over one input, one of them with another kind of bias, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 4)
        self.second = nn.Linear(8, 6)
        self.without_bias = nn.Linear(8, 3, bias=False)
        self.behind = nn.Linear(4, 4)
        self.reverse = False

    def forward(self, inputs: Tensor) -> Tensor:
        if self.reverse:
            second, first = self.second(inputs), self.first(inputs)
        else:
            first, second = self.first(inputs), self.second(inputs)
        return torch.cat((self.behind(first), second, self.without_bias(inputs)), dim=-1)


def watched(model: nn.Module, *arguments: Any, **keywords: Any) -> SharedInputs:
    shared = SharedInputs()
    with shared.watching(model), torch.inference_mode():
        model(*arguments, **keywords)
    return shared


def names(model: nn.Module, shared: SharedInputs) -> list[list[str]]:
    known = {id(module): name for name, module in model.named_modules()}
    return [[known[id(layer)] for layer in group] for group in shared.groups]


def test_layers_are_grouped_by_what_they_are_called_with() -> None:
    model = Branching()
    assert names(model, watched(model, torch.randn(2, 8))) == [["first", "second"]]
    assert not model.first._forward_pre_hooks, "nobody listens any more"


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("llama", [["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]]),
        ("phi", [["q_proj", "k_proj", "v_proj"]]),
        ("gpt_neox", []),
    ],
)
def test_a_models_own_pass_shows_its_groups(arch: str, expected: list[list[str]]) -> None:
    model = tiny_model(arch)
    shared = watched(model, input_ids=torch.tensor([IDS]), use_cache=False)
    found = [[name.split(".")[-1] for name in group] for group in names(model, shared)]
    assert found == expected * model.config.num_hidden_layers


def test_a_layer_that_is_called_twice_or_shares_its_weight_is_left_alone() -> None:
    model = Branching()
    model.behind.weight = model.first.weight = nn.Parameter(torch.randn(4, 8))
    model.behind.in_features = 8
    model.forward = lambda x: model.first(x) + model.behind(x)  # type: ignore[method-assign]
    assert watched(model, torch.randn(2, 8)).groups == []
    model = Branching()
    model.forward = lambda x: (model.first(x), model.second(x), model.first(x + 1))  # type: ignore[method-assign]
    assert watched(model, torch.randn(2, 8)).groups == []


@torch.inference_mode()
def test_merged_layers_say_what_they_said() -> None:
    model = Branching()
    inputs = torch.randn(5, 8)
    expected = model(inputs)
    layers = [model.first, model.second]
    undo = merge(model, watched(model, inputs).groups)
    assert isinstance(model.first, MergedLinear)
    assert isinstance(model.second, MergedPart)
    assert torch.allclose(model(inputs), expected, atol=1e-6)
    assert model.first._held == [], "nothing is kept for longer than it is of use"
    whole = model.first.product.weight
    assert layers[1].weight.data_ptr() == whole[4:].data_ptr(), "no weight is held twice"
    undo()
    assert [model.first, model.second] == layers
    assert torch.allclose(model(inputs), expected, atol=1e-6)


@torch.inference_mode()
def test_a_part_that_is_asked_out_of_turn_computes_for_itself() -> None:
    model = Branching()
    inputs = torch.randn(5, 8)
    expected = model(inputs)
    merge(model, watched(model, inputs).groups)
    model.reverse = True
    assert torch.allclose(model(inputs), expected, atol=1e-6)
    other = torch.randn(5, 8)
    model.first(inputs)
    assert torch.allclose(model.second(other), model.first.product(other)[:, 4:])


def test_a_runners_model_is_merged_and_packed() -> None:
    runner = build_runner(tiny_loaded(), RuntimeConfig(kv_tokens=64))
    plain = tiny_model()
    layer: Any = runner._model.model.layers[0]
    kinds = [
        type(module).__name__
        for module in (layer.self_attn.q_proj, layer.self_attn.q_proj.product, layer.mlp.up_proj)
    ]
    assert kinds == ["MergedLinear", "PackedLinear", "MergedPart"]
    logits = runner.forward([Chunk(runner.pool.open_table(16), IDS, len(IDS))])
    assert torch.allclose(logits, plain_logits(plain, IDS), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "other"), [(MergedLinear, PackedLinear), (PackedLinear, MergedLinear)]
)
@pytest.mark.parametrize(
    "answer", [float("nan"), RuntimeError("view size is not compatible"), AttributeError("weight")]
)
def test_a_model_that_cannot_be_changed_in_one_way_is_in_the_other(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[nn.Module],
    other: type[nn.Module],
    answer: float | Exception,
) -> None:
    """Its outputs are told apart wrongly, it does with them what no part allows, or looks at a
    weight."""
    kinds = kinds_of_runner(monkeypatch, kind, answer)
    assert kind not in kinds
    assert other in kinds


def kinds_of_runner(
    monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module], answer: float | Exception
) -> set[type[nn.Module]]:
    """The modules of a runner's model, of one that fails the check while it has some of a kind."""
    plain_check = runner_factory.deviation

    def deviation(model: Any, reference: Any) -> float:
        if not any(isinstance(module, kind) for module in model.modules()):
            return plain_check(model, reference)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(runner_factory, "deviation", deviation)
    runner = build_runner(tiny_loaded(), RuntimeConfig(kv_tokens=64))
    logits = runner.forward([Chunk(runner.pool.open_table(16), IDS, len(IDS))])
    assert torch.allclose(logits, plain_logits(tiny_model(), IDS), atol=1e-4)
    return {type(module) for module in runner._model.modules()}


def test_nothing_of_the_layers_is_left_in_memory() -> None:
    loaded = tiny_loaded()
    mlp: Any = loaded.model.model.layers[0].mlp
    weights = [weakref.ref(mlp.up_proj.weight), weakref.ref(mlp.down_proj.weight)]
    build_runner(loaded, RuntimeConfig(kv_tokens=64))
    assert [weight() for weight in weights] == [None, None]
