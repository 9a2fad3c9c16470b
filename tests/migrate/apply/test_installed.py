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
from tests.deploy.kubectl import KubectlRefusedError, kubectl
from tests.migrate.cluster_objects import (
    CLASS,
    GPU,
    asked,
    claim,
    claim_pod,
    device_class,
    meta,
    migrate,
    namespace,
    node,
    pod,
    serving,
    workload,
)
from tests.migrate.desk import OURS, Desk

Json = dict[str, Any]
LIMITS = {"limits": {GPU: "1"}}
LIMITS_AT = "/spec/template/spec/containers/0/resources/limits"
SPACES = [namespace(name, switched=False) for name in ("kube-system", "team-a")]
FLUX = {"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}
HELM = {"annotations": {"meta.helm.sh/release-name": "web"}, "labels": {"app.kubernetes.io/managed-by": "Helm"}}


@asynccontextmanager
async def desk(tmp_path: Path, installed: Json, text: str = "", *, lanes: bool = False) -> AsyncIterator[Desk]:
    """A StatefulSet that somebody installed, its manifest, and a plan for both; all devices are for claims already.

    ``text``: instead of its manifest. ``lanes``: the plan has its lanes, which nobody gives it here.
    """
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": LIMITS}]},
    }
    web = workload("StatefulSet", "web")
    web["metadata"] |= installed
    web["spec"] = {"replicas": 1, "serviceName": "web", "selector": {"matchLabels": labels}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web", "namespace": "team-a"}}
    async with serving(*SPACES, node(), web, pod("web-0", owner=web)) as (api, kubeconfig):
        found = Desk(api, kubeconfig, tmp_path / "plan.yaml")
        found.plan.with_name("web.yaml").write_text(text or yaml.safe_dump({**manifest, "spec": web["spec"]}))
        await planned(found, tmp_path, lanes=lanes)
        yield found


async def planned(found: Desk, manifests: Path, *, lanes: bool = False) -> None:
    words = ("--class", f"{GPU}={OURS}", "--driver", OURS, "--manifests", str(manifests), "--write", str(found.plan))
    code, out, err = await migrate("plan", "--kubeconfig", str(found.kubeconfig), *words)
    assert code == 0, err
    found.said = " ".join(out.split())
    plan = yaml.safe_load(found.plan.read_text())
    for step in plan["steps"] if not lanes else ():
        step.pop("lanes", None)  # no agent is here that could change them
    found.plan.write_text(yaml.safe_dump(plan))


def resources_of(api: Any) -> Json:
    """What the StatefulSet's container asks for, in the cluster."""
    (found,) = api.objects.peek("statefulsets")
    resources: Json = found["spec"]["template"]["spec"]["containers"][0]["resources"]
    return resources


async def test_what_a_repository_installs_is_converted_there_and_waited_for(tmp_path: Path) -> None:
    async with desk(tmp_path, FLUX) as found:
        assert "StatefulSet/web was installed by Flux's Kustomization apps" in found.said
        code, out, err = await found.apply()
        assert code == 1
        assert "commit web.yaml: Flux's Kustomization apps brings it to the cluster" in out
        assert "StatefulSet/web still with limits in the cluster" in err
        assert resources_of(found.api) == LIMITS, "the cluster is left to Flux"
        assert list(found.api.objects.peek("resourceclaimtemplates")) == []
        text = found.plan.with_name("web.yaml").read_text()
        assert "resourceClaimTemplateName: nvidia-gpu-1" in text
        assert "kind: ResourceClaimTemplate" in text
        code, out, err = await found.run("rollback", "--wait", "0")
        assert "commit its manifest" in out, err
        assert "resourceClaims" not in found.plan.with_name("web.yaml").read_text()


async def test_for_a_release_of_helm_a_folder_is_written_and_waited_for(tmp_path: Path) -> None:
    async with desk(tmp_path, HELM) as found:
        before = found.plan.with_name("web.yaml").read_bytes()
        assert "StatefulSet/web was installed by Helm's release web" in found.said
        assert "a folder with a patch" in found.said
        code, out, err = await found.apply()
        assert code == 1
        assert "Helm's release web: upgrade it with for-owners.claims/helm-s-release-web/" in out
        assert "StatefulSet/web still with limits in the cluster" in err
        assert resources_of(found.api) == LIMITS, "the cluster is left to Helm"
        assert list(found.api.objects.peek("resourceclaimtemplates")) == []
        assert found.plan.with_name("web.yaml").read_bytes() == before, "nor is its manifest what Helm reads"
        folder = tmp_path / "for-owners.claims" / "helm-s-release-web"
        first = (folder / "kustomization.yaml").read_text()
        assert "--post-renderer" in first.partition("apiVersion")[0]
        patch = yaml.safe_load((folder / "claims" / "kustomization.yaml").read_text())["patches"][0]
        assert "namespace" not in patch["target"], "what Helm makes need not say it"
        assert {"op": "test", "path": LIMITS_AT, "value": {GPU: "1"}} in yaml.safe_load(patch["patch"])
        code, out, err = await found.apply()
        assert "still with limits" in err, "it goes on where it was"
        code, out, err = await found.run("rollback", "--wait", "0")
        assert "upgrade without the folder" in out, err
        assert not folder.exists()


@pytest.mark.kubectl
async def test_the_folder_makes_of_helms_output_what_a_conversion_makes(tmp_path: Path) -> None:
    async with desk(tmp_path, HELM) as found:
        await found.apply()
        folder = tmp_path / "for-owners.claims" / "helm-s-release-web"
        rendered = yaml.safe_load(found.plan.with_name("web.yaml").read_text())
        del rendered["metadata"]["namespace"]
        (folder / "rendered.yaml").write_text(yaml.safe_dump(rendered))
        made = [*yaml.safe_load_all(kubectl("kustomize", str(folder)))]
        (pod,) = (one["spec"]["template"]["spec"] for one in made if one["kind"] == "StatefulSet")
        assert pod["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "nvidia-gpu-1"}]
        assert pod["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
        rendered["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: "2"}}
        (folder / "rendered.yaml").write_text(yaml.safe_dump(rendered))
        with pytest.raises(KubectlRefusedError, match="test failed"):
            kubectl("kustomize", str(folder))


FLUX_RELEASE = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: tv, namespace: flux-system}
spec:
  targetNamespace: team-a
  chart: {spec: {chart: jellyfin}}
  values:
    resources:
      limits:
        nvidia.com/gpu: 1
"""
OF_RELEASE = {"labels": {"helm.toolkit.fluxcd.io/name": "tv", "helm.toolkit.fluxcd.io/namespace": "flux-system"}}


async def test_the_release_that_makes_a_workload_is_converted_in_its_file(tmp_path: Path) -> None:
    async with desk(tmp_path, OF_RELEASE, FLUX_RELEASE) as found:
        plan = yaml.safe_load(found.plan.read_text())
        (step,) = (one for one in plan["steps"] if one["way"] == "manifests")
        assert [one["object"] for one in step["moves"]] == ["StatefulSet/web"]
        assert "commit or apply it" in " ".join(step["notes"])
        code, out, err = await found.apply()
        assert code == 1, err
        assert "commit web.yaml: Flux's HelmRelease tv brings it to the cluster" in out
        assert resources_of(found.api) == LIMITS
        text = found.plan.with_name("web.yaml").read_text()
        assert "postRenderers:" in text
        assert "namespace: team-a" in text.partition("kind: ResourceClaimTemplate")[2]
        code, out, err = await found.run("rollback", "--wait", "0")
        assert found.plan.with_name("web.yaml").read_text() == FLUX_RELEASE, err


async def test_what_one_release_makes_is_one_step(tmp_path: Path) -> None:
    webs = [workload("Deployment", name) for name in ("one", "two")]
    for web in webs:
        web["metadata"] |= OF_RELEASE
    (tmp_path / "tv.yaml").write_text(FLUX_RELEASE)
    words = ("--class", f"{GPU}={OURS}", "--driver", OURS, "--manifests", str(tmp_path), "-o", "json")
    _, out, err = await asked([*SPACES, node(), *webs], "plan", *words)
    steps = [one for one in json.loads(out)["steps"] if one["way"] == "manifests"]
    assert [[move["object"] for move in one["moves"]] for one in steps] == [["Deployment/one", "Deployment/two"]], err


NIM = """\
apiVersion: apps.nvidia.com/v1alpha1
kind: NIMService
metadata: {name: llm, namespace: team-a}
spec:
  resources:
    limits:
      nvidia.com/gpu: 1
"""


async def test_a_custom_resource_is_converted_in_its_file_and_left_to_its_operator(tmp_path: Path) -> None:
    owner = {"apiVersion": "apps.nvidia.com/v1alpha1", "kind": "NIMService", "metadata": meta("llm")}
    (tmp_path / "nim.yaml").write_text(NIM)
    async with serving(*SPACES, node(), pod("llm-0", owner=owner)) as (api, kubeconfig):
        found = Desk(api, kubeconfig, tmp_path / "plan.yaml")
        await planned(found, tmp_path)
        assert "NIMService/llm belongs to the operator of NIMServices" in found.said
        code, out, err = await found.apply()
        assert code == 1
        assert "kubectl apply -f nim.yaml: the operator of NIMServices brings it to the cluster" in out, err
        assert "NIMService/llm still with limits in the cluster" in err
        assert "draResources" in (tmp_path / "nim.yaml").read_text()
        code, out, err = await found.run("rollback", "--wait", "0")
        assert (tmp_path / "nim.yaml").read_text() == NIM, err


async def test_a_pod_that_a_person_made_is_refused_before_anything_changes(tmp_path: Path) -> None:
    text = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: lonely, namespace: team-a}}
spec: {{containers: [{{name: c, image: x, resources: {{limits: {{{GPU}: 1}}}}}}]}}
"""
    (tmp_path / "pod.yaml").write_text(text)
    async with serving(*SPACES, node(), pod("lonely")) as (api, kubeconfig):
        found = Desk(api, kubeconfig, tmp_path / "plan.yaml")
        await planned(found, tmp_path)
        code, _, err = await found.apply()
        assert code == 1
        assert "a Pod cannot be changed by a plan" in err
        assert (tmp_path / "pod.yaml").read_text() == text


@pytest.mark.parametrize("status", [422, 403])
async def test_a_manifest_that_the_api_server_refuses_stops_the_step_before_its_lanes(
    tmp_path: Path, status: int
) -> None:
    async with desk(tmp_path, {}, lanes=True) as found:
        before = (tmp_path / "web.yaml").read_bytes()
        found.api.faults.fail(1, status, verb="update", resource="statefulsets")
        code, _, err = await found.apply()
        assert code == 1
        assert "team-a/StatefulSet/web: the API server would refuse the converted manifest" in err
        assert "Nothing was changed" in err
        assert await found.annotation() is None
        assert (tmp_path / "web.yaml").read_bytes() == before
        assert not found.plan.with_name("plan.yaml.state.json").exists()


async def test_the_try_changes_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, lanes=True) as found:
        before = (tmp_path / "web.yaml").read_bytes()
        code, _, err = await found.apply()
        assert code == 1
        assert "node-a offers claims 0 of 1 devices" in err
        assert resources_of(found.api) == LIMITS
        assert list(found.api.objects.peek("resourceclaimtemplates")) == []
        assert (tmp_path / "web.yaml").read_bytes() == before


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
    code, out, err = await asked(objects, "verify", "--class", f"{GPU}={CLASS}", "-o", "json")
    states = {row["workload"]: row["state"] for row in json.loads(out)}
    assert states == {
        "StatefulSet/bad": "fell back to limits",
        "StatefulSet/good": "on claims",
        "StatefulSet/old": "on limits",
    }, err
    assert code == 1
