"""The simulator decides what the real engines and the real relay decide, in the same time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.virtual_time import TimedServices

from paceline.runtime.pass_cost import PassCost
from paceline.runtime.synthetic import AcceptanceSchedule, SyntheticLaw, SyntheticRunner
from paceline.sampling.params import SamplingParams
from paceline.simulation.scenario import Scenario
from paceline.simulation.simulator import simulate

VOCAB = 64
FAST = PassCost(0.03), PassCost(0.003)
COSTLY = PassCost(0.02, 0.001, 0.0005, knee_tokens=6), PassCost(0.002, 0.0001, 0.0002)
UNEVEN = PassCost(0.03), PassCost(0.0031)
COSTLY_UNEVEN = PassCost(0.02003, 0.001, 0.0005, knee_tokens=6), PassCost(0.002, 0.00011, 0.0002)
"""Of one more digit, so that no two things happen in the same moment by way of rounding."""
SLOW_DRAFTER = PassCost(0.01), PassCost(0.013)

SCENARIOS = {
    "defaults": Scenario(*FAST),
    "stop and wait": Scenario(*FAST, window=4),
    "blocks that do not fill the window": Scenario(*FAST, num_speculative_tokens=3, window=7),
    "one token at a time": Scenario(*FAST, num_speculative_tokens=1, window=9),
    "far verifier": Scenario(*FAST, window=20, verifier_delay_s=0.0101),
    "both far": Scenario(*FAST, window=20, verifier_delay_s=0.0071, drafter_delay_s=0.0033),
    "impatient": Scenario(*FAST, verifier_delay_s=0.0101, draft_patience_s=0.0123),
    "slow drafter": Scenario(*SLOW_DRAFTER, draft_patience_s=0.0207),
    "outcomes ahead": Scenario(*UNEVEN, num_outcome_tokens=8),
    "outcomes as long as the window": Scenario(*UNEVEN, window=6, num_outcome_tokens=8),
    "outcomes of one block": Scenario(*UNEVEN, window=16, num_outcome_tokens=4),
    "outcomes for a far verifier": Scenario(
        *UNEVEN, window=20, verifier_delay_s=0.0101, num_outcome_tokens=8
    ),
    "outcomes when both are far": Scenario(
        *UNEVEN, window=20, verifier_delay_s=0.0071, drafter_delay_s=0.0033, num_outcome_tokens=5
    ),
    "outcomes of the impatient": Scenario(
        *UNEVEN, verifier_delay_s=0.0101, draft_patience_s=0.0123, num_outcome_tokens=8
    ),
    "outcomes of a slow drafter": Scenario(
        *SLOW_DRAFTER, draft_patience_s=0.0207, num_outcome_tokens=3
    ),
    "outcomes that cost something": Scenario(*COSTLY_UNEVEN, num_outcome_tokens=6, num_sessions=3),
    "outcomes longer than a block": Scenario(
        *UNEVEN, num_speculative_tokens=1, window=4, num_outcome_tokens=8
    ),
    "few drafts a pass": Scenario(*FAST, window=24, max_drafts_per_pass=3),
    "no speculation": Scenario(*FAST, speculation=False),
    "long prompt in chunks": Scenario(*COSTLY, prompt_length=100, max_batch_tokens=32),
    "many sessions": Scenario(*COSTLY, num_sessions=9, verifier_delay_s=0.0031),
    "many sessions under a budget": Scenario(
        *COSTLY, num_sessions=9, max_batch_tokens=16, prompt_length=21
    ),
}


def pair(
    acceptance: float, second_guess: float = 0.0, third_guess: float = 0.0
) -> tuple[SyntheticLaw, SyntheticLaw]:
    target = SyntheticLaw(seed=3, num_plain_ids=VOCAB, vocab_size=VOCAB)
    draft = SyntheticLaw(
        seed=3,
        num_plain_ids=VOCAB,
        vocab_size=VOCAB,
        acceptance=AcceptanceSchedule(acceptance),
        second_guess=second_guess,
        third_guess=third_guess,
    )
    return target, draft


def runner(law: SyntheticLaw) -> SyntheticRunner:
    return SyntheticRunner(law, context_length=10_000, num_pages=4096, page_size=4)


def prompts_of(scenario: Scenario) -> list[list[int]]:
    return [
        [(7 * session + position) % VOCAB for position in range(scenario.prompt_length)]
        for session in range(scenario.num_sessions)
    ]


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("name", SCENARIOS)
def test_greedy_sessions_take_the_same_course(name: str, acceptance: float) -> None:
    """Every pass, verdict and draft, and the time of each."""
    scenario = replace(SCENARIOS[name], max_tokens=40)
    target, draft = pair(acceptance, second_guess=0.5, third_guess=0.5)
    services = TimedServices(scenario, runner(target), runner(draft))
    params = [SamplingParams(temperature=0, max_tokens=40)] * scenario.num_sessions
    relays = services.run(prompts_of(scenario), params)
    states = [target.states(relay.session.tokens) for relay in relays]

    result = simulate(
        scenario,
        acceptance=lambda session, position: draft.agrees(states[session][position - 1], position),
        right_other=lambda session, position: draft.right_other(
            states[session][position - 1], position
        ),
    )

    counts = [relay.session.counts for relay in relays]
    assert result.tokens == sum(count.committed for count in counts)
    assert result.verdicts == sum(count.passes for count in counts)
    assert result.judged == sum(count.judged for count in counts)
    assert result.accepted == sum(count.accepted for count in counts)
    assert result.drafted == sum(count.drafted for count in counts)
    assert result.passes == services.engine.counters["passes"]
    assert result.verifier_busy_s == pytest.approx(services.verifier.busy_s)
    assert result.seconds == pytest.approx(services.verifier.heard_at)


@pytest.mark.parametrize("name", ["defaults", "far verifier", "stop and wait"])
def test_sampled_sessions_take_as_long(name: str) -> None:
    """The draws differ, so it can only be so on average."""
    scenario = replace(SCENARIOS[name], max_tokens=1000, num_sessions=6, is_deterministic=False)
    target, draft = pair(0.8)
    services = TimedServices(scenario, runner(target), runner(draft))
    params = [SamplingParams(max_tokens=1000, seed=seed) for seed in range(6)]
    relays = services.run(prompts_of(scenario), params)

    result = simulate(scenario, acceptance=0.8)

    counts = [relay.session.counts for relay in relays]
    judged, accepted = sum(c.judged for c in counts), sum(c.accepted for c in counts)
    assert accepted / judged == pytest.approx(result.accepted / result.judged, abs=0.04)
    verdicts = sum(count.passes for count in counts)
    assert verdicts == pytest.approx(result.verdicts, rel=0.05)
