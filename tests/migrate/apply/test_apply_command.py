"""``drabridge migrate apply``, ``rollback`` and ``status`` where something is not as planned.

What they do when all is well needs controllers, kubelet and an agent: tests/cluster/moving/test_migrate.py.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drabridge.kube.api import NODES
from drabridge.kube.client import KubernetesCluster
from drabridge.sim.apiserver.kinds import BY_KIND
from tests.migrate.cluster_objects import GPU, meta, migrate, node, pod, resource_slice, serving, workload
from tests.migrate.desk import ANNOTATION, OURS, Desk
from tests.support.waiting import until

Json = dict[str, Any]
KUBE_SYSTEM: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta("kube-system", "")}
TEAM: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta("team-a", "")}


def cluster() -> list[Json]:
    web = workload("StatefulSet", "web")
    return [KUBE_SYSTEM, TEAM, node(), web, pod("web-0", owner=web)]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    plan = tmp_path / "plan.yaml"
    async with serving(*cluster()) as (api, kubeconfig):
        words = ("--class", f"{GPU}={OURS}", "--driver", OURS, "--write", str(plan))
        code, _, err = await migrate("plan", "--kubeconfig", str(kubeconfig), *words)
        assert code == 0, err
        yield Desk(api, kubeconfig, plan)


async def test_a_node_whose_agent_does_not_answer_stops_the_step_and_rollback_undoes_it(desk: Desk) -> None:
    code, out, err = await desk.apply()
    assert code == 1
    assert "team-a: lanes: devices for claims: node-a: 1" in out
    assert "node-a offers claims 0 of 1 devices" in err
    assert "See that the agent runs there" in err
    assert "The same command goes on here" in err
    assert await desk.states() == ["begun", "to do"]
    assert json.loads(await desk.annotation() or "") == {GPU: {"legacy": "*", "dra": 1}}
    code, _, err = await desk.run("rollback")
    assert code == 0, err
    assert await desk.states() == ["to do", "to do"]
    assert await desk.annotation() is None
    assert (await desk.run("rollback"))[:2] == (0, "no step is done: there is nothing to undo\n")


async def test_what_the_annotation_said_of_other_resources_stays_and_comes_back(desk: Desk) -> None:
    api = KubernetesCluster.from_kubeconfig(desk.kubeconfig)
    before = json.dumps({"example.com/nic": {"legacy": 1, "dra": 1}})
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "annotations": {ANNOTATION: before}}}
    await api.apply(NODES, body, manager="somebody")
    api.close()
    assert (await desk.apply())[0] == 1
    assert json.loads(await desk.annotation() or "") == {**json.loads(before), GPU: {"legacy": "*", "dra": 1}}
    assert (await desk.run("rollback"))[0] == 0
    assert await desk.annotation() == before


async def test_a_plan_of_another_cluster_is_refused(desk: Desk) -> None:
    desk.edit(cluster="of-another")
    code, _, err = await desk.apply()
    assert code == 1
    assert "the plan is of another cluster" in err
    assert await desk.annotation() is None


async def test_a_step_that_does_not_fit_is_refused(desk: Desk) -> None:
    desk.edit_first_step(missing=["a device"])
    code, _, err = await desk.apply()
    assert code == 1
    assert "step team-a does not fit: a device" in err
    assert await desk.states() == ["to do", "to do"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ([{"object": "StatefulSet/web", "pods": 1, "devices": 2, "how": "rollout"}], "has 1 device each, and had 2"),
        ([{"object": "StatefulSet/web", "pods": 0, "devices": 1, "how": "rollout"}], "has 1 pod, and had 0"),
        ([], "StatefulSet/web is new"),
    ],
)
async def test_what_changed_since_the_plan_was_made_stops_a_step(desk: Desk, change: list[Json], said: str) -> None:
    gone = {"object": "StatefulSet/gone", "pods": 1, "devices": 1, "how": "rollout"}
    desk.edit_first_step(moves=[*change, gone])
    code, _, err = await desk.apply()
    assert code == 1
    assert said in err
    assert "Plan again; steps that are done stay done" in err
    assert await desk.annotation() is None


async def test_a_node_that_lost_devices_stops_a_step(desk: Desk) -> None:
    desk.edit(devices={"node-a": 12})
    code, _, err = await desk.apply()
    assert code == 1
    assert "node-a has 8 devices, and had 12" in err


async def test_a_step_that_was_begun_cannot_be_edited(desk: Desk) -> None:
    await desk.apply()
    desk.edit_first_step(lanes={"node-a": 3})
    code, _, err = await desk.apply()
    assert code == 2
    assert "step team-a was begun with another text" in err


@pytest.mark.parametrize("text", ["{", '{"version": 1, "cluster": "x", "steps": {}}', '{"version": 1}'])
async def test_a_state_that_is_damaged_or_of_another_plan_is_named(desk: Desk, text: str) -> None:
    state = desk.plan.with_name("plan.yaml.state.json")
    state.write_text(text)
    code, _, err = await desk.apply()
    assert code == 2
    assert str(state) in err
    assert await desk.annotation() is None


async def test_what_a_repository_converts_is_left_alone_on_the_way_back(desk: Desk) -> None:
    desk.edit_first_step(way="manifests", lanes={})
    code, out, _ = await desk.apply("--lanes-only")
    assert (code, "in your repository" in out) == (0, True)
    assert await desk.states() == ["done", "to do"]
    code, _, err = await desk.run("rollback")
    assert code == 0, err
    assert await desk.states() == ["to do", "to do"]


async def test_two_commands_do_not_follow_one_plan(desk: Desk) -> None:
    with desk.plan.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        code, _, err = await desk.apply()
    assert code == 1
    assert f"another command follows {desk.plan} now" in err


async def test_an_api_server_that_is_away_is_waited_for(desk: Desk) -> None:
    running = asyncio.create_task(desk.run("apply", "--wait", "60", "-o", "json"))
    await until(desk.plan.with_name("plan.yaml.state.json").exists)
    desk.api.faults.fail(4, 503, verb="list")
    offered = resource_slice(count=1, driver=OURS)  # by the agent, at last
    offered["spec"]["devices"][0]["attributes"] = {"resource": {"string": GPU}}
    stored = {key: value for key, value in offered.items() if key not in ("apiVersion", "kind")}
    desk.api.objects.store.put(BY_KIND["ResourceSlice"], stored)
    code, out, err = await running
    events = [json.loads(line) for line in out.splitlines()]
    assert [event for event in events if event["object"] == "lanes" and "waitedSeconds" in event]
    assert code == 2
    assert f"there is no DeviceClass {OURS}" in err, "the next thing that this cluster lacks"


async def test_an_unknown_step_is_refused(desk: Desk) -> None:
    for command, option in (("apply", "--until"), ("rollback", "--to")):
        code, _, err = await desk.run(command, option, "team-x")
        assert code == 2
        assert "the plan has no step team-x" in err


async def test_manifests_of_others_are_waited_for(desk: Desk) -> None:
    code, _, err = await desk.apply("--wait-for-manifests")
    assert code == 2
    assert "--wait-for-manifests belongs to --lanes-only" in err
