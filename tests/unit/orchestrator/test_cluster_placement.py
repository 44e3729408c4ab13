"""Which node takes which member."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cluster_members import Member, Node, Role
from orchestrator.cluster_placement import assign

small_amounts = st.integers(0, 4)


def member(index: int, role: Role = Role.VERIFIER, **demand: float) -> Member:
    strategy = str(demand.pop("strategy", "pack"))
    cpus, gpus = demand.pop("CPU", 0), demand.pop("GPU", 0)
    return Member(role, index, num_cpus=cpus, num_gpus=gpus, resources=demand, strategy=strategy)


def spread(index: int, role: Role = Role.VERIFIER, **demand: float) -> Member:
    return Member(role, index, num_cpus=1, num_gpus=0, resources=demand, strategy="spread")


def node(name: str, **total: float) -> Node:
    return Node("10.0.0.1", total, dict(total), node_id=name)


def where(members: list[Member], nodes: list[Node], **beside: str) -> str | None:
    """Node names of the members in order; `beside` has other verifiers by number: `m7="b"`."""
    others = {member(int(name[1:])): at for name, at in beside.items()}
    found = assign(members, nodes, others)
    return None if found is None else " ".join(found[one].node_id for one in members)


def test_packed_replicas_share_a_node_while_it_has_room() -> None:
    nodes = [node("a", CPU=2), node("b", CPU=2)]
    members = [member(index, CPU=1) for index in range(3)]
    assert where(members, nodes) == "a a b"


def test_spread_replicas_go_where_the_fewest_are() -> None:
    nodes = [node("a", CPU=8), node("b", CPU=4), node("c", CPU=2)]
    assert where([spread(index) for index in range(5)], nodes) == "a b c a b"
    assert where([spread(0)], nodes, m7="a", m8="b") == "c"
    assert where([spread(0, Role.DRAFTER)], nodes, m7="a") == "a", "other roles do not count"


def test_a_packed_member_joins_its_like() -> None:
    nodes = [node("a", CPU=8), node("b", CPU=8)]
    assert where([member(0, CPU=1)], nodes, m7="b") == "b"
    assert where([member(0, Role.ORCHESTRATOR, CPU=1)], nodes, m7="b") == "b"


@pytest.mark.parametrize("resource", ["GPU", "large_gpu"])
def test_who_needs_no_gpu_leaves_the_node_with_one_to_others(resource: str) -> None:
    nodes = [node("a", CPU=8, **{resource: 1}), node("b", CPU=1)]
    assert where([member(0, CPU=1)], nodes, m7="a") == "b"
    assert where([member(0, CPU=2)], nodes) == "a", "if it fits nowhere else"
    assert where([member(0, CPU=1, **{resource: 1})], nodes) == "a"


def test_a_mark_of_an_accelerator_is_asked_for_by_name_and_keeps_nobody_away() -> None:
    h100 = Member(Role.VERIFIER, 0, num_cpus=1, num_gpus=0, accelerator_type="H100")
    nodes = [node("a", CPU=4), node("b", CPU=2, **{"accelerator_type:H100": 1})]
    assert where([h100], nodes) == "b"
    assert where([h100, member(1, CPU=4)], nodes) == "b a"
    assert where([h100], nodes[:1]) is None
    assert where([member(1, CPU=1)], [nodes[1], node("c", CPU=2)]) == "b"


def test_shares_add_up_exactly() -> None:
    """0.1 + 0.1 + … is not 1 in floating point; Ray counts in parts of 10,000."""
    tenths = [member(index, GPU=0.1) for index in range(10)]
    assert where(tenths, [node("a", GPU=1)]) == " ".join("a" * 10)
    assert where([*tenths, member(10, GPU=0.1)], [node("a", GPU=1)]) is None


def test_a_choice_that_leaves_another_without_a_place_is_taken_back() -> None:
    nodes = [node("a", CPU=2, x=1), node("b", CPU=3)]
    assert where([member(0, CPU=2), member(1, CPU=2, x=1)], nodes) == "b a"
    nodes = [node("a", CPU=4), node("b", CPU=3)]
    twos, three = [member(index, CPU=2) for index in range(2)], member(2, CPU=3)
    assert where([*twos, three], nodes) == "a a b"


def test_what_fits_nowhere_is_given_up_in_a_bounded_time() -> None:
    nodes = [node(f"n{index}", CPU=64) for index in range(20)]
    members = [member(index, CPU=1) for index in range(64)] + [member(64, GPU=1)]
    assert where(members, nodes) is None
    crowd = [member(index, CPU=33) for index in range(21)]
    assert where(crowd, nodes) is None


demands = st.fixed_dictionaries({"CPU": small_amounts, "GPU": st.integers(0, 1)})


@settings(derandomize=True, max_examples=200)
@given(
    st.lists(st.tuples(demands, st.sampled_from(["pack", "spread"])), max_size=4),
    st.lists(demands, max_size=3),
)
def test_an_assignment_is_found_exactly_if_there_is_one(
    wanted: list[tuple[dict[str, int], str]], totals: list[dict[str, int]]
) -> None:
    members = [
        Member(Role.DRAFTER, i, num_cpus=d["CPU"], num_gpus=d["GPU"], strategy=strategy)
        for i, (d, strategy) in enumerate(wanted)
    ]
    nodes = [node(str(index), **total) for index, total in enumerate(totals)]

    def is_possible(choice: tuple[Node, ...]) -> bool:
        return all(
            sum(m.demand.get(name, 0) for m, at in zip(members, choice, strict=True) if at is one)
            <= amount
            for one in nodes
            for name, amount in one.available.items()
        )

    found = assign(members, nodes, {})
    possible = any(map(is_possible, product(nodes, repeat=len(members))))
    assert (found is not None) == possible
    if found is not None:
        assert is_possible(tuple(found[one] for one in members))
