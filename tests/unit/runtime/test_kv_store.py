"""The tensors behind the pages."""

from __future__ import annotations

import torch

from paceline.runtime.kv_store import KVStore, LayerShape, bytes_needed

SHAPES = {
    0: LayerShape(kv_heads=2, key_dim=8, value_dim=4, dtype=torch.float32),
    3: LayerShape(kv_heads=1, key_dim=6, value_dim=6, dtype=torch.bfloat16),
}


def _store() -> KVStore:
    return KVStore(SHAPES, num_pages=5, page_size=4, device=torch.device("cpu"))


def test_layers_may_differ_and_bytes_are_what_the_tensors_hold() -> None:
    store = _store()

    held = sum(t.nbytes for layer in store.layers.values() for t in (layer.keys, layer.values))

    assert store.layers[0].keys.shape == (5, 4, 2, 8)
    assert store.layers[0].values.shape == (5, 4, 2, 4)
    assert store.layers[3].values.dtype == torch.bfloat16
    assert store.num_bytes == held == bytes_needed(SHAPES, 20) == 20 * (96 + 24)


def test_a_written_token_is_found_in_its_page() -> None:
    layer = _store().layers[0]
    keys, values = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 4)

    layer.write(torch.tensor([4, 19, 6]), keys, values)

    for row, (page, offset) in enumerate([(1, 0), (4, 3), (1, 2)]):
        assert torch.equal(layer.keys[page, offset], keys[0, :, row])
        assert torch.equal(layer.values[page, offset], values[0, :, row])
    assert layer.keys.count_nonzero() == 3 * 2 * 8


def test_clearing_touches_only_the_pages_named() -> None:
    store = _store()
    for layer in store.layers.values():
        layer.keys.fill_(1)
        layer.values.fill_(float("nan"))

    store.clear([1, 4])

    for layer in store.layers.values():
        assert layer.keys.flatten(1).sum(1).eq(0).tolist() == [False, True, False, False, True]
        assert layer.values.flatten(1).isnan().any(1).tolist() == [True, False, True, True, False]
