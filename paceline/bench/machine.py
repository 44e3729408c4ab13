"""What a benchmark ran on: figures without it mean nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

import paceline

PACKAGES = ("torch", "transformers", "bitsandbytes", "numpy", "grpcio", "protobuf", "ray")
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware, the versions of what is measured, and its commit where it is a checkout."""

    cpu: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    gpus: tuple[str, ...]
    system: str
    python: str
    versions: dict[str, str]
    commit: str | None
    """With `-dirty` if files differ from it."""


def describe_machine() -> Machine:
    """Look at this machine; takes a fraction of a second."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(psutil.Process().cpu_affinity()) if _has_affinity() else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpus=_gpus(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        versions={"paceline": paceline.__version__, **_versions()},
        commit=_commit(Path(paceline.__file__).parents[1]),
    )


def _has_affinity() -> bool:
    return hasattr(psutil.Process, "cpu_affinity")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _gpus() -> tuple[str, ...]:
    """Asked of the driver's tool: torch would take memory on every device to tell."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return tuple(line.strip() for line in _output_of(tool, *query).splitlines() if line.strip())


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit(root: Path) -> str | None:
    """Of the checkout that the package lies in, if it lies in one."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    commit = _output_of(git, "-C", str(root), "rev-parse", "HEAD").strip()
    changed = _output_of(git, "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if commit and changed.strip() else commit or None


def _output_of(*command: str) -> str:
    """Its output; nothing if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
