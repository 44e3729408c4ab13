"""The seam to models that show what their LM head reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from paceline.runtime.runner import Chunk


@runtime_checkable
class FeatureSource(Protocol):
    """A `Runner` that can tell the hidden states of a pass."""

    feature_size: int
    """Values of a hidden state; 0 if the model does not show them."""

    def forward_with_features(self, chunks: Sequence[Chunk]) -> tuple[Tensor, list[Tensor]]:
        """The logits of `Runner.forward`, and for each chunk the hidden states of its tokens,
        `[num_tokens, feature_size]`, good until the next pass."""
        ...
