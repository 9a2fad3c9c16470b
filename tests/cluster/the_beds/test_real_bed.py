"""What runs on real nodes do not show of the real bed: what it says where something lacks."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from drabridge.kube.client import KubernetesCluster
from tests.cluster import workloads as w
from tests.cluster.bed import ScenarioError, wait_for
from tests.cluster.real_bed import WANTED, RealBed
from tests.cluster.sim_bed import simulated
from tests.cluster.steps import claim_pod, running


def test_an_image_without_flock_is_not_taken_for_a_double_hold(tmp_path: Path) -> None:
    container = w.legacy_pod("p", "image", "n")["spec"]["containers"][0]
    program = container["command"][2].replace("/locks/", f"{tmp_path}/").replace("/dev/test-", "/dev/zer")
    variables = {"PATH": "/nowhere"}
    assert subprocess.run(["/bin/sh", "-c", program], env=variables, check=False).returncode == w.NO_LOCK
    with (tmp_path / "o").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        variables["PATH"] = os.environ["PATH"]
        assert subprocess.run(["/bin/sh", "-c", program], env=variables, check=False).returncode == w.TAKEN
    assert (tmp_path / w.CONFLICTS).read_text().endswith(": device o was taken\n")


async def test_a_failed_scenario_shows_all_that_is_known() -> None:
    async with simulated() as bed:
        await bed.install()
        await wait_for(bed, "the agent to be ready", bed.ready)
        await claim_pod(bed, "c1")
        await claim_pod(bed, "c2")
        await claim_pod(bed, "c3")  # one more than there are devices for claims
        await running(bed, "c1", "c2")

        async def never() -> bool:
            return False

        with pytest.raises(ScenarioError) as raised:
            await wait_for(bed, "what never comes", never, 0.1)
        text = str(raised.value)
        assert text.startswith("waited 0 s for what never comes\n")
        for words in ('"reason": "Unschedulable"', "Pod c3 FailedScheduling", '"driver": "cluster-test', '"resources"'):
            assert words in text, text


@pytest.mark.parametrize("variable", ["DRABRIDGE_TEST_KUBELET_RESTART", "DRABRIDGE_TEST_NODE_REBOOT"])
async def test_harmful_commands_run_only_where_they_are_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name in WANTED:
        monkeypatch.setenv(name, "registry.example.com/x:1")
    monkeypatch.delenv("DRABRIDGE_TEST_CLUSTER", raising=False)
    bed = RealBed(KubernetesCluster.from_kubeconfig(tmp_path / "none"), "n", "n")

    async def harm() -> None:
        await (bed.reboot(agent_first=False) if variable.endswith("REBOOT") else bed.restart_kubelet())

    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"{variable}|not a cluster of tests.node"):
        await harm()
    with pytest.raises(pytest.skip.Exception, match=r"not a cluster of tests.node: nothing here can kill kubelet"):
        await bed.fault("kill", "kubelet")
    monkeypatch.setenv(variable, f"touch {tmp_path}/done")
    await harm()
    assert (tmp_path / "done").exists()
    monkeypatch.setenv(variable, "false")
    with pytest.raises(AssertionError, match="failed"):
        await harm()
