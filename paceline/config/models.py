"""Which model a worker loads: pretrained, or synthetic for measurements."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, PlainValidator, Tag, model_validator

from paceline.config.section import Section


def _some_layers(layers: Any) -> Any:
    if isinstance(layers, bool) or not isinstance(layers, int | list | tuple):
        raise ValueError("must be a number of layers or a list of layers")
    if isinstance(layers, int):
        if layers < 1:
            raise ValueError(f"{layers} layers are no model, at least 1 is needed")
        return layers
    whole = all(isinstance(layer, int) and not isinstance(layer, bool) for layer in layers)
    if not layers or not whole or min(layers) < 0 or sorted(set(layers)) != list(layers):
        raise ValueError(f"{list(layers)} is not an ascending list of layers, counted from 0")
    return tuple(layers)


Layers = Annotated[int | tuple[int, ...], PlainValidator(_some_layers)]
"""The first so many layers of a model, or a choice of them."""


MIN_ACCEPTANCE = 0.03
MAX_ACCEPTANCE = 0.999


def acceptance_rate(rate: float) -> float:
    """The rate, if there is a synthetic pair that has it. Raises `ValueError` if not."""
    if rate not in (0.0, 1.0) and not MIN_ACCEPTANCE <= rate <= MAX_ACCEPTANCE:
        raise ValueError(
            f"{rate:g} is neither 0, 1 nor from {MIN_ACCEPTANCE:g} to {MAX_ACCEPTANCE:g}"
        )
    return rate


def _device(name: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", name, re.ASCII) is None:
        raise ValueError(f"{name!r} is none of auto, cpu, cuda and cuda:N")
    return name


Device = Annotated[str, AfterValidator(_device)]


class ModelConfig(Section):
    """Which model to load and how."""

    kind: Literal["pretrained"] = "pretrained"
    path: str
    """A directory, a GGUF file, `package:NAME` (a GGUF file or a checkpoint in a Python
    package, dots for one within another) or a hub id."""
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is the checkpoint's own on CUDA and bfloat16 on the CPU."""
    device: Device = "auto"
    """`auto` is CUDA where there is a device, else the CPU."""
    quantization: Literal["none", "int8", "nf4"] = "none"
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of the process; unset leaves torch's own choice."""
    layers: Layers | None = None
    """Of a drafter: only the first so many layers, or these (counted from 0), under the model's own
    norm and head; the others are not loaded. Unset takes all."""

    @property
    def name(self) -> str:
        """How a status calls it."""
        if self.layers is None:
            return self.path
        chosen = self.layers if isinstance(self.layers, tuple) else (f"0 to {self.layers - 1}",)
        return f"{self.path}, layers {', '.join(map(str, chosen))}"


class SyntheticModelConfig(Section):
    """A model without weights: a known law, and passes of a known cost, for measurements.

    Verifier and drafter are a pair when `vocab_size` and `seed` are the same.
    """

    kind: Literal["synthetic"]
    vocab_size: int = Field(default=128, ge=64, le=262_144)
    seed: int = Field(default=0, ge=0, lt=2**63)
    acceptance: float | None = Field(default=None, ge=0, le=1)
    """The drafter's acceptance rate; unset drafts from the target's own law."""
    second_guess: float = Field(default=0.0, ge=0, le=1)
    """How often the drafter's next likeliest id is the target's where its likeliest is not."""
    third_guess: float = Field(default=0.0, ge=0, le=1)
    """And the one after it where that is not either."""
    acceptance_changes: tuple[tuple[int, float], ...] = ()
    """`[position, rate]` pairs: the rate from that position in the sequence on."""
    context_length: int = Field(default=32_768, ge=16)
    base_ms: float = Field(default=0.0, ge=0)
    """Time of a pass, slept; all costs at 0 do not emulate a device."""
    per_token_ms: float = Field(default=0.0, ge=0)
    per_session_ms: float = Field(default=0.0, ge=0)
    knee_tokens: int = Field(default=0, ge=0)
    """Tokens of a pass above which `base_ms` grows in proportion to them; 0 is no such limit."""

    @property
    def path(self) -> str:
        """The model's name, from which its tokenizer follows."""
        return f"synthetic:{self.vocab_size}:{self.seed}"

    @property
    def device(self) -> str:
        return "cpu"

    @model_validator(mode="after")
    def _rates_given(self) -> SyntheticModelConfig:
        if self.acceptance_changes and self.acceptance is None:
            raise ValueError("acceptance is required with acceptance_changes")
        return self


MODEL_KINDS = ("pretrained", "synthetic")


def _model_kind(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("kind", "pretrained")
    return getattr(value, "kind", None)


AnyModelConfig = Annotated[
    Annotated[ModelConfig, Tag("pretrained")] | Annotated[SyntheticModelConfig, Tag("synthetic")],
    Discriminator(
        _model_kind,
        custom_error_type="model_kind",
        custom_error_message=f"kind must be one of {', '.join(MODEL_KINDS)}",
    ),
]
"""A `model` section; without a `kind` it is a pretrained model."""
