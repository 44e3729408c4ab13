"""`WorkerInfo` ↔ `WorkerDescription`."""

from __future__ import annotations

from typing import Any

from paceline.types import WorkerInfo
from protos import common_pb2

_SCALARS = (
    "kind",
    "model",
    "dtype",
    "quantization",
    "device",
    "device_id",
    "device_share",
    "vocab_size",
    "tokenizer_fingerprint",
    "context_length",
    "kv_page_size",
    "kv_pages_total",
    "kv_pages_used",
    "kv_pages_reserved",
    "live_sessions",
    "waiting_sessions",
    "peak_memory_bytes",
    "feature_size",
)


def encode_worker_info(info: WorkerInfo) -> common_pb2.WorkerDescription:
    values: dict[str, Any] = {name: getattr(info, name) for name in _SCALARS}
    return common_pb2.WorkerDescription(
        **values, eos_token_ids=info.eos_token_ids, counters=dict(info.counters)
    )


def decode_worker_info(message: common_pb2.WorkerDescription) -> WorkerInfo:
    values: dict[str, Any] = {name: getattr(message, name) for name in _SCALARS}
    return WorkerInfo(
        **values, eos_token_ids=tuple(message.eos_token_ids), counters=dict(message.counters)
    )
