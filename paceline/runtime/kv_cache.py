"""The `Cache` classes that the runtime gives to models: one writes to pages, one takes notes."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor
from transformers import Cache

from paceline.runtime.kv_store import KVStore, LayerShape
from paceline.runtime.ragged_attention import PagedKeys, UnsupportedAttentionError
from paceline.runtime.ragged_step import RaggedStep


class _StatelessCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """A cache without layers of transformers' own: every model call looks like the first."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise UnsupportedAttentionError(
            "the model keeps a state besides keys and values (convolution, recurrence or an index)"
            " that cannot be rolled back"
        )

    get_conv_state = update_conv_state = _refuse
    get_recurrent_state = update_recurrent_state = _refuse
    has_previous_state = update_indexer = _refuse


class PagedCache(_StatelessCache):
    """Writes a pass's keys and values to their slots and hands the layer's pages to attention."""

    def __init__(self, store: KVStore, step: RaggedStep) -> None:
        super().__init__()
        self._layers = store.layers
        self._step = step

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[PagedKeys, Tensor]:
        """`key_states` and `value_states` are `[1, kv_heads, num_rows, dim]`."""
        layer = self._layers[layer_idx]
        layer.write(self._step.slots, key_states, value_states)
        return PagedKeys(layer.keys, self._step), layer.values


class RecordingCache(_StatelessCache):
    """Learns from one plain pass what each layer caches, whatever the architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[int, LayerShape] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.shapes[layer_idx] = LayerShape(
            kv_heads=key_states.shape[1],
            key_dim=key_states.shape[3],
            value_dim=value_states.shape[3],
            dtype=key_states.dtype,
        )
        return key_states, value_states
