"""Which node takes which member: what each needs against what is free. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.cluster_members import Member, Node, is_mark

GRAIN = 10_000
"""Ray counts resources in units of 1/10,000."""
MAX_STEPS = 5_000
"""Choices that are tried before an assignment is given up; a greedy one needs one a member."""


def assign(
    members: Sequence[Member], nodes: Sequence[Node], beside: Mapping[Member, str]
) -> dict[Member, Node] | None:
    """A node for every member, or None if they do not all fit.

    `beside` says where the deployment's other members are, by node id. `pack` prefers nodes that
    it uses already, but first of all nodes without things that the member has no use for (a
    service without a GPU does not take up a GPU node); `spread` prefers the nodes with the fewest
    members of the same role. The members that fit on the fewest nodes choose first, and a choice
    that leaves another member without a place is taken back.
    """
    search = _Search(nodes, beside)
    order = sorted(members, key=lambda member: sum(_fits(member, node) for node in nodes))
    return search.chosen if search.place(order) else None


class _Search:
    """Depth first, the preferred node first."""

    def __init__(self, nodes: Sequence[Node], beside: Mapping[Member, str]) -> None:
        self.chosen: dict[Member, Node] = {}
        self._nodes = nodes
        self._where = dict(beside)
        self._free = {node.node_id: _units(node.available) for node in nodes}
        self._steps = 0

    def place(self, members: Sequence[Member]) -> bool:
        if not members:
            return True
        member, demand = members[0], _units(members[0].demand)
        fitting = [
            node
            for node in self._nodes
            if all(self._free[node.node_id].get(name, 0) >= units for name, units in demand.items())
        ]
        for node in sorted(fitting, key=lambda node: self._cost(member, node)):
            self._steps += 1
            if self._steps > MAX_STEPS:
                return False
            self._take(node, demand, 1)
            self.chosen[member], self._where[member] = node, node.node_id
            if self.place(members[1:]):
                return True
            del self.chosen[member], self._where[member]
            self._take(node, demand, -1)
        return False

    def _take(self, node: Node, demand: Mapping[str, int], sign: int) -> None:
        free = self._free[node.node_id]
        for name, units in demand.items():
            free[name] -= sign * units

    def _cost(self, member: Member, node: Node) -> tuple[int, ...]:
        """What speaks against a node, the weightiest first."""
        here = [other for other, where in self._where.items() if where == node.node_id]
        same_role = sum(other.role is member.role for other in here)
        unused = sum(
            amount > 0 and name != "CPU" and name not in member.demand and not is_mark(name)
            for name, amount in node.total.items()
        )
        free_cpus = self._free[node.node_id].get("CPU", 0)
        if member.strategy == "spread":
            return same_role, unused, -free_cpus
        return unused, -same_role, -len(here), free_cpus


def _fits(member: Member, node: Node) -> bool:
    available = _units(node.available)
    return all(available.get(name, 0) >= units for name, units in _units(member.demand).items())


def _units(amounts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(amount * GRAIN) for name, amount in amounts.items()}
