"""``drabridge migrate`` with workloads that span three nodes: there and back, by manifests and by a switch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from drabridge.migrate.switch import marks
from tests.cluster import bed as common
from tests.cluster.bed import CLASS, DEVICES, JOBS, LANES, NAMESPACE, NODES, RESOURCE, TEMPLATES, Json, wait_for
from tests.cluster.migrating import back_on_limits, interrupted, migrate, pods_of, used
from tests.cluster.real_bed import DAEMON_SETS, DEPLOYMENTS, STATEFUL_SETS
from tests.cluster.releases.features import needs
from tests.cluster.steps import finished, offered
from tests.cluster.three_nodes.bed import NAMES, ThreeNodes, config
from tests.cluster.workloads import container, job, meta, spec_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]

CONFIG = config(legacy=DEVICES, dra=0)
KINDS = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS, "DaemonSet": DAEMON_SETS, "Job": JOBS}
PODS = {"web": 3, "store": 2, "each": len(NAMES), "once": 2}
"""Pods of each workload: 10 of the 12 devices are in use, two are free for rollouts."""
CLASS_OF = ("--class", f"{RESOURCE}={CLASS}")
LIMIT = {"limits": {RESOURCE: "1"}}
RUNS_SECONDS = 60  # of the Job that runs meanwhile


def workloads(three: ThreeNodes) -> list[Json]:
    """A pod on each node of a Deployment, two of a StatefulSet, one for each node of a DaemonSet, two of a Job."""

    def apps(kind: str, name: str, **more: object) -> Json:
        spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        spread["labelSelector"] = {"matchLabels": {"app": name}}
        pods = pods_of(name, spec_of("", container(three.image, LIMIT), topologySpreadConstraints=[spread]))
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta(name), "spec": {**more, **pods}}

    short = spec_of("", container(three.image, LIMIT, seconds=RUNS_SECONDS))
    return [
        apps("Deployment", "web", replicas=PODS["web"]),
        apps("StatefulSet", "store", replicas=PODS["store"], serviceName="store"),
        apps("DaemonSet", "each"),
        job("once", short, parallelism=PODS["once"], completions=PODS["once"]),
    ]


async def sides(three: ThreeNodes) -> dict[str, Counter[str]]:
    return {name: Counter(found) for name, found in (await used(three)).items()}


async def uses(three: ThreeNodes, **wanted: str) -> None:
    """Wait until the pods of each workload are as many as wanted, all on this side."""

    async def there() -> bool:
        pods = await three.workload_pods()
        running = [one for one in pods if one["status"].get("phase") in ("Running", "Succeeded")]
        calm = len(running) == len(pods) and not any("deletionTimestamp" in one["metadata"] for one in pods)
        return calm and await sides(three) == {name: Counter({side: PODS[name]}) for name, side in wanted.items()}

    await wait_for(three, f"pods of {wanted}", there)


@pytest_asyncio.fixture(loop_scope="module")
async def in_use(three: ThreeNodes) -> AsyncIterator[list[Json]]:
    """The workloads, on limits, with all their pods; what was applied is returned."""
    objects = workloads(three)
    try:
        for one in objects:
            await three.api.create(KINDS[one["kind"]], one, namespace=NAMESPACE)
        await uses(three, web="limits", store="limits", each="limits", once="limits")
        yield objects
    finally:  # of a test that failed, too
        await back_on_limits()
        for name in NAMES:
            bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            await three.api.apply(NODES, bare, manager=f"{marks.MANAGER}-{common.DRIVER}")


async def report(three: ThreeNodes) -> Json:
    said = json.loads(await migrate("report", *CLASS_OF, "-o", "json", "--fail-on", "never"))
    (ours,) = [one for one in said["resources"] if one["name"] == RESOURCE]
    return dict(ours)


async def annotated(three: ThreeNodes) -> list[str]:
    nodes = [await three.api.get(NODES, name) for name in NAMES]
    return [one["metadata"]["name"] for one in nodes if LANES in one["metadata"].get("annotations", {})]


async def test_manifests_are_converted_and_back(three: ThreeNodes, in_use: list[Json], tmp_path: Path) -> None:
    """With the command killed again and again; the DaemonSet's pods go node by node, those of the Job stay."""
    folder, plan = tmp_path / "deploy", tmp_path / "plan.yaml"
    folder.mkdir()
    for one in in_use:
        if one["kind"] != "Job":  # nobody can change a Job
            text = yaml.safe_dump(json.loads(json.dumps(one)), sort_keys=False)
            (folder / f"{one['metadata']['name']}.yaml").write_text(text)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert (await report(three))["nodes"] == len(NAMES)
    shown = await migrate("plan", *CLASS_OF, "-n", NAMESPACE, "--manifests", folder, "--write", plan)
    print(shown)
    assert "missing" not in shown
    await interrupted("apply", plan, "--all")
    assert "every step of the plan is done" in await migrate("apply", plan, "--all")
    await uses(three, web="claims", store="claims", each="claims")
    await interrupted("rollback", plan)
    await migrate("rollback", plan, "--all")
    await uses(three, web="limits", store="limits", each="limits")
    for node in three.each_node():
        await offered(node, legacy=DEVICES, dra=0)
    assert await annotated(three) == []
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@needs("admission policies that change pods")
async def test_a_namespace_is_switched_and_back(three: ThreeNodes, in_use: list[Json], tmp_path: Path) -> None:
    """The DaemonSet stays on limits, as the plan says; a Job that is made later has claims."""
    plan = tmp_path / "plan.yaml"
    shown = await migrate("plan", *CLASS_OF, "-n", NAMESPACE, "--write", plan)
    print(shown)
    assert "missing" not in shown
    assert "DaemonSet/each: a switch leaves the pods of DaemonSets alone" in shown
    assert "every step of the plan is done" in await migrate("apply", plan, "--all")
    await uses(three, web="claims", store="claims", each="limits")
    short = spec_of("", container(three.image, LIMIT, seconds=1))
    later = job("later", short, parallelism=PODS["once"], completions=PODS["once"])
    await three.api.create(JOBS, later, namespace=NAMESPACE)
    await finished(three, "later", PODS["once"])
    pods = [one for one in await three.workload_pods() if one["metadata"]["labels"].get("job") == "later"]
    assert [bool(one["spec"].get("resourceClaims")) for one in pods] == [True] * PODS["once"]
    await three.api.delete(JOBS, "later", namespace=NAMESPACE)
    await migrate("rollback", plan, "--all")
    await uses(three, web="limits", store="limits", each="limits")
    for node in three.each_node():
        await offered(node, legacy=DEVICES, dra=0)
    assert await annotated(three) == []
    for one in (await three.api.list(TEMPLATES, namespace=NAMESPACE)).items:
        await three.api.delete(TEMPLATES, one["metadata"]["name"], namespace=NAMESPACE)
