"""``drabridge migrate`` from report to the end and back, on a real node: once by a switch, once by manifests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from drabridge.kube.api import Kind
from drabridge.migrate.switch import marks
from tests.cluster import bed as common
from tests.cluster.bed import CLASS, JOBS, LANES, NAMESPACE, NODES, RESOURCE, Bed, Json, wait_for
from tests.cluster.migrating import back_on_limits, interrupted, migrate, pods_of, used
from tests.cluster.real_bed import DEPLOYMENTS, STATEFUL_SETS
from tests.cluster.releases.features import needs
from tests.cluster.steps import finished, offered
from tests.cluster.workloads import container, job, meta, spec_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.cluster,
    pytest.mark.parametrize("beds", ["real"], indirect=True, scope="module"),
]

DEVICES = 6
CONFIG: Json = {
    **common.CONFIG,
    "resources": [
        {
            **common.CONFIG["resources"][0],
            "match": [{"subsystem": "mem", "sysname": ["zero", "null", "full", "random", "urandom", "kmsg"]}],
            "lanes": {"legacy": DEVICES, "dra": 0},
        }
    ],
}
CRON_JOBS = Kind("batch", "v1", "cronjobs")
KINDS = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS, "Job": JOBS, "CronJob": CRON_JOBS}
JOB_NAME = "batch.kubernetes.io/job-name"
LIMIT = {"limits": {RESOURCE: "1"}}
RUNS_SECONDS = 25  # of the Job that runs meanwhile


def workloads(bed: Bed) -> list[Json]:
    """A pod that is rolled out before it ends, one with an order, one with init container and sidecar, two Jobs.

    One device is free: the rollout of the first needs it.
    """

    def spec(*containers: Json, **more: Json | list[Json]) -> Json:
        return spec_of(bed.node, *containers, **more)

    def main(seconds: int = 3600) -> Json:
        return container(bed.image, LIMIT, seconds=seconds)

    before = container(bed.image, LIMIT, name="prepare", seconds=0)
    beside = container(bed.image, LIMIT, name="helper", restartPolicy="Always")
    train = spec(main(), initContainers=[before, beside])
    short = {"template": {"spec": spec(main(seconds=0))}}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta("web"),
            "spec": {"replicas": 1, **pods_of("web", spec(main()))},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": meta("store"),
            "spec": {"replicas": 1, "serviceName": "store", **pods_of("store", spec(main()))},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta("train"),
            "spec": {"replicas": 1, "strategy": {"type": "Recreate"}, **pods_of("train", train)},
        },
        job("once", spec(main(seconds=RUNS_SECONDS)), parallelism=1, completions=1),
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": meta("nightly"),
            "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": short}},
        },
    ]


def everything(side: str) -> dict[str, list[str]]:
    return {"web": [side], "store": [side], "train": [side]}


async def available(bed: Bed) -> None:
    """Wait until every pod of the three workloads that stay is available."""

    async def all_there() -> bool:
        for kind, name in ((DEPLOYMENTS, "web"), (STATEFUL_SETS, "store"), (DEPLOYMENTS, "train")):
            status = (await bed.api.get(kind, name, namespace=NAMESPACE)).get("status", {})
            if status.get("availableReplicas") != 1:
                return False
        return True

    await wait_for(bed, "the workloads to be available", all_there)


async def next_night(bed: Bed, name: str) -> str:
    """Run the CronJob now, as ``kubectl create job --from`` does; return how its pod got its device."""
    template = (await bed.api.get(CRON_JOBS, "nightly", namespace=NAMESPACE))["spec"]["jobTemplate"]["spec"]
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta(name), "spec": template}
    await bed.api.create(JOBS, body, namespace=NAMESPACE)
    await finished(bed, name, 1)
    pod = await pod_of_job(bed, name)
    await bed.api.delete(JOBS, name, namespace=NAMESPACE)
    return "claims" if pod["spec"].get("resourceClaims") else "limits"


async def pod_of_job(bed: Bed, name: str) -> Json:
    (pod,) = [one for one in await bed.workload_pods() if one["metadata"]["labels"].get(JOB_NAME) == name]
    return pod


@pytest_asyncio.fixture(loop_scope="module")
async def in_use(bed: Bed) -> AsyncIterator[list[Json]]:
    """The workloads, on limits, with all their pods; what was applied is returned."""
    objects = workloads(bed)
    try:
        for one in objects:
            await bed.api.create(KINDS[one["kind"]], one, namespace=NAMESPACE)
        await available(bed)
        assert {**(await used(bed)), "once": ["limits"]} == {**everything("limits"), "once": ["limits"]}
        yield objects
    finally:  # of a test that failed, too
        await bed.api.delete(CRON_JOBS, "nightly", namespace=NAMESPACE)
        await back_on_limits()
        bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": bed.node_object}}
        await bed.api.apply(NODES, bare, manager=f"{marks.MANAGER}-{common.DRIVER}")


async def moved_and_back(bed: Bed, plan: Path, *choices: str | Path, for_claims: int = DEVICES) -> None:
    """Report, plan, apply, and all the way back, with what holds after each."""
    once = (await pod_of_job(bed, "once"))["metadata"]["uid"]
    report = json.loads(await migrate("report", "--class", f"{RESOURCE}={CLASS}", "-o", "json", "--fail-on", "never"))
    (ours,) = [one for one in report["resources"] if one["name"] == RESOURCE]
    assert (ours["allocatable"], ours["pods"]["claims"]) == (DEVICES, 0)
    shown = await migrate("plan", "--class", f"{RESOURCE}={CLASS}", "-n", NAMESPACE, "--write", plan, *choices)
    assert "missing" not in shown
    await interrupted("apply", plan, "--all")
    said = await migrate("apply", plan, "--all")
    assert "every step of the plan is done" in said
    await available(bed)
    assert (await pod_of_job(bed, "once"))["metadata"]["uid"] == once, "nobody may end a pod that is not rolled out"
    await finished(bed, "once", 1)
    assert await used(bed) == everything("claims")
    await offered(bed, legacy=DEVICES - for_claims, dra=for_claims)
    assert await next_night(bed, "first") == "claims"
    assert set(_states(await migrate("status", plan, "-o", "json"))) == {"done"}

    await interrupted("rollback", plan)
    await migrate("rollback", plan, "--all")
    await available(bed)
    assert await used(bed) == everything("limits")
    await offered(bed, legacy=DEVICES, dra=0)
    assert LANES not in (await bed.api.get(NODES, bed.node_object))["metadata"].get("annotations", {})
    assert await next_night(bed, "second") == "limits"
    assert set(_states(await migrate("status", plan, "-o", "json"))) == {"to do"}


def _states(text: str) -> list[str]:
    return [row["state"] for row in json.loads(text)]


@needs("admission policies that change pods")
async def test_a_namespace_is_switched_and_back(bed: Bed, in_use: list[Json], tmp_path: Path) -> None:
    specs = [one["spec"] for one in in_use]
    await moved_and_back(bed, tmp_path / "plan.yaml")
    live = [await bed.api.get(KINDS[one["kind"]], one["metadata"]["name"], namespace=NAMESPACE) for one in in_use]
    for wanted, one in zip(specs, live, strict=True):
        template = one["spec"].get("template") or one["spec"]["jobTemplate"]["spec"]["template"]
        asked = wanted.get("template") or wanted["jobTemplate"]["spec"]["template"]
        assert "resourceClaims" not in template["spec"]
        resources = [one["resources"] for one in template["spec"]["containers"]]
        assert resources == [one["resources"] for one in asked["spec"]["containers"]]


async def test_manifests_are_converted_and_back(bed: Bed, in_use: list[Json], tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    folder.mkdir()
    for one in in_use:
        if one["kind"] != "Job":  # nobody can change a Job
            without_aliases = yaml.safe_dump(json.loads(json.dumps(one)), sort_keys=False)
            text = f"# {one['metadata']['name']}, as we run it\n{without_aliases}"
            (folder / f"{one['metadata']['name']}.yaml").write_text(text)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    plan = tmp_path / "plan.yaml"
    await moved_and_back(bed, plan, "--manifests", folder, for_claims=DEVICES - 1)  # that of the Job, which stays
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
