"""``drabridge migrate switch`` against a real API server: its policies are CEL, which only that one can judge."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.helm import manifests
from drabridge.kube.api import InvalidError, Kind
from drabridge.kube.client import KubernetesCluster as Api
from drabridge.kube.feature_questions import policy_version
from drabridge.migrate.switch import marks
from drabridge.migrate.switch.policy import bucket, claims_of_pod, owner_of
from drabridge.migrate.switch.switcher import policy_kinds
from tests.cluster.bed import (
    CLASS,
    CLASSES,
    CONFIG,
    MANAGER,
    NAMESPACE,
    NAMESPACES,
    PODS,
    RESOURCE,
    TEMPLATES,
    Bed,
    Json,
)
from tests.cluster.releases.features import needs
from tests.cluster.steps import deleted, running
from tests.cluster.workloads import legacy_pod
from tests.support.waiting import HANG_SECONDS, until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.cluster,
    needs("admission policies that change pods"),
]

GPU, NIC = "example.com/gpu", "example.net/rdma_nic"
BASES = {GPU: "example-gpu", NIC: "example-rdma-nic"}
OTHER_CLASSES = {GPU: "drabridge-switch-gpu", NIC: "drabridge-switch-nic"}
TEAM = f"drabridge-switch-{secrets.token_hex(3)}"  # one that is left by an earlier run may take long to go
DEPLOYMENTS = Kind("apps", "v1", "deployments")
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts")


async def switch(*words: str, status: int = 0) -> str:
    """Run the command, and return what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "drabridge", "migrate", "switch", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
    assert process.returncode == status, (words, out.decode())
    return out.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[Api]:
    """The API server, with a namespace and two DeviceClasses for these tests."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: KUBECONFIG not set")
    cluster = Api.from_kubeconfig(Path(os.environ["KUBECONFIG"]).expanduser())
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
    await cluster.apply(NAMESPACES, namespace, manager=MANAGER)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": TEAM}}
    await cluster.apply(SERVICE_ACCOUNTS, account, manager=MANAGER, namespace=TEAM)
    await cluster.apply(CLASSES, device_class(OTHER_CLASSES[GPU]), manager=MANAGER)
    await cluster.apply(CLASSES, device_class(OTHER_CLASSES[NIC], extendedResourceName=NIC), manager=MANAGER)
    try:
        yield cluster
    finally:
        for name in OTHER_CLASSES.values():
            await cluster.delete(CLASSES, name)
        await cluster.delete(NAMESPACES, TEAM)
        cluster.close()


@pytest_asyncio.fixture(loop_scope="module")
async def team(api: Api) -> AsyncIterator[str]:
    """The namespace. No pod of it is ever scheduled; afterwards it is empty, and not switched."""
    try:
        yield TEAM
    finally:
        await switch(TEAM, "--to", "limits")
        for kind in (DEPLOYMENTS, PODS, TEMPLATES):
            for one in (await api.list(kind, namespace=TEAM)).items:
                await api.delete(kind, one["metadata"]["name"], namespace=TEAM)


def device_class(name: str, **spec: str) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def deployment(limits: Json) -> Json:
    """A Deployment of no pods."""
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [container("c", limits)]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "w"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w", "namespace": TEAM}, "spec": spec}


def container(name: str, limits: Json, **more: object) -> Json:
    return {"name": name, "image": "none", "resources": {"limits": limits}, **more}


def pod_of(spec: Json, *, name: str = "pod", labels: Json | None = None, **meta: object) -> Json:
    more = {"schedulerName": "nobody", "terminationGracePeriodSeconds": 0}
    metadata = {"name": name, "namespace": TEAM, "labels": labels or {}, **meta}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, **more}}


def one_gpu(name: str = "pod", **meta: object) -> Json:
    return pod_of({"containers": [container("main", {GPU: "1"})]}, name=name, **meta)  # type: ignore[arg-type]


async def tried(api: Api, pod: Json) -> Json:
    """The pod's spec as the API server would store it."""
    made: Json = (await api.create(PODS, pod, namespace=TEAM, dry_run=True))["spec"]
    return made


def limits_of(spec: Json) -> set[str]:
    """The resources that containers ask for in limits or requests."""
    both = [*spec.get("initContainers", ()), *spec["containers"]]
    amounts = [one["resources"].get(section) or {} for one in both for section in ("limits", "requests")]
    return {name for some in amounts for name, count in some.items() if count != "0"}


def names(one: Json) -> tuple[str, ...]:
    return tuple(claim["name"] for claim in one["resources"].get("claims", ()))


# --- the policy's rules ---------------------------------------------------------------------------------------------

amounts = st.dictionaries(st.sampled_from([GPU, NIC, "cpu"]), st.integers(0, 9).map(str), max_size=3)
app = st.lists(amounts, min_size=1, max_size=4)
init = st.lists(st.tuples(amounts, st.booleans()), max_size=4)


async def test_a_pod_gets_the_claims_that_the_rules_say(api: Api, team: str) -> None:
    """The rules in Python, and the same rules in CEL, agree about pods of every form."""
    counts = [word for count in range(1, 33) for word in ("--count", str(count))]
    await switch(team, "--to", "claims", *classes(GPU, NIC), *counts)
    loop = asyncio.get_running_loop()

    @given(app, init, st.booleans())
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    def agree(apps: list[Json], inits: list[tuple[Json, bool]], own: bool) -> None:
        spec: Json = {
            "containers": [container(f"c{i}", limits) for i, limits in enumerate(apps)],
            "initContainers": [
                container(f"i{i}", limits, **({"restartPolicy": "Always"} if always else {}))
                for i, (limits, always) in enumerate(inits)
            ],
        }
        if own:
            spec["resourceClaims"] = [{"name": "mine", "resourceClaimName": "mine"}]
            spec["containers"][0]["resources"]["claims"] = [{"name": "mine", "request": "some"}]
        made = asyncio.run_coroutine_threadsafe(tried(api, pod_of(spec)), loop).result(HANG_SECONDS)
        expected = claims_of_pod(spec, BASES)
        claims = {one["name"]: one.get("resourceClaimTemplateName") for one in made.get("resourceClaims", ())}
        assert claims.pop("mine", None) is None
        assert claims == {one.name: f"{one.base}-{one.count}" for one in expected.claims}
        for i, one in enumerate(made["containers"]):
            first = ("mine",) if own and i == 0 else ()
            assert names(one) == (*first, *expected.containers.get(i, ()))
        for i, one in enumerate(made.get("initContainers", ())):
            assert names(one) == expected.init_containers.get(i, ())
        asked = {
            name: sum(int(limits.get(name, 0)) for limits in [*apps, *(limits for limits, _ in inits)])
            for name in (GPU, NIC)
        }
        assert not {name for name, count in asked.items() if count} & limits_of(made), "whole on one side"

    await asyncio.to_thread(agree)


def classes(*resources: str) -> list[str]:
    return [word for name in resources for word in ("--class", f"{name}={OTHER_CLASSES[name]}")]


REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d9c", "uid": "1", "controller": True}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(one_gpu(annotations={marks.OPT_OUT: marks.LIMITS}), id="opted out"),
        pytest.param(one_gpu(ownerReferences=[{**REPLICA_SET, "kind": "DaemonSet"}]), id="of a DaemonSet"),
        pytest.param(pod_of({"nodeName": "n", "containers": [container("c", {GPU: "1"})]}), id="has a node"),
        pytest.param(pod_of({"containers": [container("c", {GPU: "33"})]}), id="more than a claim can have"),
        pytest.param(pod_of({"containers": [container("c", {NIC: "1"})]}), id="a resource that is not switched here"),
    ],
)
async def test_a_pod_that_cannot_or_shall_not_change_is_left_alone(api: Api, team: str, pod: Json) -> None:
    await switch(team, "--to", "claims", *classes(GPU))
    made = await tried(api, pod)
    assert not made.get("resourceClaims")
    assert limits_of(made) & {GPU, NIC}


async def test_a_share_of_the_owners_is_switched_and_stays_the_same_after_a_rollout(api: Api, team: str) -> None:
    await switch(team, "--to", "claims", *classes(GPU), "--percent", "40")
    chosen = Counter[str]()
    for number, template_hash in itertools.product(range(40), ("5d9c", "77bd")):
        owner = {**REPLICA_SET, "name": f"web-{number}-{template_hash}"}
        pod = one_gpu(f"p-{number}", ownerReferences=[owner], labels={"pod-template-hash": template_hash})
        assert owner_of(pod) == f"web-{number}"
        switched = bool((await tried(api, pod)).get("resourceClaims"))
        assert switched == (bucket(f"web-{number}") < 40)
        chosen[f"web-{number}"] += switched
    assert set(chosen.values()) == {0, 2}


async def test_only_pods_with_the_labels_are_switched(api: Api, team: str) -> None:
    await switch(team, "--to", "claims", *classes(GPU), "--selector", "app=web,tier=gpu")
    both = {"app": "web", "tier": "gpu", "more": "x"}
    assert (await tried(api, one_gpu(labels=both))).get("resourceClaims")
    assert not (await tried(api, one_gpu(labels={"app": "web"}))).get("resourceClaims")


# --- templates, and what is said ------------------------------------------------------------------------------------


async def test_a_missing_template_is_named_with_the_command_that_makes_it(api: Api, team: str) -> None:
    await switch(team, "--to", "claims", *classes(GPU))
    three = pod_of({"containers": [container("c", {GPU: "3"})]})
    with pytest.raises(InvalidError) as refused:
        await tried(api, three)
    command = f"drabridge migrate switch {team} --to claims --count 3"
    said = f"namespace {team} is switched to claims and has no ResourceClaimTemplate example-gpu-3"
    assert said in str(refused.value)
    assert command in str(refused.value)
    await switch(*command.split()[3:])
    assert (await tried(api, three))["resourceClaims"][0]["resourceClaimTemplateName"] == "example-gpu-3"


async def test_templates_are_made_for_what_workloads_ask_for(api: Api, team: str) -> None:
    await api.apply(DEPLOYMENTS, deployment({GPU: "4"}), manager=MANAGER, namespace=team)
    await switch(team, "--to", "claims", *classes(GPU))
    found = (await api.list(TEMPLATES, namespace=team)).items
    (made,) = [one for one in found if one["metadata"]["name"] == "example-gpu-4"]
    (asked,) = made["spec"]["spec"]["devices"]["requests"]
    assert (asked["exactly"]["deviceClassName"], asked["exactly"]["count"]) == (OTHER_CLASSES[GPU], 4)


async def test_the_class_that_names_a_resource_itself_need_not_be_named(api: Api, team: str) -> None:
    said = await switch(team, "--to", "claims", status=2)
    assert "no pod of namespace" in said
    await api.apply(DEPLOYMENTS, deployment({NIC: "2", GPU: "1"}), manager=MANAGER, namespace=team)
    await switch(team, "--to", "claims")
    assert {one["metadata"]["name"] for one in (await api.list(TEMPLATES, namespace=team)).items} == {
        "example-rdma-nic-2"
    }
    assert json.loads(await switch("-o", "json"))["classes"] == {NIC: OTHER_CLASSES[NIC]}


async def test_the_policies_are_there_while_anything_is_switched(api: Api, team: str) -> None:
    await switch(team, "default", "--to", "claims", *classes(GPU))
    shown = json.loads(await switch("-o", "json"))
    assert {one["namespace"] for one in shown["namespaces"]} == {team, "default"}
    assert "policies are removed" not in await switch(team, "--to", "limits")
    assert not (await tried(api, one_gpu())).get("resourceClaims")
    assert "policies are removed" in await switch("default", "--to", "limits")
    for kind in policy_kinds(await policy_version(api)).values():
        there = {one["metadata"]["name"] for one in (await api.list(kind)).items}
        assert not there & {marks.POLICY, marks.GUARD}
    assert "No namespace is switched" in await switch()


async def test_the_policies_of_the_chart_do_the_same(api: Api, team: str) -> None:
    resource = {"name": GPU, "match": [{"subsystem": "mem"}], "id": ["{sysname}"]}
    values = {
        "config": {**CONFIG, "resources": [{**resource, "deviceClass": {"name": OTHER_CLASSES[GPU]}}]},
        "migration": {"namespaces": [{"name": team, "counts": [1, 2]}]},
        "kubeVersion": "1.36.2",
    }
    chart = manifests(values, name=TEAM, namespace=TEAM)
    kinds = policy_kinds(await policy_version(api))
    made = [one for one in chart if one["kind"] in kinds and "-switch" in one["metadata"]["name"].removeprefix(TEAM)]
    assert len(made) == len(kinds)
    try:
        for one in made:
            await api.apply(kinds[one["kind"]], one, manager=MANAGER)
        pod = pod_of({"containers": [container("c", {GPU: "2"})]})
        await until(lambda: _claims(api, pod), HANG_SECONDS)
        assert await _claims(api, pod) == [{"name": "example-gpu-c0", "resourceClaimTemplateName": "example-gpu-2"}]
        await until(lambda: _refused(api), HANG_SECONDS)
    finally:
        for one in made:
            await api.delete(kinds[one["kind"]], one["metadata"]["name"])


async def _refused(api: Api) -> bool:
    """The second policy may be compiled a little later than the first one."""
    try:
        await tried(api, pod_of({"containers": [container("c", {GPU: "3"})]}))
    except InvalidError as error:
        return "has no ResourceClaimTemplate example-gpu-3" in error.message
    return False


async def _claims(api: Api, pod: Json) -> list[Json]:
    return list((await tried(api, pod)).get("resourceClaims", []))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("no-such-team", "--to", "claims"), "there is no namespace no-such-team", id="no namespace"),
        pytest.param((TEAM, "--to", "claims", "--class", f"{GPU}=no-such"), "no DeviceClass no-such", id="no class"),
        pytest.param((TEAM, "--to", "claims", "--percent", "101"), "from 0 to 100", id="percent"),
        pytest.param((TEAM,), "belong together", id="no side"),
        pytest.param((TEAM, "--to", "limits", "--percent", "5"), "are for --to claims", id="limits have no share"),
    ],
)
async def test_what_cannot_be_meant_is_said(api: Api, team: str, words: tuple[str, ...], said: str) -> None:
    assert said in await switch(*words, status=2)


async def test_a_label_that_somebody_else_set_is_not_fought_over(api: Api, team: str) -> None:
    mine = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team, "labels": {marks.LABEL: marks.CLAIMS}}}
    await api.apply(NAMESPACES, mine, manager="somebody")
    said = await switch(team, "--to", "limits", status=2)
    assert f"kubectl label namespace {team} {marks.LABEL}-" in said
    mine["metadata"] = {"name": team}
    await api.apply(NAMESPACES, mine, manager="somebody")


# --- with load, and with devices ------------------------------------------------------------------------------------


async def test_under_load_each_pod_is_whole_on_one_side(api: Api, team: str) -> None:
    """Five pods a second are made while the label comes and goes."""
    done = asyncio.Event()
    made: list[Json] = []

    async def load() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            spec = {
                "containers": [container("a", {GPU: "1"}), container("b", {GPU: "1"})],
                "initContainers": [container("i", {GPU: "2"})],
            }
            made.append((await api.create(PODS, pod_of(spec, name=f"load-{number}"), namespace=team))["spec"])
            await asyncio.sleep(0.2)

    task = asyncio.create_task(load())
    for _ in range(4):
        await switch(team, "--to", "claims", *classes(GPU))
        await asyncio.sleep(1.0)
        await switch(team, "--to", "limits")
        await asyncio.sleep(1.0)
    done.set()
    await asyncio.wait_for(task, HANG_SECONDS)
    sides = Counter(bool(spec.get("resourceClaims")) for spec in made)
    assert sides[True] >= 5
    assert sides[False] >= 5
    for spec in made:
        claims = {one["name"] for one in spec.get("resourceClaims", ())}
        used = [set(names(one)) for one in (*spec["initContainers"], *spec["containers"])]
        if claims:
            assert GPU not in limits_of(spec)
            assert used == [claims, {"example-gpu-c0"}, {"example-gpu-c1"}]
        else:
            assert all(one["resources"]["limits"].get(GPU) for one in (*spec["initContainers"], *spec["containers"]))


@pytest.mark.parametrize("beds", ["real"], indirect=True, scope="module")
async def test_an_unchanged_pod_gets_its_device_by_the_side_that_its_namespace_is_on(bed: Bed) -> None:
    async def side() -> str:
        pod = legacy_pod("w", bed.image, bed.node)
        await bed.api.create(PODS, pod, namespace=NAMESPACE)
        await running(bed, "w")
        spec = (await bed.api.get(PODS, "w", namespace=NAMESPACE))["spec"]
        assert len(await bed.devices("w")) == 1
        await deleted(bed, "w")
        return "claims" if spec.get("resourceClaims") else "limits"

    assert await side() == "limits"
    await switch(NAMESPACE, "--to", "claims", "--class", f"{RESOURCE}={CLASS}")
    assert await side() == "claims"
    await switch(NAMESPACE, "--to", "limits")
    assert await side() == "limits"
    for one in (await bed.api.list(TEMPLATES, namespace=NAMESPACE)).items:
        await bed.api.delete(TEMPLATES, one["metadata"]["name"], namespace=NAMESPACE)
