"""Peak memory of this process."""

from __future__ import annotations

import resource
import sys

import torch


def peak_memory_bytes(device: str) -> int:
    """Peak resident set on the CPU, peak allocation on a CUDA device, in bytes."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
