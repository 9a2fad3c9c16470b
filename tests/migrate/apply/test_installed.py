"""``drabridge migrate apply`` of what Helm, Flux or Argo CD installed: a change in the cluster would be undone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.migrate.installers import installer_of
from tests.migrate.cluster_objects import (
    CLASS,
    GPU,
    claim,
    claim_pod,
    device_class,
    meta,
    migrate,
    node,
    pod,
    serving,
    workload,
)
from tests.migrate.desk import OURS, Desk

Json = dict[str, Any]
LIMITS = {"limits": {GPU: "1"}}
FLUX = {"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}
HELM = {"annotations": {"meta.helm.sh/release-name": "web"}, "labels": {"app.kubernetes.io/managed-by": "Helm"}}


@asynccontextmanager
async def desk(tmp_path: Path, installed: Json) -> AsyncIterator[Desk]:
    """A StatefulSet that somebody installed, its manifest, and a plan for both; all devices are for claims already."""
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": LIMITS}]},
    }
    web = workload("StatefulSet", "web")
    web["metadata"] |= installed
    web["spec"] = {"replicas": 1, "serviceName": "web", "selector": {"matchLabels": labels}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web", "namespace": "team-a"}}
    namespaces: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": meta(name, "")} for name in ("kube-system", "team-a")
    ]
    async with serving(*namespaces, node(), web, pod("web-0", owner=web)) as (api, kubeconfig):
        found = Desk(api, kubeconfig, tmp_path / "plan.yaml")
        found.plan.with_name("web.yaml").write_text(yaml.safe_dump({**manifest, "spec": web["spec"]}))
        words = ("--class", f"{GPU}={OURS}", "--driver", OURS, "--manifests", str(tmp_path))
        code, out, err = await migrate("plan", "--kubeconfig", str(kubeconfig), *words, "--write", str(found.plan))
        assert code == 0, err
        found.said = " ".join(out.split())  # type: ignore[attr-defined]
        plan = yaml.safe_load(found.plan.read_text())
        for step in plan["steps"]:
            step.pop("lanes", None)  # no agent is here that could change them
        found.plan.write_text(yaml.safe_dump(plan))
        yield found


def asked(api: Any) -> Json:
    (found,) = api.objects.peek("statefulsets")
    resources: Json = found["spec"]["template"]["spec"]["containers"][0]["resources"]
    return resources


async def test_what_a_repository_installs_is_converted_there_and_waited_for(tmp_path: Path) -> None:
    async with desk(tmp_path, FLUX) as found:
        assert "StatefulSet/web was installed by Flux's Kustomization apps" in found.said  # type: ignore[attr-defined]
        code, out, err = await found.apply()
        assert code == 1
        assert "commit web.yaml: Flux's Kustomization apps brings it to the cluster" in out
        assert "StatefulSet/web still with limits in the cluster" in err
        assert asked(found.api) == LIMITS, "the cluster is left to Flux"
        assert list(found.api.objects.peek("resourceclaimtemplates")) == []
        text = found.plan.with_name("web.yaml").read_text()
        assert "resourceClaimTemplateName: nvidia-gpu-1" in text
        assert "kind: ResourceClaimTemplate" in text
        code, out, err = await found.run("rollback", "--wait", "0")
        assert "commit its manifest" in out, err
        assert "resourceClaims" not in found.plan.with_name("web.yaml").read_text()


async def test_what_helm_installs_is_refused_before_anything_changes(tmp_path: Path) -> None:
    async with desk(tmp_path, HELM) as found:
        before = found.plan.with_name("web.yaml").read_bytes()
        assert "StatefulSet/web was installed by Helm's release web" in found.said  # type: ignore[attr-defined]
        code, _, err = await found.apply()
        assert code == 1
        assert "was installed by Helm's release web, which would undo the change" in err
        assert "Nothing was changed" in err
        assert asked(found.api) == LIMITS
        assert found.plan.with_name("web.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("metadata", "words", "from_git"),
    [
        (FLUX, "Flux's Kustomization apps", True),
        ({"labels": {"helm.toolkit.fluxcd.io/name": "r", **HELM["labels"]}}, "Flux's HelmRelease r", False),
        (
            {"annotations": {"argocd.argoproj.io/tracking-id": "shop:apps/x:a/b"}},
            "Argo CD's Application shop",
            True,
        ),
        ({"labels": {"argocd.argoproj.io/instance": "shop"}}, "Argo CD's Application shop", True),
        (HELM, "Helm's release web", False),
        ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, "a release of Helm", False),
    ],
)
def test_what_installed_an_object_is_known_by_what_it_wrote(metadata: Json, words: str, from_git: bool) -> None:
    found = installer_of(metadata)
    assert found is not None
    assert (found.words, found.from_git) == (words, from_git)


@pytest.mark.parametrize("metadata", [{}, {"labels": None}, {"labels": {"app.kubernetes.io/managed-by": "me"}}])
def test_other_objects_have_no_installer(metadata: Json) -> None:
    assert installer_of(metadata) is None


async def test_verify_says_what_is_on_claims_and_what_fell_back() -> None:
    """Beside its pod with a claim one has a pod with limits again: somebody brought the old manifest."""
    good, bad, old = (workload("StatefulSet", name) for name in ("good", "bad", "old"))
    objects = [
        *(node(), device_class(), claim("c1"), claim("c2"), good, bad, old),
        *(claim_pod("good-0", "c1", owner=good), claim_pod("bad-0", "c2", owner=bad)),
        *(pod("bad-1", owner=bad), pod("old-0", owner=old)),
    ]
    async with serving(*objects) as (_, kubeconfig):
        words = ("--kubeconfig", str(kubeconfig), "--class", f"{GPU}={CLASS}", "-o", "json")
        code, out, err = await migrate("verify", *words)
    states = {row["workload"]: row["state"] for row in json.loads(out)}
    assert states == {
        "StatefulSet/bad": "fell back to limits",
        "StatefulSet/good": "on claims",
        "StatefulSet/old": "on limits",
    }, err
    assert code == 1
