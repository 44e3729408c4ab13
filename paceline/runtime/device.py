"""Which hardware a model computes on, so that others can tell whether they compute there too."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class Device(NamedTuple):
    """An id that no other device has, here or elsewhere, and how much of it is used, 0 to 1."""

    id: str
    share: float


def device_of(name: str) -> Device:
    """The device that torch calls `name`.

    Of a GPU all is used. CPUs are those that the process may run on, on this machine since it was
    started (containers of one machine agree on that), and each thread of torch takes a core, of
    which there may be two CPUs. A quota of CPU time is not seen.
    """
    if name.startswith("cuda"):
        return Device(str(torch.cuda.get_device_properties(name).uuid), 1.0)
    cpus = _cpus()
    machine = _machine()
    numbers = ",".join(map(str, cpus))
    cores = {_core_of(cpu) for cpu in cpus}
    share = min(1.0, torch.get_num_threads() / len(cores))
    return Device(machine and f"{machine}/{numbers}", share)


def _cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _core_of(cpu: int) -> str:
    """The CPUs that share a core with one, itself where the system does not tell."""
    try:
        return Path(_SIBLINGS.format(cpu)).read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


@cache
def _machine() -> str:
    """Empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
