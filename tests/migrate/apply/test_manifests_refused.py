"""``drabridge migrate apply`` lets the API server try a step's manifests before it changes anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.migrate.cluster_objects import GPU, meta, migrate, node, pod, serving, workload
from tests.migrate.desk import OURS, Desk

Json = dict[str, Any]
LIMITS = {"limits": {GPU: "1"}}


class Manifest(Desk):
    """The same with a StatefulSet and its manifest."""

    @property
    def path(self) -> Path:
        return self.plan.with_name("web.yaml")

    def resources(self) -> Json:
        """What the StatefulSet's container asks for, in the cluster."""
        (found,) = self.api.objects.peek("statefulsets")
        asked: Json = found["spec"]["template"]["spec"]["containers"][0]["resources"]
        return asked


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Manifest]:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": LIMITS}]},
    }
    web = workload("StatefulSet", "web")
    web["spec"] = {"replicas": 1, "serviceName": "web", "selector": {"matchLabels": labels}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web", "namespace": "team-a"}}
    namespaces: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": meta(name, "")} for name in ("kube-system", "team-a")
    ]
    async with serving(*namespaces, node(), web, pod("web-0", owner=web)) as (api, kubeconfig):
        found = Manifest(api, kubeconfig, tmp_path / "plan.yaml")
        found.path.write_text(yaml.safe_dump({**manifest, "spec": web["spec"]}))
        words = ("--class", f"{GPU}={OURS}", "--driver", OURS, "--manifests", str(tmp_path))
        code, _, err = await migrate("plan", "--kubeconfig", str(kubeconfig), *words, "--write", str(found.plan))
        assert code == 0, err
        yield found


@pytest.mark.parametrize("status", [422, 403])
async def test_a_manifest_that_the_api_server_refuses_stops_the_step_before_its_lanes(
    desk: Manifest, status: int
) -> None:
    before = desk.path.read_bytes()
    desk.api.faults.fail(1, status, verb="update", resource="statefulsets")
    code, _, err = await desk.apply()
    assert code == 1
    assert "team-a/StatefulSet/web: the API server would refuse the converted manifest" in err
    assert "Nothing was changed" in err
    assert await desk.annotation() is None
    assert desk.path.read_bytes() == before
    assert not desk.plan.with_name("plan.yaml.state.json").exists()


async def test_the_try_changes_nothing(desk: Manifest) -> None:
    """Then the step waits for its lanes, which nobody gives it here."""
    before = desk.path.read_bytes()
    code, _, err = await desk.apply()
    assert code == 1
    assert "node-a offers claims 0 of 1 devices" in err
    assert desk.resources() == LIMITS
    assert list(desk.api.objects.peek("resourceclaimtemplates")) == []
    assert desk.path.read_bytes() == before
