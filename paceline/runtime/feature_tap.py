"""Reads the hidden states that a model's LM head is given, while asked to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


class FeatureTap:
    """A model's last hidden states of one pass; it costs nothing while closed."""

    def __init__(self, model: PreTrainedModel) -> None:
        decoder: nn.Module = model.get_decoder()
        head: Any = model.get_output_embeddings()
        self.size = 0 if decoder is model else int(getattr(head, "in_features", 0))
        """Values of a hidden state; 0 if they cannot be read."""
        self._decoder = decoder
        self._hidden: Tensor | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, a pass leaves its hidden states for `take`."""
        assert self.size, "the hidden states cannot be read"
        hook = self._decoder.register_forward_hook(self._hear)
        try:
            yield
        finally:
            hook.remove()

    def take(self) -> Tensor:
        """Those of the pass that was heard: `[rows, size]`, in the order in which they ran."""
        hidden, self._hidden = self._hidden, None
        assert hidden is not None, "no pass was heard"
        return hidden

    def _hear(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._hidden = output[0][0]
