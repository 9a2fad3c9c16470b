"""What each container uses of a GPU, by the real process that asks a stand-in for NVIDIA's library."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drabridge.config.nvidia import Nvidia
from drabridge.inventory import gpu_use
from drabridge.inventory.devices import PCI_BUS_ID, Device
from drabridge.inventory.gpu_use import GpuUse, container_of
from drabridge.inventory.nvml_process import NvmlClient, Timing
from drabridge.inventory.nvml_report import DeviceUse, Process, Use
from drabridge.inventory.nvml_worker import NODE_PROCESSES
from drabridge.ledger.entries import Ledger
from drabridge.telemetry.gpu_use import samples
from tests.support import machines
from tests.support.nvml import StandIn, end, mig_uuid, needs_compiler
from tests.support.waiting import HANG_SECONDS, until

QUICK = Timing(look=0.05, silence=HANG_SECONDS, start=HANG_SECONDS, kill=2.0, pauses=(0.05,))
GPU = machines.gpu_address(0)
POD_A, POD_B = "0a0a0a0a-1111-4222-8333-444444444444", "0b0b0b0b-1111-4222-8333-444444444444"
ONE, TWO = "1" * 64, "2" * 64
MIB = 1 << 20


def host_processes(folder: Path, namespace: str = NODE_PROCESSES, **cgroups: str) -> Path:
    """A /proc of these processes (``p41``), as an agent's pod with hostPID has it."""
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(namespace)
    for pid, path in cgroups.items():
        (folder / pid[1:]).mkdir()
        (folder / pid[1:] / "cgroup").write_text(path)
    return folder


def scope(uid: str, container: str) -> str:
    pod = uid.replace("-", "_")
    return f"0::/../../kubepods-burstable-pod{pod}.slice/cri-containerd-{container}.scope\n"


@contextlib.asynccontextmanager
async def client(standin: StandIn, proc: Path) -> AsyncIterator[NvmlClient]:
    found = NvmlClient(lambda: None, lambda fact: None, QUICK, proc)
    found.start(Nvidia(library=str(standin.library)))
    try:
        await found.answered(HANG_SECONDS)
        yield found
    finally:
        await end(found)


@needs_compiler
async def test_each_sharer_of_a_gpu_has_its_own_use_not_the_gpus(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    proc = host_processes(
        tmp_path / "proc", p41=scope(POD_A, ONE), p42=scope(POD_A, ONE), p43=scope(POD_B, TWO), p44="0::/init.scope\n"
    )
    standin.uses(0, (41, 300 * MIB, 10), (42, 200 * MIB, 15), (43, 4096 * MIB, 60), (44, MIB, 0), (99, MIB, 1))
    async with client(standin, proc) as nvml:
        assert nvml.use is not None, "it is there with the first answer"
        assert nvml.use.told == {GPU: (True, True)}
        assert nvml.use.uses == {
            (GPU, (POD_A, ONE)): (500 * MIB, 25),
            (GPU, (POD_B, TWO)): (4096 * MIB, 60),
            (GPU, ("", "")): (MIB, 0),
        }, "process 99 has ended"
        standin.uses(0, (43, 8192 * MIB, 0))
        await until(lambda: nvml.use is not None and nvml.use.uses == {(GPU, (POD_B, TWO)): (8192 * MIB, 0)})
        nvml.pause("a test")
        await until(lambda: nvml.use is None)  # else the last numbers stay for ever


@needs_compiler
async def test_of_mig_instances_the_memory_is_known_and_the_time_is_not(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    standin.mig(0, (9, "1g.10gb", 0), (2, "3g.40gb", 4))
    standin.uses(0, (41, 300 * MIB, 10), instance=1)
    async with client(standin, host_processes(tmp_path / "proc", p41=scope(POD_A, ONE))) as nvml:
        assert nvml.use is not None
        assert nvml.use.told == {mig_uuid(0, 9): (True, False), mig_uuid(0, 2): (True, False)}
        assert nvml.use.uses == {(mig_uuid(0, 2), (POD_A, ONE)): (300 * MIB, 0)}


@needs_compiler
async def test_a_driver_that_does_not_tell_is_no_use_of_zero(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    standin.add(0, "error", "nvmlDeviceGetProcessUtilization 3")
    standin.add(0, "error", "nvmlDeviceGetComputeRunningProcesses_v3 3")
    async with client(standin, host_processes(tmp_path / "proc")) as nvml:
        assert nvml.use is not None
        assert nvml.use.told == {GPU: (False, False)}


@needs_compiler
async def test_a_pod_without_host_pid_attributes_no_process_to_anybody(tmp_path: Path) -> None:
    """There process 41 is another one than the driver's 41."""
    standin = StandIn(tmp_path)
    standin.uses(0, (41, MIB, 1))
    async with client(standin, host_processes(tmp_path / "proc", "pid:[4026532001]", p41=scope(POD_A, ONE))) as nvml:
        await asyncio.sleep(0.3)
        assert nvml.use is None
        assert nvml.problem == ""


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        (scope(POD_A, ONE), (POD_A, ONE)),
        (f"0::/kubepods/besteffort/pod{POD_A}/{ONE}\n", (POD_A, ONE)),
        (f"0::/kubepods.slice/kubepods-pod{POD_A.replace('-', '_')}.slice/crio-{ONE}.scope/a.slice\n", (POD_A, ONE)),
        (f"0::/system.slice/k3s.service/kubepods/pod{'ab' * 16}/{ONE}\n", ("ab" * 16, ONE)),  # a static pod
        (f"1:cpu:/system.slice/containerd.service/kubepods-pod{POD_A.replace('-', '_')}.slice:cri-containerd:{ONE}\n",
         (POD_A, ONE)),
        (f"0::/kubepods/pod{POD_A}/{ONE}/kubepods/pod{POD_B}/{TWO}\n", (POD_A, ONE)),  # a cluster in a container
        (f"2:devices:/\n0::/kubepods/pod{POD_A}\n", (POD_A, "")),
        (f"0::/user.slice/docker-{ONE}.scope\n", ("", "")),
        ("0::/kubepods.slice/kubepods-podnonsense.slice\n", ("", "")),
        ("\x00\xff", ("", "")),
    ],
)  # fmt: skip
def test_a_control_group_names_pod_and_container(cgroup: str, found: tuple[str, str]) -> None:
    assert container_of(cgroup) == found


def test_a_node_full_of_containers_costs_prometheus_a_bounded_number_of_series(tmp_path: Path) -> None:
    pids = range(1, gpu_use.MOST_CONTAINERS + 200)
    proc = host_processes(tmp_path, **{f"p{pid}": f"0::/pod{pid:032x}/{pid:064x}" for pid in pids})
    use = gpu_use.by_container(Use([DeviceUse(GPU, True, True, [Process(pid, 10, 1) for pid in pids])]), proc)
    assert len(use.uses) == gpu_use.MOST_CONTAINERS + 1
    assert sum(used for used, _ in use.uses.values()) == 10 * len(pids), "nothing is lost"


def test_what_is_not_known_of_a_gpu_is_said_with_the_reason() -> None:
    whole = Device("gpu-0", "GPU-1", "example.com/gpu", standard={PCI_BUS_ID: GPU}, attributes={"uuid": "GPU-1"})
    part = Device("mig-0", "MIG-1", "example.com/mig", standard={PCI_BUS_ID: GPU})
    stick = Device("stick", "0001", "example.com/stick")

    def told(use: GpuUse | None, problem: str | None) -> set[tuple[str, ...]]:
        found = samples([whole, part, stick], Ledger(), use, problem, lambda uid, container: ("ns", uid, container))
        return {(name.removeprefix("device_"), labels[0], *labels[2:]) for name, labels, _ in found}

    neither = {("use_unknown", name, what) for name in ("gpu-0", "mig-0") for what in ("memory", "time")}
    assert told(None, "") == {(*row, "hostpid") for row in neither}
    assert told(None, "it hangs") == told(None, None) == {(*row, "nvml") for row in neither}
    use = GpuUse(
        {GPU: (False, True), "MIG-1": (True, False)}, {(GPU, ("a", "x")): (7, 50), ("MIG-1", ("b", "y")): (7, 0)}
    )
    assert told(use, "") == {
        ("use_unknown", "gpu-0", "memory", "driver"),
        ("used_time_ratio", "gpu-0", "ns", "a", "x", "a"),
        ("use_unknown", "mig-0", "time", "mig"),
        ("used_memory_bytes", "mig-0", "ns", "b", "y", "b"),
    }


def test_containers_of_a_pod_whose_names_nobody_knows_are_one_series_with_the_sum() -> None:
    """Two samples of one name and the same labels are an error to whoever reads them."""
    whole = Device("gpu-0", "GPU-1", "example.com/gpu", standard={PCI_BUS_ID: GPU}, attributes={"uuid": "GPU-1"})
    use = GpuUse({GPU: (True, True)}, {(GPU, (POD_A, ONE)): (MIB, 10), (GPU, (POD_A, TWO)): (2 * MIB, 20)})
    found = sorted(samples([whole], Ledger(), use, "", lambda uid, container: ("", "", "")))
    labels = ("gpu-0", "example.com/gpu", "", "", "", POD_A)
    assert found == [("device_used_memory_bytes", labels, 3 * MIB), ("device_used_time_ratio", labels, 0.3)]
