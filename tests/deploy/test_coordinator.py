"""The chart's coordinator: off by default, without rights on the node, and with exactly the rules and names it needs.

A real coordinator and a real agent, with tokens of the chart's accounts, beside the simulated cluster: their requests
are compared with the roles, and each write passes the chart's admission policies.
"""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from typing import Any

import pytest
import yaml

from deploy.helm import HelmRefusedError, lint, manifests, one
from drabridge.config.loader import load
from drabridge.kube.claim_hints import LABEL, hints_name, hints_object, lock_name
from drabridge.sim.apiserver import admission
from drabridge.sim.apiserver.auth import User
from drabridge.sim.apiserver.kinds import Resource
from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.deploy.policy import Request, refusals
from tests.deploy.policy_types import complaints
from tests.deploy.renders import VERSIONS
from tests.support.agent_on_cluster import BOTH_LANES, CLASS, claim_pod, devices_in_slices
from tests.support.agent_process import DRIVER, AgentProcess
from tests.support.coordinators import NAMESPACE, CoordinatorProcess, hinted
from tests.support.waiting import short_directory, until

Json = dict[str, Any]
Rule = tuple[str, str, str]
ON: Json = {"config": {"driver": DRIVER}, "coordinator": {"enabled": True}}
OBJECTS = manifests(ON, namespace=NAMESPACE)
NAME = "drabridge-coordinator"
ACCOUNT, AGENT = (f"system:serviceaccount:{NAMESPACE}:{name}" for name in (NAME, "drabridge"))
POLICIES = [obj for obj in OBJECTS if obj["kind"] == "ValidatingAdmissionPolicy"]
BY_APPLY: set[Rule] = {("", "configmaps", "create"), ("", "configmaps", "delete")}
"""Rules without a request here: a PATCH that makes an object asks for create; empty objects go after minutes."""


def of(kind: str, name: str = NAME) -> Json:
    (found,) = (obj for obj in OBJECTS if (obj["kind"], obj["metadata"]["name"]) == (kind, name))
    return found


def granted(name: str) -> set[Rule]:
    return {
        (group, resource, verb)
        for kind in ("ClusterRole", "Role")
        for rule in of(kind, name)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_it_is_off_by_default_and_the_linter_has_no_complaint_when_it_is_on() -> None:
    assert not [obj for obj in manifests() if "coordinator" in obj["metadata"]["name"]]
    assert {obj["kind"] for obj in manifests()}.isdisjoint({"Deployment", "Role", "PodDisruptionBudget"})
    assert lint(ON) == []
    legacy = {**ON, "config": {"dra": {"enabled": False}}}
    assert not [obj for obj in manifests(legacy) if obj["kind"] == "Deployment"]


def test_two_pods_without_rights_on_the_node_on_two_nodes() -> None:
    deployment = one(OBJECTS, "Deployment")["spec"]
    spec, labels = deployment["template"]["spec"], deployment["template"]["metadata"]["labels"]
    (container,) = spec["containers"]
    assert deployment["replicas"] == 2
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec.keys().isdisjoint({"volumes", "hostNetwork", "hostPID"})
    (term,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    selectors = [
        deployment["selector"],
        term["podAffinityTerm"]["labelSelector"],
        one(OBJECTS, "PodDisruptionBudget")["spec"]["selector"],
        of("NetworkPolicy")["spec"]["podSelector"],
    ]
    assert [selector["matchLabels"] for selector in selectors] == [labels] * 4
    agents = one(OBJECTS, "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert not agents.items() <= labels.items(), "a DaemonSet would take them for its own"
    assert one(OBJECTS, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_nobody_but_scrapers_calls_it_and_it_calls_the_api_server_alone() -> None:
    policy = of("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert "ingress" not in policy
    limited = manifests({**ON, "networkPolicy": {"apiServerPorts": [6443]}})
    specs = [obj["spec"] for obj in limited if obj["kind"] == "NetworkPolicy"]
    assert [spec["egress"] for spec in specs] == [[{"ports": [{"protocol": "TCP", "port": 6443}]}]] * 2
    scrapers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    scraped = manifests({**ON, "networkPolicy": {"scrapers": scrapers}})
    (rule,) = next(obj for obj in scraped if (obj["kind"], obj["metadata"]["name"]) == ("NetworkPolicy", NAME))["spec"][
        "ingress"
    ]
    assert rule == {"from": scrapers, "ports": [{"protocol": "TCP", "port": "http"}]}


def test_it_is_probed_and_scraped_where_it_listens() -> None:
    values = {**ON, "http": {"port": 9555}, "podMonitor": {"enabled": True, "labels": {"release": "prom"}}}
    values["networkPolicy"] = {"scrapers": [{"podSelector": {}}]}
    objects = manifests(values)
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "--listen=:9555" in container["args"]
    assert container["ports"] == [{"name": "http", "containerPort": 9555}]
    paths = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert paths == {
        "livenessProbe": {"path": "/healthz", "port": "http"},
        "readinessProbe": {"path": "/readyz", "port": "http"},
    }
    monitors = {obj["metadata"]["name"]: obj for obj in objects if obj["kind"] == "PodMonitor"}
    assert monitors.keys() == {NAME, "drabridge"}
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert monitors[NAME]["spec"]["selector"]["matchLabels"] == labels
    assert monitors[NAME]["spec"]["podMetricsEndpoints"] == [{"path": "/metrics", "port": "http", "interval": "30s"}]
    assert monitors[NAME]["metadata"]["labels"]["release"] == "prom"
    assert not [obj for obj in OBJECTS if obj["kind"] == "PodMonitor"]


def test_scrapers_are_its_own_where_agents_are_on_the_hosts_network() -> None:
    monitored = {"podMonitor": {"enabled": True}, "http": {"onNodeAddress": True}}
    values = {**ON, **monitored, "config": {**ON["config"], "udevEvents": "udev"}}
    with pytest.raises(HelmRefusedError, match="the coordinator's NetworkPolicy lets nobody read metrics"):
        manifests(values)
    objects = manifests({**values, "networkPolicy": {"scrapers": [{"podSelector": {}}]}})
    assert [obj["metadata"]["name"] for obj in objects if obj["kind"] == "NetworkPolicy"] == [NAME]


def test_agents_are_told_where_it_is() -> None:
    for objects, namespace in ((OBJECTS, NAMESPACE), (manifests(), "")):
        (text,) = (obj["data"]["config.yaml"] for obj in objects if obj["kind"] == "ConfigMap")
        assert load(text).dra.leases.coordinator == namespace
    kept = manifests({**ON, "config": {"dra": {"leases": {"maxDevices": 7}}}}, namespace="hw")
    (text,) = (obj["data"]["config.yaml"] for obj in kept if obj["kind"] == "ConfigMap")
    assert yaml.safe_load(text)["dra"] == {"leases": {"maxDevices": 7, "coordinator": "hw"}}


def object_of(name: str, namespace: str = NAMESPACE) -> Json:
    return {"metadata": {"name": name, "namespace": namespace}}


def hints(driver: str, pool: str, namespace: str = NAMESPACE) -> Json:
    obj = hints_object(driver, pool, "[]")
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


@pytest.mark.parametrize(
    ("resource", "obj", "allowed"),
    [
        ("configmaps", hints(DRIVER, "node-a"), True),
        ("configmaps", hints(DRIVER, "a/" + "b" * 253), True),
        ("configmaps", object_of("drabridge"), False),
        ("configmaps", object_of(hints_name(DRIVER, "node-a")), False),
        ("configmaps", hints("other.example.com", "node-a"), False),
        ("configmaps", hints(f"{DRIVER}.gpu", "node-a"), False),
        ("configmaps", hints(DRIVER, "node-a", "default"), False),
        ("leases", object_of(lock_name(DRIVER)), True),
        ("leases", object_of(lock_name(f"{DRIVER}.gpu")), False),
        ("leases", object_of("kube-scheduler"), False),
    ],
)
def test_it_writes_its_own_objects_only(resource: str, obj: Json, allowed: bool) -> None:
    for operation, new, old in (("CREATE", obj, None), ("UPDATE", obj, obj), ("DELETE", None, obj)):
        assert (refusals(POLICIES, Request(operation, resource, User(ACCOUNT), new, old)) == []) is allowed
        assert refusals(POLICIES, Request(operation, resource, User("another"), new, old)) == []


@pytest.mark.parametrize(
    "labels", [{"labels": {LABEL: f"{DRIVER}.gpu"}}, {"labels": {"another": DRIVER}}, {"labels": {}}, {}]
)
def test_it_makes_no_hints_of_another_driver_its_own_and_gives_none_away(labels: Json) -> None:
    ours = hints(DRIVER, "gpu.a")
    theirs = object_of(ours["metadata"]["name"])
    theirs["metadata"].update(labels)
    for new, old in ((ours, theirs), (theirs, ours)):
        assert refusals(POLICIES, Request("UPDATE", "configmaps", User(ACCOUNT), new, old))


def test_it_deletes_what_0_2_0_left_of_its_own_and_writes_no_such_names() -> None:
    """The name may also be of the driver with ``.gpu`` on the node ``a``."""
    ours, theirs = hints(DRIVER, "gpu.a"), hints(f"{DRIVER}.gpu", "a")
    for left in (ours, theirs):
        left["metadata"]["name"] = f"drabridge-claims.{DRIVER}.gpu.a"
    assert refusals(POLICIES, Request("DELETE", "configmaps", User(ACCOUNT), None, ours)) == []
    assert refusals(POLICIES, Request("DELETE", "configmaps", User(ACCOUNT), None, theirs))
    assert refusals(POLICIES, Request("CREATE", "configmaps", User(ACCOUNT), ours, None))
    assert refusals(POLICIES, Request("UPDATE", "configmaps", User(ACCOUNT), ours, ours))


FABRIC: Json = {
    "config": {
        "driver": DRIVER,
        "fabric": [{"name": "lobby", "health": {"host": "cam.example", "port": 554}}, {"name": "other"}],
    },
    "coordinator": {"enabled": True},
}


def test_with_fabric_devices_it_reads_the_agents_file_and_may_call_what_it_checks() -> None:
    assert lint(FABRIC) == []
    objects = manifests({**FABRIC, "networkPolicy": {"apiServerPorts": [6443]}}, namespace=NAMESPACE)
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    assert "--config=/etc/drabridge/config.yaml" in pod["containers"][0]["args"]
    agents = one(objects, "DaemonSet")["spec"]["template"]["spec"]["volumes"][0]
    assert pod["volumes"] == [agents], "what is published is what agents give"
    (policy,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == ("NetworkPolicy", NAME))
    assert [port["port"] for port in policy["spec"]["egress"][0]["ports"]] == [6443, 554, 53, 53]
    with pytest.raises(HelmRefusedError, match=r"Set coordinator.enabled: true"):
        manifests({"config": FABRIC["config"]})
    (slices,) = (o for o in objects if o["kind"].endswith("Policy") and o["metadata"]["name"] == f"{NAME}-slices")
    assert [complaints(slices, version) for version in VERSIONS] == [[]] * len(VERSIONS)
    emptied = manifests({**FABRIC, "config": {"driver": DRIVER, "fabric": []}}, namespace=NAMESPACE)
    assert "--config=/etc/drabridge/config.yaml" in yaml.safe_dump(emptied), "else nobody removes those of before"


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"driver": DRIVER, "allNodes": True, "pool": {"name": f"{DRIVER}/fabric"}}, True),
        ({"driver": DRIVER, "nodeSelector": {}, "pool": {"name": f"{DRIVER}/fabric/hall"}}, True),
        ({"driver": DRIVER, "nodeName": "node-a", "pool": {"name": f"{DRIVER}/fabric"}}, False),
        ({"driver": DRIVER, "nodeName": "node-a", "pool": {"name": "node-a"}}, False),
        ({"driver": DRIVER, "allNodes": True, "pool": {"name": "node-a"}}, False),
        ({"driver": DRIVER, "allNodes": True, "pool": {"name": f"{DRIVER}/fabrics"}}, False),
        ({"driver": "gpu.example.com", "allNodes": True, "pool": {"name": f"{DRIVER}/fabric"}}, False),
    ],
)
def test_it_writes_no_nodes_slices(spec: Json, allowed: bool) -> None:
    objects = manifests(FABRIC, namespace=NAMESPACE)
    policies = [obj for obj in objects if obj["kind"] == "ValidatingAdmissionPolicy"]
    obj = {"metadata": {"name": "s"}, "spec": {**spec, "pool": {**spec["pool"], "generation": 1}}}
    for operation, new, old in (("CREATE", obj, None), ("UPDATE", obj, obj), ("DELETE", None, obj)):
        request = Request(operation, "resourceslices", User(ACCOUNT), new, old)
        assert (refusals(policies, request) == []) is allowed
        if "fabric" in spec["pool"]["name"] and allowed:
            assert refusals(policies, Request(operation, "resourceslices", User(AGENT, node="node-a"), new, old))


async def test_the_roles_are_what_coordinator_and_agent_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes.leaderelection.resourcelock.leaselock", reason="needs kubernetes 37 or later")
    refused, judged, genuine = list[str](), Counter[str](), admission.check

    def check(resource: Resource, new: Json, old: Json | None, user: User, **more: Any) -> None:
        if user.name in (ACCOUNT, AGENT):
            operation = "UPDATE" if old is not None else "CREATE"
            name = "resourceclaims/status" if resource.plural == "resourceclaims" else resource.plural
            judged[f"{operation} {name}"] += 1
            refused.extend(refusals(POLICIES, Request(operation, name, user, new, old)))
        genuine(resource, new, old, user, **more)

    monkeypatch.setattr(admission, "check", check)
    config = BOTH_LANES.replace("{legacy: 2, dra: 2}", '{shared: "*"}')
    config = config.replace("resources:", f"dra: {{leases: {{coordinator: {NAMESPACE}}}}}\nresources:")
    with short_directory() as root:
        async with SimCluster(root, timings=ClusterTimings.fast()) as cluster:
            api = cluster.api
            token = api.token("node-a", drivers=frozenset({DRIVER}))
            kubeconfig = api.kubeconfig(root / "kubeconfig", token=token)
            agent = AgentProcess(root / "node-a", config, arguments=("--kubeconfig", str(kubeconfig)))
            own = api.kubeconfig(root / "kubeconfig-2", token=api.token("node-z", account=NAME))
            coordinator = CoordinatorProcess(root, own)
            await cluster.apply(CLASS)
            try:
                await coordinator.start()
                await until(lambda: "following claims" in coordinator.text(), 10, coordinator.text)
                await agent.start()
                await until(lambda: len(devices_in_slices(cluster)) == 4, 20, agent.text)
                await cluster.apply(claim_pod("c"))
                await cluster.wait_pod("c")
                await until(lambda: hinted(api.objects) == [], 10, coordinator.text)
                asked = {
                    account: {
                        request.rule
                        for request in api.requests
                        if request.user == account and request.verb != "nonresource"
                    }
                    for account in (ACCOUNT, AGENT)
                }
            finally:
                for process in (agent, coordinator):
                    with contextlib.suppress(ProcessLookupError, AssertionError):
                        await process.stop(signal.SIGKILL)
    assert refused == []
    assert judged.keys() >= {"CREATE configmaps", "UPDATE configmaps", "CREATE leases", "UPDATE leases"}
    assert asked[ACCOUNT] | BY_APPLY == granted(NAME)
    assert asked[AGENT] <= granted("drabridge")
    way_b = {("", "configmaps", "list"), ("", "configmaps", "watch"), ("coordination.k8s.io", "leases", "get")}
    assert asked[AGENT] >= way_b | {("", "pods", "get")}
    without = {
        verb
        for rule in one(manifests(), "ClusterRole")["rules"]
        if "pods" in rule["resources"]
        for verb in rule["verbs"]
    }
    assert without == {"list", "watch"}, "and nothing more where it is off"
