"""``drabridge migrate report`` as a person and a program see it: counts, output, exit status, missing rights."""

from __future__ import annotations

import asyncio
import html.parser
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import to_builtins

from drabridge.kube.client import KubernetesCluster
from drabridge.migrate.report.build import build
from drabridge.migrate.report.codes import Code
from drabridge.migrate.report.collect import collect
from drabridge.migrate.report.page import render
from drabridge.migrate.report.readers import all_kinds
from drabridge.migrate.report.text import Layout, text
from tests.migrate.cluster_objects import (
    CLASS,
    GPU,
    asked,
    claim,
    claim_pod,
    command,
    custom,
    device_class,
    dra_pod,
    node,
    parsed,
    pod,
    pod_spec,
    report_of,
    resource_slice,
    serving,
    workload,
)

Json = dict[str, Any]


def a_cluster() -> list[Json]:
    """Every way of using a device, in two namespaces."""
    web = workload("Deployment", strategy={"type": "Recreate"})
    middle = workload("ReplicaSet", "web-5d", owner=web)
    train = custom("jobset.x-k8s.io/v1alpha2", "JobSet", "train")
    job = workload("Job", "train-0", owner=train)
    job["metadata"]["namespace"] = "team-b"
    return [
        node(count=5),
        node("node-b", 0),
        device_class(),
        resource_slice(count=3),
        resource_slice("old", 9, generation=0),
        claim(),
        web,
        middle,
        *(pod(f"web-{index}", owner=middle) for index in range(3)),
        pod("waits", owner=middle, node=None),
        dra_pod(owner=custom("apps/v1", "DaemonSet", "agents")),
        claim_pod(),
        claim_pod("also"),
        pod("done", status={"phase": "Succeeded"}),
        pod("none", spec=pod_spec(0)),
        job,
        pod("t", namespace="team-b", owner=job),
    ]


async def test_pods_and_devices_are_counted_by_way_resource_namespace_and_owner() -> None:
    document = to_builtins(await report_of(*a_cluster()))
    (gpu,) = document["resources"]
    assert gpu == {
        "name": GPU,
        "classes": [CLASS],
        "nodes": 2,
        "allocatable": 5,
        "inSlices": 3,
        "freeInSlices": 2,
        "pods": {"kubelet": 4, "dra": 1, "claims": 2, "pending": 1},
        "devices": {"kubelet": 4, "dra": 1, "claims": 1, "pending": 1},
        "donePercent": 42,
    }
    assert document["pods"] == 10
    assert [(one["name"], one["fits"], one["uses"][0]["pods"]["kubelet"]) for one in document["namespaces"]] == [
        ("team-a", "convert", 3),
        ("team-b", "switch", 1),
    ]
    assert {(one["kind"], one["name"]): (one["chain"], one["pods"]["kubelet"]) for one in document["workloads"]} == {
        ("Deployment", "web"): (["Pod", "ReplicaSet", "Deployment"], 3),
        ("JobSet", "train"): (["Pod", "Job", "JobSet"], 1),
        ("DaemonSet", "agents"): (["Pod", "DaemonSet"], 0),
        ("Pod", "claimed"): (["Pod"], 0),
        ("Pod", "also"): (["Pod"], 0),
    }


async def test_classes_belong_to_resources_by_name_by_word_or_have_a_row_of_their_own() -> None:
    objects = [device_class("mine", driver="d"), claim(device_class="mine"), claim_pod(), node()]
    rows = (await report_of(*objects)).resources
    assert [(row.name, row.pods.claims) for row in rows] == [
        ("deviceclass.resource.kubernetes.io/mine", 1),
        (GPU, 0),
    ]
    rows = (await report_of(*objects, classes={"mine": GPU})).resources
    assert [(row.name, row.pods.claims) for row in rows] == [(GPU, 1)]
    rows = (await report_of(device_class("mine", GPU), *objects[1:])).resources
    assert [(row.name, row.pods.claims) for row in rows] == [(GPU, 1)]


async def test_devices_of_a_driver_with_several_resources_count_by_their_attribute() -> None:
    """The agent publishes the attribute ``resource``; without it nobody can say which resource a device is."""
    classes = [device_class("a", GPU, "d"), device_class("b", "example.com/b", "d")]
    devices = resource_slice("s", 3, driver="d")
    devices["spec"]["devices"][0]["attributes"] = {"resource": {"string": GPU}}
    devices["spec"]["devices"][1]["attributes"] = {"resource": {"string": "example.com/b"}}
    rows = (await report_of(*classes, devices)).resources
    assert [(row.name, row.in_slices, row.classes) for row in rows] == [("example.com/b", 1, ["b"]), (GPU, 1, ["a"])]


@pytest.mark.parametrize(
    ("objects", "fits", "words"),
    [
        ([pod(owner=custom("ray.io/v1", "RayCluster"))], "limits", "operator"),
        ([pod()], "switch", "MutatingAdmissionPolicy can"),
        ([workload("StatefulSet"), pod(owner=workload("StatefulSet"))], "convert", "rewrite 1 manifest"),
        ([dra_pod()], "done", "no workload is left"),
        ([pod(annotations={"kubernetes.io/config.mirror": "x"})], "limits", "bypass the scheduler"),
    ],
)
async def test_each_namespace_is_told_what_fits_and_why(objects: list[Json], fits: str, words: str) -> None:
    (found,) = (await report_of(*objects)).namespaces
    assert found.fits == fits
    assert words in found.because


async def test_lists_are_read_in_pages() -> None:
    objects = [pod(f"p{index:04}", owner=custom("apps/v1", "DaemonSet", "d")) for index in range(100)]
    async with serving(*objects) as (api, kubeconfig):
        cluster = KubernetesCluster.from_kubeconfig(kubeconfig)
        counts: list[int] = []

        def progress(kind: str, count: int) -> None:
            if kind == "pods":
                counts.append(count)

        report = build(await collect(cluster, progress), {})
        cluster.close()
        assert (report.pods, report.resources[0].pods.kubelet) == (100, 100)
        assert counts == list(range(1, 101))
        asked = [one for one in api.requests if one.resource == "pods"]
        assert len(asked) > 2
        assert all("limit" in one.query for one in asked)
        assert all("continue" in one.query for one in asked[1:])
        assert {one.rule[2] for one in api.requests if "dryRun" not in one.query} == {"list", "nonresource"}


async def test_the_table_fits_a_hundred_columns() -> None:
    long = "a-very-long-name-of-some-namespace-that-nobody-would-want-to-type-in-a-hurry"
    report = await report_of(
        *a_cluster(),
        pod("x" * 200, namespace=long, spec=pod_spec(40, nodeSelector={f"nvidia.com/{'y' * 150}": ""})),
        *(pod(f"more-{index}") for index in range(30)),
    )
    lines = text(report, Layout(100, wide=False)).splitlines()
    assert max(map(len, lines)) <= 100
    assert any("more workloads: -o wide shows all" in line for line in lines)
    wide = text(report, Layout(None, wide=True))
    assert "more workloads" not in wide
    assert "Deployment < ReplicaSet < Pod" in wide


class _Wellformed(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_the_page_is_well_formed_has_no_script_and_escapes_names() -> None:
    evil = pod("p", namespace="n", spec=pod_spec(runtimeClassName="nvidia<script>alert(1)</script>"))
    page = render(await report_of(*a_cluster(), evil), "2026-11-23T00:00:00Z")
    parser = _Wellformed()
    parser.feed(page)
    assert parser.open == []
    assert "script" not in parser.seen
    assert not {one for one in parser.attributes if one.startswith("on") or one in ("src", "href")}
    assert "nvidia&lt;script&gt;" in page
    assert "prefers-color-scheme: dark" in page
    assert f"Pods of team-b {GPU}: limits, served by kubelet 1" in page
    assert {"svg", "rect"} <= parser.seen


async def test_exit_status_says_whether_something_blocks() -> None:
    code, out, err = await asked(a_cluster(), "report", "-o", "json")
    document = parsed(out)
    assert (code, err) == (0, "")
    assert {one["severity"] for one in document["obstacles"]} == {"trap"}
    assert set(document["obstacles"][0]) == {
        *("code", "severity", "namespace", "object", "resource", "seen", "pods", "why", "action")
    }
    code, out, _ = await asked(a_cluster(), "report", "--fail-on", "trap", "-o", "yaml")
    assert code == 1
    assert yaml.safe_load(out) == document
    code, out, _ = await asked([pod(spec=pod_spec(33))], "report")
    assert code == 1
    assert "BLOCKERS" in out
    assert "MoreThan32Devices (1): one claim holds at most 32 devices" in out
    code, out, _ = await asked([pod(spec=pod_spec(33))], "report", "--fail-on", "never", "-o", "html")
    assert code == 0
    assert out.startswith("<!DOCTYPE html>")


async def test_a_right_that_is_missing_is_named_and_the_rest_is_reported() -> None:
    async with serving(*a_cluster()) as (api, kubeconfig):
        api.faults.fail(1, 403, verb="list", resource="resourcequotas")
        code, out, _ = await command("--kubeconfig", str(kubeconfig))
        assert code == 0
        assert "list resourcequotas: GET /api/v1/resourcequotas" in out
        assert "NotRead (1)" in out
        assert "Deployment/web" in out
        api.faults.fail(1, 403, verb="list", resource="pods")
        code, out, _ = await command("--kubeconfig", str(kubeconfig), "-o", "json")
        document = parsed(out)
        assert code == 1
        assert [one["code"] for one in document["obstacles"] if one["severity"] == "blocker"] == [Code.PODS_NOT_READ]
        assert [(one["verb"], one["resource"]) for one in document["unread"]] == [("list", "pods")]
        assert document["resources"][0]["allocatable"] == 5


async def test_without_any_right_it_is_an_error_that_says_which_role() -> None:
    async with serving() as (api, kubeconfig):
        for _ in range(20):
            api.faults.fail(1, 403, verb="list")
        code, out, err = await command("--kubeconfig", str(kubeconfig))
        assert (code, out) == (1, "")
        assert "nothing could be read" in err
        assert "--rbac" in err


async def test_credentials_that_are_not_accepted_are_an_error() -> None:
    async with serving() as (api, kubeconfig):
        token = api.token("node-a")
        api.kubeconfig(kubeconfig, token=token)
        api.revoke(token)
        code, _out, err = await command("--kubeconfig", str(kubeconfig))
        assert code == 1
        assert "log in again" in err


async def test_an_api_server_that_is_gone_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async with serving() as (api, kubeconfig):
        kept = tmp_path / "kubeconfig"
        kept.write_text(kubeconfig.read_text())
        await api.stop()
        code, out, err = await command("--kubeconfig", str(kept))
    assert (code, out) == (1, "")
    assert "no answer from the API server" in err
    assert "Check that the server in the kubeconfig can be reached" in err


async def test_a_list_that_fails_on_the_way_is_begun_again() -> None:
    async with serving(*a_cluster()) as (api, kubeconfig):
        cluster = KubernetesCluster.from_kubeconfig(kubeconfig)
        api.faults.fail(1, 503, verb="list", resource="pods")
        report = build(await collect(cluster, lambda kind, count: None, (0.0,)), {})
        assert report.pods == 10
        api.faults.fail(2, 503, verb="list", resource="pods")
        with pytest.raises(Exception, match="run it again"):
            await collect(cluster, lambda kind, count: None, (0.0,))
        cluster.close()


async def test_a_server_without_dra_blocks() -> None:
    code, out, _ = await asked([pod()], "report", "-o", "json", versions=())
    assert code == 1
    assert Code.DRA_NOT_SERVED in [one["code"] for one in parsed(out)["obstacles"]]


async def test_older_versions_of_the_dra_api_are_read() -> None:
    _, out, _ = await asked(a_cluster(), "report", "-o", "json", versions=("v1beta1",))
    (gpu,) = parsed(out)["resources"]
    assert (gpu["inSlices"], gpu["freeInSlices"], gpu["pods"]["claims"]) == (3, 2, 2)


async def test_a_strange_object_is_named_and_hides_no_other() -> None:
    strange = pod("odd")
    strange["spec"]["containers"] = [{"name": "main", "resources": {"limits": {GPU: "many"}}}]
    report = await report_of(*a_cluster(), strange)
    assert [(one.resource, one.reason[:8]) for one in report.unread] == [("pods team-a/odd", "it does ")]
    assert report.resources[0].pods.kubelet == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kubeconfig", "/nowhere/config"), "there is no file /nowhere/config"),
        (("--class", "gpu"), "expected a domain and a name"),
        (("-o", "xml"), "invalid choice"),
    ],
)
async def test_bad_usage(words: tuple[str, ...], said: str) -> None:
    code, out, err = await command(*words)
    assert (code, out) == (2, "")
    assert said in err


async def test_a_file_that_is_no_kubeconfig_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("kind: Config\nclusters: []\n")
    code, _, err = await command("--kubeconfig", str(tmp_path / "config"))
    assert code == 2
    assert "is not a kubeconfig that can be used" in err


async def test_the_role_is_what_it_asks_for() -> None:
    code, out, _ = await command("--rbac")
    role = yaml.safe_load(out)
    allowed = {
        (group, one, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for one in rule["resources"]
        for verb in rule["verbs"]
    }
    assert code == 0
    async with serving(*a_cluster()) as (api, kubeconfig):
        await command("--kubeconfig", str(kubeconfig))
        asked = [one for one in api.requests if one.verb != "nonresource"]
        assert {one.rule for one in asked if "dryRun" not in one.query} == allowed
        assert {one.rule for one in asked if "dryRun" in one.query} == {
            ("resource.k8s.io", kind, "create") for kind in ("deviceclasses", "resourceslices")
        }, "what is tried is more than the role gives: the report is whole without"
    assert len(allowed) == len(all_kinds())


async def test_progress_is_shown_on_a_terminal_only() -> None:
    async with serving(*a_cluster()) as (_, kubeconfig):
        leader, follower = pty.openpty()
        process = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "drabridge", "migrate", "report", "--kubeconfig", str(kubeconfig)],
            stdout=subprocess.DEVNULL,
            stderr=follower,
            check=False,
        )
        os.close(follower)
        said = os.read(leader, 10_000).decode()
        os.close(leader)
        assert process.returncode == 0
        assert "reading nodes: 1" in said
        assert said.endswith("\r\x1b[K")
