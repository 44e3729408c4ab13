"""Peak memory of this process, and what becomes of memory that it frees."""

from __future__ import annotations

import ctypes
import resource
import sys

import torch


def peak_memory_bytes(device: str) -> int:
    """Peak resident set on the CPU, peak allocation on a CUDA device, in bytes."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def keep_freed_memory() -> None:
    """Keep freed memory for the next allocation instead of giving it back to the system.

    For work that allocates the same large tensors again and again on a CPU: with glibc's defaults
    each comes with page faults, which took half of the time of a training step. For the rest of
    the process; nothing happens with another C library.
    """
    mmap_max, trim_threshold = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, -1)
