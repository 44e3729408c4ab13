"""Emulated devices: passes take what was set, whatever runs inside, and use no CPU."""

from __future__ import annotations

import time

import pytest
import torch

from paceline.device_clock import device_ended_at, wait_for_device
from paceline.runtime.emulated import SPIN_S, EmulatedRunner, device_counters, sleep_until
from paceline.runtime.pass_cost import PassCost
from paceline.runtime.runner import Chunk
from paceline.runtime.scripted import ScriptedRunner, hashed_script


def test_a_pass_costs_its_base_its_tokens_and_its_sessions() -> None:
    cost = PassCost(0.03, per_token_s=0.001, per_session_s=0.002)
    assert cost.seconds(5, 2) == pytest.approx(0.03 + 0.005 + 0.004)
    assert PassCost(0.03).seconds(1, 1) == PassCost(0.03).seconds(1000, 64) == 0.03


def test_past_its_knee_a_device_is_bound_by_computing() -> None:
    cost = PassCost(0.03, knee_tokens=64)
    assert cost.seconds(1, 1) == cost.seconds(64, 64) == 0.03
    assert cost.seconds(128, 64) == pytest.approx(0.06)
    assert cost.seconds(640, 64) == pytest.approx(0.3)


def test_a_pass_takes_its_time_and_gives_the_models_logits() -> None:
    script = hashed_script(11)
    plain, inner = (ScriptedRunner(script, vocab_size=11) for _ in range(2))
    emulated = EmulatedRunner(inner, PassCost(0.004, per_token_s=0.001))
    for runner in (plain, emulated):
        assert (runner.vocab_size, runner.context_length) == (11, 4096)
    started = time.perf_counter()
    logits = emulated.forward([Chunk(emulated.pool.open_table(8), [1, 2, 3], 2)])
    assert emulated.passes == 0  # it goes on while the host does something else
    wait_for_device()
    elapsed = time.perf_counter() - started
    assert torch.equal(logits, plain.forward([Chunk(plain.pool.open_table(8), [1, 2, 3], 2)]))
    assert elapsed >= 0.007
    assert emulated.passes == 1
    assert 0.007 <= emulated.busy_s <= elapsed
    assert emulated.late_s == pytest.approx(emulated.busy_s - 0.007, abs=1e-4)
    assert started + 0.007 <= device_ended_at() <= started + elapsed


def test_a_pass_begins_when_the_one_before_it_has_ended() -> None:
    emulated = EmulatedRunner(ScriptedRunner(hashed_script(11), vocab_size=11), PassCost(0.004))
    table = emulated.pool.open_table(8)
    started = time.perf_counter()
    for token_id in (1, 2, 3):
        emulated.forward([Chunk(table, [token_id], 1)])
    wait_for_device()
    assert time.perf_counter() - started >= 0.012
    assert emulated.passes == 3
    wait_for_device()  # nothing is left to wait for
    assert emulated.passes == 3


def test_a_pass_that_fails_leaves_nothing_to_wait_for() -> None:
    emulated = EmulatedRunner(ScriptedRunner(hashed_script(11), vocab_size=11), PassCost(60.0))
    with pytest.raises(AssertionError):
        emulated.forward([Chunk(emulated.pool.open_table(8), [], 1)])
    wait_for_device()
    assert emulated.passes == 0


def test_a_pass_that_computes_longer_is_not_held_back() -> None:
    script = hashed_script(11)
    emulated = EmulatedRunner(ScriptedRunner(script, vocab_size=11), PassCost(0.0))
    emulated.forward([Chunk(emulated.pool.open_table(8), [1, 2, 3], 1)])
    wait_for_device()
    assert emulated.late_s == pytest.approx(emulated.busy_s, abs=1e-4)


def test_waiting_ends_on_time_and_uses_no_cpu() -> None:
    late, used = [], []
    for _ in range(8):
        before = time.thread_time()
        due = time.perf_counter() + 0.005
        sleep_until(due)
        late.append(time.perf_counter() - due)
        used.append(time.thread_time() - before)
    assert min(late) >= 0.0
    assert sorted(late)[2] < 0.002  # measured 0.03 ms, of a machine with time to spare
    assert sorted(used)[4] < 2 * SPIN_S + 0.001


def test_a_time_that_has_passed_is_not_waited_for() -> None:
    before = time.perf_counter()
    sleep_until(before - 1.0)
    assert time.perf_counter() - before < 0.5


def test_only_an_emulated_device_counts_its_time() -> None:
    inner = ScriptedRunner(hashed_script(11), vocab_size=11)
    emulated = EmulatedRunner(inner, PassCost(0.004))
    assert device_counters(inner) == {}
    emulated.forward([Chunk(emulated.pool.open_table(8), [1, 2, 3], 1)])
    wait_for_device()
    counters = device_counters(emulated)
    assert counters["device_passes"] == 1
    assert counters["device_busy_us"] == round(emulated.busy_s * 1e6) >= 4000
    assert counters["device_late_us"] == round(emulated.late_s * 1e6)
