"""The Kubernetes manifests: valid by Kubernetes' and Ray's own schemas, closed, and big enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import ray
import yaml
from pydantic import BaseModel, ConfigDict, Field
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from support.deploy_files import (
    CONFIG_IN_CONTAINER,
    DEPLOY,
    check,
    container_of,
    documents,
    generated_ray_start,
    is_ours,
    pod_groups,
    ray_cluster,
    resources_flag,
    simple_commands,
)

from orchestrator.cluster_members import Role, members_of
from paceline.config import Config, load_config, parse_config

KUBERNETES = "1.34"
OWN_KINDS = ("RayCluster", "ServiceMonitor")
ROLE_OF_GROUP = {"orchestrator": "orchestrator", "small-gpu": "drafter", "large-gpu": "verifier"}


def manifests() -> Iterator[Any]:
    for path in sorted((DEPLOY / "kuberay").glob("*.yaml")):
        yield from documents(path)


def one(kind: str, name: str = "paceline") -> Any:
    (found,) = [m for m in manifests() if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


def config() -> Config:
    data = one("ConfigMap", "paceline-config")["data"]
    assert list(data) == [CONFIG_IN_CONTAINER.rpartition("/")[2]]
    return parse_config(yaml.safe_load(data["paceline.yaml"]), source="ConfigMap")


class Part(BaseModel):
    """The subset of the custom resources that is used here; other keys are mistakes."""

    model_config = ConfigDict(extra="forbid")


class AuthOptions(Part):
    mode: str = Field(pattern="^token$")


class AutoscalerOptions(Part):
    upscalingMode: str = Field(pattern="^(Default|Conservative|Aggressive)$")  # noqa: N815
    idleTimeoutSeconds: int = Field(ge=1)  # noqa: N815
    resources: dict[str, Any]
    securityContext: dict[str, Any]  # noqa: N815


class HeadGroup(Part):
    serviceType: str = Field(pattern="^ClusterIP$")  # noqa: N815
    rayStartParams: dict[str, str]  # noqa: N815
    template: dict[str, Any]


class WorkerGroup(Part):
    groupName: str  # noqa: N815
    replicas: int = Field(ge=1)
    minReplicas: int = Field(ge=1)  # noqa: N815
    maxReplicas: int  # noqa: N815
    rayStartParams: dict[str, str]  # noqa: N815
    template: dict[str, Any]


class RayClusterSpec(Part):
    rayVersion: str  # noqa: N815
    authOptions: AuthOptions  # noqa: N815
    enableInTreeAutoscaling: bool  # noqa: N815
    autoscalerOptions: AutoscalerOptions  # noqa: N815
    headGroupSpec: HeadGroup  # noqa: N815
    workerGroupSpecs: list[WorkerGroup]  # noqa: N815


class Endpoint(Part):
    port: str
    path: str
    interval: str


class ServiceMonitorSpec(Part):
    selector: dict[str, dict[str, str]]
    podTargetLabels: list[str]  # noqa: N815
    endpoints: list[Endpoint]


def pod_of(template: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **template}


def test_kubernetes_accepts_every_manifest_of_its_own_kinds() -> None:
    checked = [m for m in manifests() if m["kind"] not in OWN_KINDS]
    for manifest in checked:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    assert {m["kind"] for m in checked} == {
        "Namespace",
        "ConfigMap",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "PersistentVolumeClaim",
    }


@pytest.mark.parametrize("name", pod_groups())
def test_kubernetes_accepts_the_pods_of_every_group(name: str) -> None:
    template = pod_groups()[name]["template"]
    kubernetes_validate.validate(pod_of(template), KUBERNETES, strict=True)


def test_the_schemas_do_refuse() -> None:
    template = pod_groups()["head"]["template"]
    template["spec"]["containers"][0]["imagePullPolicyy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod_of(template), KUBERNETES, strict=True)


def test_the_custom_resources_have_known_keys_only() -> None:
    spec = RayClusterSpec.model_validate(ray_cluster()["spec"])
    assert ray_cluster()["apiVersion"] == "ray.io/v1"
    for group in spec.workerGroupSpecs:
        assert group.minReplicas <= group.replicas <= group.maxReplicas <= 8
    ServiceMonitorSpec.model_validate(one("ServiceMonitor")["spec"])


def test_rays_autoscaler_reads_the_groups_and_they_hold_the_configuration() -> None:
    """By the function that the autoscaler itself uses, which validates its result."""
    types = _derive_autoscaling_config_from_ray_cr(ray_cluster())["available_node_types"]
    rooms = [
        dict(types[name]["resources"])
        for name, group in pod_groups().items()
        if name != "head"
        for _ in range(group["replicas"])
    ]
    members = members_of(config())
    for member in members:
        fitting = [
            room
            for room in rooms
            if all(room.get(name, 0) >= amount for name, amount in member.demand.items())
        ]
        assert fitting, member
        for name, amount in member.demand.items():
            fitting[0][name] -= amount
    # and no pod is there for nothing
    assert len(rooms) == len(members)


def test_the_version_is_that_of_the_image() -> None:
    assert ray_cluster()["spec"]["rayVersion"] == ray.__version__


@pytest.mark.parametrize("name", pod_groups())
def test_what_a_pod_runs_is_understood(name: str) -> None:
    assert ray_cluster()["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    group = pod_groups()[name]
    container = container_of(group)
    assert container["command"] == ["/bin/bash", "-c"]
    (script,) = container["args"]
    start = generated_ray_start(name, group)
    for form in ('eval "$KUBERAY_GEN_RAY_START_CMD"', 'eval "exec $KUBERAY_GEN_RAY_START_CMD"'):
        script = script.replace(form, start)
    assert "KUBERAY" not in script
    commands = simple_commands(script)
    for command in commands:
        if is_ours(command):
            check(command)
    started = [command for command in commands if command[:2] == ["ray", "start"]]
    assert len(started) == 1
    assert ("--head" in started[0]) == (name == "head")
    ups = [command for command in commands if command[:2] == ["paceline", "up"]]
    assert len(ups) == (name == "head")


@pytest.mark.parametrize("name", pod_groups())
def test_a_group_offers_only_its_own_resource(name: str) -> None:
    (start,) = simple_commands(generated_ray_start(name, pod_groups()[name]))
    wanted = {"orchestrator": "orchestrator", "small-gpu": "small_gpu", "large-gpu": "large_gpu"}
    assert list(resources_flag(start)) == ([wanted[name]] if name in wanted else [])


@pytest.mark.parametrize("name", ROLE_OF_GROUP)
def test_a_pod_is_ready_when_its_service_is_and_alive_while_ray_is(name: str) -> None:
    container = container_of(pod_groups()[name])
    command = container["readinessProbe"]["exec"]["command"]
    check(command)
    assert command[3] == ROLE_OF_GROUP[name]
    assert command[-1] == CONFIG_IN_CONTAINER
    assert container["readinessProbe"]["timeoutSeconds"] > 3
    assert container["livenessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365}


@pytest.mark.parametrize("name", ROLE_OF_GROUP)
def test_ports_are_those_of_the_configuration_and_the_code(name: str) -> None:
    ports = {
        port["name"]: port["containerPort"] for port in container_of(pod_groups()[name])["ports"]
    }
    role = ROLE_OF_GROUP[name]
    default = getattr(Config(), role).listen.rpartition(":")[2]
    assert getattr(config(), role).listen == f"0.0.0.0:{default}"
    metrics = config().telemetry.metrics.listen
    assert metrics == "0.0.0.0:9464"
    assert ports == {"grpc": int(default), "app-metrics": 9464}


@pytest.mark.parametrize("name", pod_groups())
def test_pods_are_unprivileged_bounded_and_pinned(name: str) -> None:
    """What the namespace's policy `restricted` demands, and a little more."""
    pod = pod_groups()[name]["template"]["spec"]
    container = container_of(pod_groups()[name])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    autoscaler = ray_cluster()["spec"]["autoscalerOptions"]["securityContext"]
    for context in (container["securityContext"], autoscaler):
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["runAsNonRoot"] is True
    labels = one("Namespace")["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert set(container["resources"]) == {"requests", "limits"}
    assert container["image"].endswith(":0.1.0-cuda")


@pytest.mark.parametrize("name", ["small-gpu", "large-gpu"])
def test_gpu_groups_ask_for_a_gpu_of_a_kind(name: str) -> None:
    group = pod_groups()[name]
    assert container_of(group)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    pod = group["template"]["spec"]
    assert "nvidia.com/gpu.product" in pod["nodeSelector"]
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"


@pytest.mark.parametrize("name", pod_groups())
def test_secrets_are_referred_to_and_lie_where_the_configuration_looks(name: str) -> None:
    pod = pod_groups()[name]["template"]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "paceline"]
    paths: set[str] = set()
    for source in volume["projected"]["sources"]:
        if "secret" in source:
            paths |= {item["path"] for item in source["secret"]["items"]}
    (mount,) = [
        m for m in container_of(pod_groups()[name])["volumeMounts"] if m["name"] == "paceline"
    ]
    security = config().security
    files = (
        security.tls_cert_file,
        security.tls_key_file,
        security.tls_ca_file,
        security.token_file,
    )
    assert {str(path) for path in files} == {f"{mount['mountPath']}/{path}" for path in paths}
    assert mount["readOnly"] is True
    assert mount["mountPath"] == CONFIG_IN_CONTAINER.rpartition("/")[0]


def test_no_manifest_holds_a_secret() -> None:
    assert all(manifest["kind"] != "Secret" for manifest in manifests())


@pytest.mark.parametrize("name", pod_groups())
def test_volumes_are_mounted_and_claims_exist(name: str) -> None:
    pod = pod_groups()[name]["template"]["spec"]
    mounted = {mount["name"] for mount in container_of(pod_groups()[name])["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    for claim in claims:
        assert one("PersistentVolumeClaim", claim["claimName"])
    (config_map,) = [
        source["configMap"]["name"]
        for volume in pod["volumes"]
        if "projected" in volume
        for source in volume["projected"]["sources"]
        if "configMap" in source
    ]
    assert one("ConfigMap", config_map)


def labels_of(name: str) -> dict[str, str]:
    """What KubeRay writes on a group's pods, and what the template adds."""
    group = "headgroup" if name == "head" else name
    return {
        "ray.io/cluster": ray_cluster()["metadata"]["name"],
        "ray.io/group": group,
        "ray.io/node-type": "head" if name == "head" else "worker",
        **pod_groups()[name]["template"]["metadata"]["labels"],
    }


def selected(selector: dict[str, str]) -> set[str]:
    return {name for name in pod_groups() if selector.items() <= labels_of(name).items()}


def test_clients_reach_the_orchestrators_and_nothing_else() -> None:
    service = one("Service")["spec"]
    assert selected(service["selector"]) == {"orchestrator"}
    (port,) = service["ports"]
    assert port["port"] == 50050
    policy = one("NetworkPolicy")["spec"]
    assert selected(policy["podSelector"]["matchLabels"]) == set(pod_groups())
    inside, clients, prometheus = policy["ingress"]
    assert inside == {"from": [{"podSelector": policy["podSelector"]}]}
    assert [p["port"] for p in clients["ports"]] == [50050]
    assert [p["port"] for p in prometheus["ports"]] == [9464]
    assert all(rule["from"] for rule in policy["ingress"])


def test_prometheus_scrapes_every_service() -> None:
    monitor = one("ServiceMonitor")["spec"]
    service = one("Service", "paceline-metrics")
    wanted = monitor["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    # the clients' Service has no such port and must not be scraped
    assert not wanted.items() <= one("Service")["metadata"]["labels"].items()
    assert selected(service["spec"]["selector"]) == set(ROLE_OF_GROUP)
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_the_last_pod_of_each_kind_is_not_drained() -> None:
    budgets = [m for m in manifests() if m["kind"] == "PodDisruptionBudget"]
    kinds = [selected(budget["spec"]["selector"]["matchLabels"]) for budget in budgets]
    assert sorted(kinds, key=sorted) == sorted([{name} for name in pod_groups()], key=sorted)
    # all that Kubernetes counts for pods of a custom resource
    assert all(budget["spec"]["minAvailable"] == 1 for budget in budgets)


def test_it_is_the_configuration_of_several_machines_with_a_collector_and_more_orchestrators() -> (
    None
):
    there = load_config(DEPLOY / "config" / "cluster.yaml")
    here = config()
    assert here.drafter == there.drafter
    assert here.verifier == there.verifier
    assert here.security == there.security
    assert here.cluster.drafter == there.cluster.drafter
    assert here.telemetry.traces.endpoint is not None
    collector = f"http://jaeger-collector.monitoring.svc:{4317}"
    assert here.telemetry.traces.endpoint == collector
    egress = one("NetworkPolicy")["spec"]["egress"]
    assert 4317 in {port["port"] for rule in egress for port in rule.get("ports", ())}
    assert {member.role for member in members_of(here)} == set(Role)


def test_everything_lives_in_the_namespace_that_comes_first() -> None:
    first = sorted((DEPLOY / "kuberay").glob("*.yaml"))[0]
    (namespace,) = documents(first)
    assert namespace["kind"] == "Namespace"
    for manifest in manifests():
        if manifest["kind"] != "Namespace":
            assert manifest["metadata"]["namespace"] == namespace["metadata"]["name"]
