"""Whether two workers compute on one device."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.pipeline import worker_info

from paceline.rpc.codec.describe import decode_worker_info, encode_worker_info
from paceline.runtime import device
from paceline.runtime.device import device_of


def test_of_cpus_as_many_are_used_as_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {5, 4, 7, 6}, raising=False)
    monkeypatch.setattr(device, "_core_of", str)
    for threads, share in ((1, 0.25), (4, 1.0), (9, 1.0)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert device_of("cpu").share == share
    assert device_of("cpu").id == f"{device._machine()}/4,5,6,7"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {4, 5}, raising=False)
    assert device_of("cpu").id == f"{device._machine()}/4,5"


def test_two_cpus_of_one_core_are_one_for_a_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As torch counts: by default it has a thread a core."""
    for cpu in range(8):
        (tmp_path / str(cpu)).write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(device, "_SIBLINGS", f"{tmp_path}/{{}}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert device_of("cpu").share == 1.0
    monkeypatch.setattr(device, "_SIBLINGS", f"{tmp_path}/nowhere{{}}")
    assert device_of("cpu").share == 0.5


def test_a_machine_that_does_not_say_which_it_is_has_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_machine", lambda: "")
    assert device_of("cpu").id == ""


def test_a_gpu_is_known_by_its_number_and_used_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(name: str) -> Any:
        return SimpleNamespace(uuid=f"GPU-{name[-1]}")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert device_of("cuda:1") == ("GPU-1", 1.0)


def test_workers_compete_where_one_device_is_too_small_for_both() -> None:
    one = replace(worker_info("verifier", 9), device_id="a", device_share=0.5)
    other = replace(worker_info("model", 9), device_id="a", device_share=0.5)
    assert not one.competes_with(other)
    assert one.competes_with(replace(other, device_share=0.6))
    assert not one.competes_with(replace(other, device_id="b", device_share=1.0))
    parts = [replace(other, device_share=part / 6) for part in (2, 4)]
    first, second = (decode_worker_info(encode_worker_info(part)) for part in parts)
    assert not first.competes_with(second), "shares that fill it exactly, as they come by the wire"
    unknown = replace(one, device_id="")
    assert not unknown.competes_with(replace(other, device_id="", device_share=1.0))
