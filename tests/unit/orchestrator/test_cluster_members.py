"""What a deployment consists of, decided without Ray."""

import pytest

from orchestrator.cluster_members import (
    Member,
    Node,
    Role,
    describe_shortage,
    members_of,
    unused_gpus,
)
from paceline.config import Config, parse_config
from paceline.errors import ConfigError


def config_of(**sections: object) -> Config:
    return parse_config(sections, source="test")


def test_the_default_is_one_of_each_and_the_verifier_comes_first() -> None:
    assert [member.actor_name for member in members_of(Config())] == [
        "paceline-verifier-0",
        "paceline-drafter-0",
        "paceline-orchestrator-0",
    ]


def test_replicas_become_members_with_the_placement_of_their_role() -> None:
    placement = {"replicas": 2, "num_cpus": 3, "num_gpus": 0.5, "resources": {"small_gpu": 1}}
    drafters = [
        member
        for member in members_of(config_of(cluster={"drafter": placement}))
        if member.role is Role.DRAFTER
    ]
    assert [member.label for member in drafters] == ["drafter 0", "drafter 1"]
    assert drafters[1].demand == {"CPU": 3, "GPU": 0.5, "small_gpu": 1}


def test_a_member_that_asks_for_nothing_demands_nothing() -> None:
    assert Member(Role.DRAFTER, 0, num_cpus=0, num_gpus=0, resources={"x": 0}).demand == {}


def test_cuda_without_a_gpu_from_ray_is_refused_by_the_names_of_both_settings() -> None:
    """H05."""
    config = config_of(verifier={"model": {"path": "m", "device": "cuda"}})
    with pytest.raises(ConfigError, match=r"verifier\.model\.device.*cluster\.verifier\.num_gpus"):
        members_of(config)


def test_cuda_with_a_share_of_a_gpu_is_accepted() -> None:
    """H05."""
    config = config_of(
        verifier={"model": {"path": "m", "device": "cuda"}}, cluster={"verifier": {"num_gpus": 0.5}}
    )
    assert members_of(config)[0].num_gpus == 0.5


def test_the_device_of_a_drafter_without_a_model_is_not_looked_at() -> None:
    config = config_of(drafter={"kind": "ngram", "model": {"path": "m", "device": "cuda"}})
    assert len(members_of(config)) == 3


def test_no_verifier_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.verifier\.replicas"):
        members_of(config_of(cluster={"verifier": {"replicas": 0}}))


def test_verifiers_that_run_elsewhere_are_enough() -> None:
    config = config_of(
        cluster={"verifier": {"replicas": 0}}, orchestrator={"verifiers": ["10.0.0.1:50052"]}
    )
    assert {member.role for member in members_of(config)} == {Role.DRAFTER, Role.ORCHESTRATOR}


def test_no_orchestrator_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.orchestrator\.replicas"):
        members_of(config_of(cluster={"orchestrator": {"replicas": 0}}))


def test_a_shortage_tells_needed_and_available_with_every_number() -> None:
    members = [Member(Role.VERIFIER, 0, num_cpus=4, num_gpus=1, resources={"large_gpu": 1})]
    nodes = [Node("10.0.0.1", {"CPU": 8, "large_gpu": 1}, {"CPU": 1.5})]
    message = describe_shortage(members, nodes)
    assert "Needed: verifier 0: CPU 4, GPU 1, large_gpu 1." in message
    assert "Available: node 10.0.0.1: CPU 1.5 of 8, large_gpu 0 of 1" in message


def test_gpus_that_no_model_asks_for_are_mentioned() -> None:
    """H05."""
    gpu_nodes = [Node("10.0.0.1", {"CPU": 8, "GPU": 2}, {}), Node("10.0.0.2", {"CPU": 8}, {})]
    advice = unused_gpus(config_of(drafter={"kind": "ngram"}), gpu_nodes)
    assert advice is not None
    assert "2 GPUs" in advice
    assert "cluster.verifier.num_gpus" in advice
    assert "drafter" not in advice, "prompt lookup has no model"


def test_nothing_is_said_where_gpus_are_reserved_or_absent_or_refused() -> None:
    """H05."""
    gpu_nodes = [Node("10.0.0.1", {"GPU": 1}, {})]
    on_cpu = config_of(verifier={"model": {"path": "m", "device": "cpu"}})
    assert unused_gpus(Config(), [Node("10.0.0.1", {"CPU": 8}, {})]) is None
    reserved = config_of(drafter={"kind": "ngram"}, cluster={"verifier": {"num_gpus": 1}})
    assert unused_gpus(reserved, gpu_nodes) is None
    assert unused_gpus(on_cpu, gpu_nodes) is None
