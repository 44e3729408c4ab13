"""The adaptive window in simulated time: real engines, relay and controller, against the best fixed
setting for the very same accepted and rejected drafts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from support.virtual_time import TimedServices

from paceline.runtime.pass_cost import PassCost
from paceline.runtime.synthetic import AcceptanceSchedule, SyntheticLaw, SyntheticRunner
from paceline.sampling.params import SamplingParams
from paceline.simulation.scenario import Scenario
from paceline.simulation.simulator import simulate

VOCAB = 128
FAST = PassCost(0.03), PassCost(0.003)
SLOW_DRAFTER = PassCost(0.03), PassCost(0.04)
COMPUTE_BOUND = PassCost(0.03, knee_tokens=16), PassCost(0.003)
FIXED = [(block, times * block) for block in (1, 2, 3, 4, 6, 8) for times in (1, 2, 3, 4)]


def law(acceptance: AcceptanceSchedule | None = None) -> SyntheticLaw:
    return SyntheticLaw(seed=3, num_plain_ids=VOCAB, vocab_size=VOCAB, acceptance=acceptance)


def runner(of: SyntheticLaw) -> SyntheticRunner:
    return SyntheticRunner(of, context_length=10_000, num_pages=20_000, page_size=16)


class OneDevice(PassCost):
    """What a draft takes where it is computed beside the verifier's passes, and where it is not."""

    alone_s, beside_s = 0.003, 0.0105
    services: ClassVar[TimedServices]
    beside: ClassVar[list[bool]]

    def seconds(self, num_tokens: int, num_sessions: int) -> float:
        is_busy = self.services.verifier.is_busy
        self.beside.append(is_busy)
        return self.beside_s if is_busy else self.alone_s


class Race:
    """One scenario with an adaptive window, and what others would have done with its drafts."""

    def __init__(
        self,
        scenario: Scenario,
        schedule: AcceptanceSchedule,
        monkeypatch: pytest.MonkeyPatch,
        temperature: float = 0.0,
    ) -> None:
        self.scenario = scenario
        target, draft = law(), law(schedule)
        services = TimedServices(scenario, runner(target), runner(draft))
        if isinstance(scenario.draft, OneDevice):
            OneDevice.services, OneDevice.beside = services, []
            for worker in (services.verifier, services.drafter):
                worker.info = replace(worker.info, device_id="one", device_share=1.0)
        for module, clock in services.clocks().items():
            monkeypatch.setattr(
                f"{module}.time", SimpleNamespace(monotonic=clock, perf_counter=clock)
            )
        prompts = [[(7 * session + i) % 100 for i in range(16)] for session in range(self.sessions)]
        params = [
            SamplingParams(temperature=temperature, max_tokens=scenario.max_tokens)
        ] * self.sessions
        relays = services.run(prompts, params, max_window=40)
        self.committed = sum(relay.session.counts.committed for relay in relays)
        self.seconds = services.verifier.heard_at
        self.drafted = sum(relay.session.counts.drafted for relay in relays)
        states = [target.states(relay.session.tokens) for relay in relays]
        self._is_right = lambda i, position: draft.agrees(states[i][position - 1], position)

    @property
    def sessions(self) -> int:
        return self.scenario.num_sessions

    @property
    def adaptive(self) -> float:
        """Tokens per second."""
        return self.committed / self.seconds

    @property
    def plain(self) -> float:
        return self._fixed(speculation=False)

    def best_fixed(self) -> float:
        """Of the block lengths and windows in `FIXED`, and of plain decoding."""
        found = [self._fixed(num_speculative_tokens=b, window=w) for b, w in FIXED if w <= 32]
        return max(self.plain, *found)

    def _fixed(self, **setting: object) -> float:
        scenario = replace(self.scenario, **setting)  # type: ignore[arg-type]
        return simulate(scenario, acceptance=self._is_right).tokens_per_second


@pytest.mark.parametrize("round_trip_s", [0.0, 0.02])
@pytest.mark.parametrize("acceptance", [0.0, 0.6, 0.8, 0.9])
def test_adaptive_is_within_a_twentieth_of_the_best_fixed_setting(
    acceptance: float, round_trip_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(*FAST, prompt_length=16, max_tokens=500, verifier_delay_s=round_trip_s / 2)
    race = Race(scenario, AcceptanceSchedule(acceptance), monkeypatch)
    assert race.adaptive >= 0.95 * race.best_fixed()


@pytest.mark.parametrize("acceptance", [0.6, 0.9])
def test_so_it_is_for_several_sessions_together(
    acceptance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(*FAST, prompt_length=16, max_tokens=400, num_sessions=4)
    race = Race(scenario, AcceptanceSchedule(acceptance), monkeypatch)
    assert race.adaptive >= 0.95 * race.best_fixed()


@pytest.mark.parametrize(("sessions", "gain"), [(1, 2.0), (4, 1.25)])
def test_on_one_device_a_session_that_is_alone_takes_turns_and_several_do_not(
    sessions: int, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With others the verifier is never idle, and waiting for it would give up all that is won."""
    scenario = Scenario(
        FAST[0], OneDevice(0.0), prompt_length=16, max_tokens=300, num_sessions=sessions
    )
    race = Race(scenario, AcceptanceSchedule(0.8), monkeypatch)
    assert race.adaptive >= gain * race.plain
    if sessions == 1:
        assert OneDevice.beside
        assert not any(OneDevice.beside), "nor is the first block drafted beside a pass"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("pair", "sessions", "acceptance"),
    [(FAST, 1, 0.0), (SLOW_DRAFTER, 1, 0.9), (COMPUTE_BOUND, 16, 0.9), (COMPUTE_BOUND, 16, 0.0)],
    ids=["useless drafter", "drafter slower than the target", "compute-bound", "both"],
)
def test_speculation_that_cannot_pay_costs_next_to_nothing(
    pair: tuple[PassCost, PassCost],
    sessions: int,
    acceptance: float,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = Scenario(*pair, prompt_length=16, max_tokens=300, num_sessions=sessions)
    race = Race(scenario, AcceptanceSchedule(acceptance), monkeypatch, temperature)
    assert race.adaptive >= 0.97 * race.plain
    assert race.drafted > 0, "it was tried"
    assert race.drafted < race.committed


def test_it_finds_its_way_back_when_drafts_become_good_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0.9, then 0.0 for 150 tokens, then 0.9: as fast as if it had known, but for a start."""
    schedule = AcceptanceSchedule(0.9, ((216, 0.0), (366, 0.9)))
    scenario = Scenario(*FAST, prompt_length=16, max_tokens=600)
    race = Race(scenario, schedule, monkeypatch)
    ideal = (200 + 250) / (4.0 / 0.03) + 150 * 0.03
    assert race.seconds <= 1.1 * ideal
