"""Features on the wire: 2 bytes a value, little-endian bfloat16."""

from __future__ import annotations

import numpy as np
import torch

from paceline.errors import InvalidArgumentError
from paceline.features import Features
from protos import common_pb2


def encode_features(features: Features | None) -> common_pb2.Features | None:
    """None, which takes no byte, stays None."""
    if features is None:
        return None
    if features.values.dtype != torch.bfloat16:
        raise ValueError(f"features are {features.values.dtype}, not bfloat16")
    bits = features.values.contiguous().view(torch.int16).numpy()
    return common_pb2.Features(
        base=features.base,
        size=features.values.shape[1],
        values=bits.astype("<i2", copy=False).tobytes(),
    )


def decode_features(message: common_pb2.Features) -> Features:
    """Raises `InvalidArgumentError` naming the field if they are no whole rows."""
    row_bytes = 2 * message.size
    if message.size < 1 or message.base < 0:
        raise InvalidArgumentError("features.size", f"{message.size} values from {message.base} on")
    if not message.values or len(message.values) % row_bytes:
        raise InvalidArgumentError(
            "features.values", f"{len(message.values)} bytes are no rows of {row_bytes}"
        )
    # The conversion copies, so that the tensor owns writable memory.
    bits = np.frombuffer(message.values, "<i2").reshape(-1, message.size).astype(np.int16)
    return Features(message.base, torch.from_numpy(bits).view(torch.bfloat16))
