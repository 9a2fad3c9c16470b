"""``drabridge migrate report -n ... --resource ...``: what is left, what stays, and names that are not there."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from drabridge.migrate.report.codes import Code
from tests.migrate.cluster_objects import (
    CLASS,
    GPU,
    asked,
    claim,
    claim_pod,
    command,
    container,
    custom,
    device_class,
    namespace,
    node,
    parsed,
    pod,
    quota,
    resource_slice,
    serving,
    workload,
)
from tests.migrate.example_cluster import moved

Json = dict[str, Any]

FPGA = "example.com/fpga"
ALIAS = f"deviceclass.resource.kubernetes.io/{CLASS}"


def other(count: int = 1) -> Json:
    return {"containers": [container(count=count, resource=FPGA)]}


def a_cluster() -> list[Json]:
    """Two namespaces, two resources, and obstacles of the whole cluster."""
    web = workload("DaemonSet", "web")
    return [
        node(taints=[GPU]),
        device_class(),
        resource_slice(),
        claim(),
        claim_pod(),
        web,
        pod("web-1", owner=web),
        pod("cards", owner=custom("ray.io/v1", "RayCluster", "cards"), spec=other()),
        pod("alone", namespace="team-b"),
        pod("both", namespace="team-b", spec={"containers": [container("a"), container("b", resource=FPGA)]}),
        pod("many", namespace="team-b", spec=other(33)),
        moved(quota(**{f"requests.{FPGA}": "8"}), "team-b"),
        moved(quota("gpus", **{f"requests.{GPU}": "8"}), "team-b"),
    ]


async def report(*words: str) -> Json:
    _, out, err = await asked(a_cluster(), "report", "-o", "json", *words)
    assert err == ""
    return parsed(out)


def names(document: Json) -> tuple[set[str], set[str], set[str]]:
    """The namespaces, workloads and rows of resources that are shown."""
    spaces = {f"{one['name']}: {use['resource']}" for one in document["namespaces"] for use in one["uses"]}
    workloads = {f"{one['namespace']}/{one['name']}: {one['resource']}" for one in document["workloads"]}
    return spaces, workloads, {one["name"] for one in document["resources"]}


def obstacles(document: Json) -> set[tuple[str, str]]:
    return {(one["code"], one["namespace"]) for one in document["obstacles"]}


async def test_a_namespace_is_shown_alone_with_what_is_the_clusters() -> None:
    document = await report("-n", "team-a")
    spaces, workloads, resources = names(document)
    assert spaces == {f"team-a: {GPU}", f"team-a: {FPGA}"}
    assert workloads == {f"team-a/web: {GPU}", f"team-a/cards: {FPGA}", f"team-a/claimed: {GPU}"}
    assert resources == {GPU, FPGA}
    assert obstacles(document) == {
        (Code.EXTENDED_RESOURCE_TOLERATION, ""),
        (Code.OPERATOR_COUNTS_LIMITS, "team-a"),
    }
    assert document["filter"] == {"namespaces": ["team-a"], "resources": []}
    whole = await report()
    assert names(await report("-n", "team-a", "--namespace", "team-b")) == names(whole)
    assert whole["filter"] == {"namespaces": [], "resources": []}
    assert document["resources"] == whole["resources"]


async def test_a_resource_is_shown_alone_with_those_who_use_it() -> None:
    document = await report("--resource", GPU)
    spaces, workloads, resources = names(document)
    assert spaces == {f"team-a: {GPU}", f"team-b: {GPU}"}
    assert workloads == {f"team-a/web: {GPU}", f"team-a/claimed: {GPU}", f"team-b/alone: {GPU}", f"team-b/both: {GPU}"}
    assert resources == {GPU}
    assert obstacles(document) == {
        (Code.EXTENDED_RESOURCE_TOLERATION, ""),
        (Code.QUOTA_COUNTS_LIMITS_ONLY, "team-b"),
        (Code.BARE_POD, "team-b"),
    }
    cards = await report("--resource", FPGA)
    assert names(cards)[1] == {f"team-a/cards: {FPGA}", f"team-b/both: {FPGA}", f"team-b/many: {FPGA}"}
    assert (Code.MORE_THAN_32_DEVICES, "team-b") in obstacles(cards)
    assert Code.EXTENDED_RESOURCE_TOLERATION not in {code for code, _ in obstacles(cards)}
    assert names(await report("--resource", GPU, "--resource", FPGA)) == names(await report())


async def test_what_fits_is_about_the_resources_that_are_shown() -> None:
    """The operator in team-a counts cards; its GPUs are a DaemonSet's."""
    fits = {one["name"]: one["fits"] for one in (await report())["namespaces"]}
    assert fits["team-a"] == "limits"
    fits = {one["name"]: one["fits"] for one in (await report("--resource", GPU))["namespaces"]}
    assert fits["team-a"] == "convert"


async def test_limits_of_a_resource_that_is_not_shown_leave_nothing_to_do() -> None:
    """The pod has a claim for its GPU, and limits for a card."""
    web = workload("DaemonSet", spec=other())
    mixed = claim_pod(owner=web)
    mixed["spec"]["containers"] = other()["containers"]
    words = ("report", "-o", "json", "--class", f"{GPU}={CLASS}", "--resource")
    fits = []
    for resource in (GPU, FPGA):
        _, out, _ = await asked([device_class(), claim(), web, mixed], *words, resource)
        fits += [one["fits"] for one in parsed(out)["namespaces"]]
    assert fits == ["done", "convert"]


async def test_a_resource_may_be_named_by_its_class() -> None:
    assert names(await report("--resource", ALIAS)) == names(await report("--resource", GPU))


async def test_both_limit_it_in_every_form_and_the_exit_status_is_about_the_rest() -> None:
    words = ("report", "-n", "team-a", "--resource", GPU, "-o")
    code, document, _ = await asked(a_cluster(), *words, "yaml")
    assert code == 0
    assert {one["name"] for one in yaml.safe_load(document)["workloads"]} == {"web", "claimed"}
    for output in ("table", "wide", "html"):
        code, out, _ = await asked(a_cluster(), *words, output)
        assert code == 0
        assert "DaemonSet/web" in out
        assert not any(word in out for word in ("team-b", FPGA, "cards"))
        assert f"Shown: namespace team-a; resource {GPU}." in out
    code, out, _ = await asked(a_cluster(), "report", "-n", "team-b")
    assert code == 1
    assert "Shown: namespace team-b." in out


@pytest.mark.parametrize("output", ["table", "html"])
async def test_a_namespace_without_devices_is_said_to_have_none(output: str) -> None:
    objects = [*a_cluster(), namespace("idle", switched=False)]
    code, out, _ = await asked(objects, "report", "-n", "idle", "-o", output)
    assert code == 0
    assert "No pod and no workload of those asks for a device." in out
    assert GPU in out


async def test_a_namespace_that_is_not_there_is_an_error_with_the_name_that_was_meant() -> None:
    async with serving(*a_cluster(), namespace("idle")) as (api, kubeconfig):
        words = ("--kubeconfig", str(kubeconfig), "-n", "idel")
        code, out, err = await command(*words)
        assert (code, out) == (2, "")
        assert 'there is no namespace idel. did you mean "idle"?' in err
        api.faults.fail(1, 403, verb="list", resource="namespaces")
        code, out, _ = await command(*words)
        assert code == 0
        assert "list namespaces" in out


async def test_a_resource_that_is_not_there_is_an_error_with_the_name_that_was_meant() -> None:
    async with serving(*a_cluster()) as (api, kubeconfig):
        words = ("--kubeconfig", str(kubeconfig), "--resource", "nvidia.com/gpus")
        code, out, err = await command(*words)
        assert (code, out) == (2, "")
        assert 'nothing in the cluster has or asks for nvidia.com/gpus. did you mean "nvidia.com/gpu"?' in err
        api.faults.fail(1, 403, verb="list", resource="nodes")
        code, out, _ = await command(*words)
        assert code == 0  # what was not read may have it
        assert "list nodes" in out


@pytest.mark.parametrize(
    ("name", "said"),
    [("nope", "there is no DeviceClass nope. There "), (f"{CLASS}x", f'did you mean "{CLASS}"?'), (CLASS, "")],
)
async def test_a_device_class_that_is_not_there_is_an_error(name: str, said: str) -> None:
    code, out, err = await asked(a_cluster(), "report", "--class", f"{GPU}={name}")
    assert said in err
    assert (code == 2) is bool(said)
    assert bool(out) is not bool(said)
