"""What has to be done to get from how a deployment is to how it is wanted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cluster_members import Member, Role, member_of
from orchestrator.cluster_scaling import (
    changes,
    check_replicas,
    other_differences,
    replicas_of,
)
from paceline.config import MAX_REPLICAS, Config, parse_config
from paceline.errors import InvalidArgumentError

CONFIG = parse_config(
    {"cluster": {"drafter": {"replicas": 3, "num_cpus": 2, "strategy": "spread"}}}, source="test"
)

members = st.sets(st.tuples(st.sampled_from(Role), st.integers(0, 5))).map(
    lambda found: [member_of(CONFIG, role, index) for role, index in sorted(found, key=str)]
)
desires = st.dictionaries(st.sampled_from(Role), st.integers(0, 8))


def labels(found: tuple[Member, ...]) -> list[str]:
    return [one.label for one in found]


@settings(derandomize=True)
@given(desires, members)
def test_carried_out_the_changes_give_what_is_wanted_and_no_more(
    desired: dict[Role, int], actual: list[Member]
) -> None:
    todo = changes(CONFIG, desired, actual)
    after = (set(actual) | set(todo.add)) - set(todo.remove)
    assert set(todo.remove) <= set(actual)
    assert not set(todo.add) & set(actual)
    assert len(set(todo.add)) == len(todo.add)
    for role in Role:
        before = sum(one.role is role for one in actual)
        num = sum(one.role is role for one in after)
        assert num == desired.get(role, before)
        changed = [one for one in (*todo.add, *todo.remove) if one.role is role]
        assert len(changed) == abs(num - before), "the fewest changes"
    assert changes(CONFIG, desired, after).add == changes(CONFIG, desired, after).remove == ()


@settings(derandomize=True)
@given(desires, members)
def test_the_lowest_indexes_come_first_and_go_last(
    desired: dict[Role, int], actual: list[Member]
) -> None:
    todo = changes(CONFIG, desired, actual)
    for role in Role:
        there = {one.index for one in actual if one.role is role}
        added = {one.index for one in todo.add if one.role is role}
        removed = {one.index for one in todo.remove if one.role is role}
        assert all(index in there | added for new in added for index in range(new))
        assert all(left < gone for left in there - removed for gone in removed)


def test_new_members_have_the_placement_of_their_role() -> None:
    (one,) = changes(CONFIG, {Role.DRAFTER: 1}, []).add
    assert (one.label, one.num_cpus, one.strategy) == ("drafter 0", 2, "spread")


def test_a_gap_is_filled_and_workers_come_before_orchestrators() -> None:
    actual = [member_of(CONFIG, Role.DRAFTER, index) for index in (1, 2)]
    todo = changes(CONFIG, {Role.ORCHESTRATOR: 1, Role.DRAFTER: 4, Role.VERIFIER: 1}, actual)
    assert labels(todo.add) == ["verifier 0", "drafter 0", "drafter 3", "orchestrator 0"]
    assert labels(changes(CONFIG, {Role.DRAFTER: 0}, actual).remove) == ["drafter 2", "drafter 1"]


@pytest.mark.parametrize(
    ("role", "replicas", "limits"),
    [
        (Role.VERIFIER, 0, "0 is outside 1 to 64"),
        (Role.ORCHESTRATOR, 0, "0 is outside 1 to 64"),
        (Role.DRAFTER, -1, "-1 is outside 0 to 64"),
        (Role.DRAFTER, MAX_REPLICAS + 1, "65 is outside 0 to 64"),
    ],
)
def test_a_wish_outside_the_limits_is_refused_with_them(
    role: Role, replicas: int, limits: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^cluster\.{role.value}\.replicas: {limits}"):
        check_replicas(Config(), {role: replicas})


def test_verifiers_that_run_elsewhere_are_enough() -> None:
    elsewhere = parse_config({"orchestrator": {"verifiers": ["10.0.0.1:50052"]}}, source="test")
    check_replicas(elsewhere, {Role.VERIFIER: 0})
    check_replicas(Config(), {Role.DRAFTER: 0})


def test_what_a_reload_does_not_apply_is_named() -> None:
    wanted = parse_config(
        {
            "verifier": {"model": {"path": "another"}},
            "drafter": {"kind": "ngram"},
            "orchestrator": {"max_sessions": 7},
            "cluster": {"drafter": {"replicas": 9, "num_cpus": 2, "strategy": "pack"}},
        },
        source="test",
    )
    assert replicas_of(wanted) == {Role.DRAFTER: 9, Role.VERIFIER: 1, Role.ORCHESTRATOR: 1}
    assert other_differences(CONFIG, wanted) == (
        "cluster.drafter.strategy",
        "drafter.kind",
        "drafter.model",
        "orchestrator.max_sessions",
        "verifier.model.path",
    )
    assert other_differences(CONFIG, CONFIG) == ()
