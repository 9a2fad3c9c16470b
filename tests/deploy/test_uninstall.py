"""The check before ``helm uninstall``: the chart's Job, run with its own account against a cluster with claims."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.helm import hooks, manifests, one
from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.deploy.renders import EVERYTHING, LEGACY_ONLY
from tests.support.agent_on_cluster import CLASS, bridge, claim_pod
from tests.support.agent_process import DRIVER
from tests.support.waiting import short_directory

Json = dict[str, Any]
VALUES: Json = {"config": {"driver": DRIVER}}
DELETED = "before-hook-creation,hook-succeeded"


def pod(values: Json | None = None) -> Json:
    found: Json = one(hooks(values), "Job")["spec"]["template"]
    return found


async def run_check(cluster: SimCluster, root: Path) -> tuple[int, str]:
    """The Job's container: exit code, and what its log says."""
    account = pod(VALUES)["spec"]["serviceAccountName"]
    token = cluster.api.token("node-a", account=account)
    kubeconfig = cluster.api.kubeconfig(root / "check.kubeconfig", token=token)
    (container,) = pod(VALUES)["spec"]["containers"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "drabridge", *container["args"], "--kubeconfig", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_an_uninstall_is_refused_in_words_while_a_claim_is_prepared_and_passes_afterwards() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("training"))
        await cluster.wait_pod("training")
        code, said = await run_check(cluster, agent.root)
        assert code == 1
        for words in ("1 claim has devices of mem.example.com", "node-a", "default/training", "Terminating for ever"):
            assert words in said
        await cluster.delete("pods", "training")
        await cluster.delete("resourceclaims", "training")
        code, said = await run_check(cluster, agent.root)
        assert (code, "drained: no claim has a device of mem.example.com" in said) == (0, True), said


async def test_the_role_of_the_check_is_what_it_asks_for() -> None:
    with short_directory() as root:
        async with SimCluster(root, timings=ClusterTimings.fast()) as cluster:
            await cluster.apply(CLASS)
            assert (await run_check(cluster, root))[0] == 0
            account = f"system:serviceaccount:kube-system:{pod(VALUES)['spec']['serviceAccountName']}"
            mine = [request for request in cluster.api.requests if request.user == account]
            asked = {request.rule for request in mine if request.verb != "nonresource"}
            (rule,) = one(hooks(VALUES), "ClusterRole")["rules"]
            assert asked == {
                (group, resource, verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }


def test_the_check_exists_only_during_the_uninstall_and_after_its_account() -> None:
    found = hooks()
    assert {obj["kind"] for obj in found} == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    weights = {}
    for obj in found:
        annotations = obj["metadata"]["annotations"]
        assert (annotations["helm.sh/hook"], annotations["helm.sh/hook-delete-policy"]) == ("pre-delete", DELETED)
        weights[obj["kind"]] = int(annotations["helm.sh/hook-weight"])
    assert weights.pop("Job") > max(weights.values())
    names = {obj["metadata"]["name"] for obj in manifests()}
    assert names.isdisjoint(obj["metadata"]["name"] for obj in found), "deleting the check must not delete the agent's"
    (subject,) = one(found, "ClusterRoleBinding")["subjects"]
    assert subject["name"] == one(found, "ServiceAccount")["metadata"]["name"] == pod()["spec"]["serviceAccountName"]


def test_the_check_is_not_selected_as_an_agent_and_runs_unprivileged() -> None:
    selector = one(manifests(), "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pod()["metadata"]["labels"].items()
    spec = pod(EVERYTHING)["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumes" not in spec
    agent = one(manifests(EVERYTHING), "DaemonSet")["spec"]["template"]["spec"]
    assert container["image"] == agent["containers"][0]["image"]
    for key in ("nodeSelector", "tolerations", "affinity", "imagePullSecrets"):  # where the image can be had
        assert spec[key] == agent[key]


@pytest.mark.parametrize("values", [{"uninstall": {"check": False}}, LEGACY_ONLY], ids=["off", "no claims"])
def test_a_value_switches_it_off_and_without_claims_there_is_none(values: Json) -> None:
    assert hooks(values) == []


def test_long_release_names_stay_valid_names() -> None:
    name = pod_name = one(hooks({"fullnameOverride": "x" * 63}), "Job")["metadata"]["name"]
    assert len(pod_name) <= 63
    assert name.endswith("-uninstall")
