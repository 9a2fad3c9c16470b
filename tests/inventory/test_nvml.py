"""What the process that asks NVML gets from a stand-in for the driver's library, and what becomes of its faults."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from drabridge.config.nvidia import Nvidia
from drabridge.inventory import nvidia, nvml_library, nvml_process
from drabridge.inventory.nvidia import FailureKind, NvidiaFacts
from drabridge.inventory.nvml_process import NvmlClient, Timing
from drabridge.inventory.observer import Fact, NvmlChanged, XidSeen
from tests.support import machines
from tests.support.hardware import loops, watching
from tests.support.nvml import DOUBLE_BIT_ECC_EVENT, StandIn, end, mig_uuid, needs_compiler
from tests.support.waiting import HANG_SECONDS, until

pytestmark = needs_compiler

QUICK = Timing(look=0.05, silence=2.0, start=10.0, kill=2.0, pauses=(0.05,))
UUIDS = [machines.GPU_UUID.format(index) for index in range(8)]


class Client:
    """A client, with everything it said; ``proc``: what the driver's files say beside NVML."""

    def __init__(self, standin: StandIn, proc: NvidiaFacts, timing: Timing = QUICK, **more: Any) -> None:
        self.told: list[Fact] = []
        self.changes = 0
        self.proc = proc
        self.nvml = NvmlClient(self._changed, self.told.append, timing)
        self.nvml.start(Nvidia(library=str(standin.library), **more))

    def _changed(self) -> None:
        self.changes += 1

    @property
    def facts(self) -> NvidiaFacts:
        return self.nvml.facts(self.proc)

    @property
    def problem(self) -> str:
        return self.nvml.problem or ""

    @property
    def pid(self) -> int:
        assert self.nvml._process is not None
        return self.nvml._process.pid

    def failures(self, uuid: str) -> list[str]:
        return [failure.text for failure in self.facts.failures.get(uuid, ())]

    def kinds(self, uuid: str) -> list[FailureKind]:
        return [failure.kind for failure in self.facts.failures.get(uuid, ())]

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition, 5.0, lambda: f"{self.nvml.problem!r} {self.facts} {self.told}")


@contextlib.asynccontextmanager
async def client(standin: StandIn, proc: NvidiaFacts = nvidia.NOTHING, **more: Any) -> AsyncIterator[Client]:
    found = Client(standin, proc, **more)
    try:
        await found.nvml.answered(HANG_SECONDS)
        yield found
    finally:
        await end(found.nvml)


def gpus_of(facts: NvidiaFacts, *indices: int) -> list[Mapping[str, str]]:
    return [facts.of(machines.gpu_address(index)) for index in indices]


# --- what there is ----------------------------------------------------------------------------------------------------


async def test_nvml_tells_what_the_driver_s_files_do_not(tmp_path: Path) -> None:
    proc = nvidia.read(machines.nvidia_proc(tmp_path / "proc", 2) / "driver/nvidia")
    async with client(StandIn(tmp_path, 2), proc) as here:
        first, second = gpus_of(here.facts, 0, 1)
        assert dict(first) == {
            "uuid": UUIDS[0],
            "minor": "0",
            "model": "NVIDIA H100 80GB HBM3",
            "excluded": "false",
            "driver_version": "580.95.05",
            "serial": "1654423000000",
            "memory_mib": "81559",
            "compute_capability": "9.0",
            "architecture": "Hopper",
            "brand": "Nvidia",
            "addressing_mode": "None",
            "mig_mode": "disabled",
            "cuda_version": "13.0",
        }
        assert second["uuid"] == UUIDS[1]
        assert here.facts.mig == ()
        assert here.facts.failures == {}
        assert (here.told, here.nvml.problem, here.nvml.notes) == ([], "", [])


async def test_without_the_driver_s_files_nvml_alone_is_enough(tmp_path: Path) -> None:
    async with client(StandIn(tmp_path, 1)) as here:
        known = {"uuid": UUIDS[0], "minor": "0", "driver_version": "580.95.05"}
        assert known.items() <= gpus_of(here.facts, 0)[0].items()


async def test_what_an_old_driver_does_not_know_is_left_out(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    standin.set(0, brand=99, architecture=99)
    for name in ("mig", "addressing", "recovery", "rows", "serial", "events"):
        standin.remove(0, name)
    async with client(standin) as here:
        fields = gpus_of(here.facts, 0)[0]
        assert fields.keys().isdisjoint({"mig_mode", "addressing_mode", "brand", "architecture", "serial"})
        assert fields["memory_mib"] == "81559"
        assert here.nvml.notes == [f"NVML reports no XIDs of {UUIDS[0]}: its faults are seen by looking at it alone"]


async def test_gpus_of_one_nvlink_domain_name_it_once_they_have_joined(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 3)
    standin.set(0, clique=7, fabric=2)  # in progress
    standin.set(1, clique=99)
    async with client(standin) as here:
        assert all("clique" not in gpu for gpu in gpus_of(here.facts, 0, 1, 2))
        standin.set(0, fabric=3)
        await here.until(lambda: "clique" in gpus_of(here.facts, 0)[0])
        assert gpus_of(here.facts, 0)[0]["clique"] == "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf.7"
        assert all("clique" not in gpu for gpu in gpus_of(here.facts, 1, 2))


async def test_mig_instances_have_their_parent_profile_and_place(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 2)
    standin.mig(1, (9, "1g.10gb+me", 0), (2, "3g.40gb", 4))
    async with client(standin) as here:
        small, large = here.facts.mig
        assert (small.uuid, small.gpu, small.gpu_instance, small.compute_instance, small.fields["profile"]) == (
            mig_uuid(1, 9), machines.gpu_address(1), 9, 0, "1g.10gb+me"
        )  # fmt: skip
        assert dict(large.fields) == {
            "profile": "3g.40gb",
            "profile_id": "9",
            "parent_uuid": UUIDS[1],
            "gpu_instance": "2",
            "compute_instance": "0",
            "memory_mib": "40448",
            "multiprocessor_count": "60",
            "slices": "3",
            "compute_slices": "3",
            "copy_engines": "3",
            "decoders": "3",
            "encoders": "0",
            "jpeg_engines": "3",
            "ofa_engines": "0",
            "placement_start": "4",
            "placement_size": "4",
        }
        whole = gpus_of(here.facts, 1)[0]
        assert {name: whole[name] for name in ("mig_mode", "memory_slices", "mig_memory_mib", "decoders")} == {
            "mig_mode": "enabled", "memory_slices": "8", "mig_memory_mib": "81152", "decoders": "7"
        }  # fmt: skip
        standin.mig(1, (10, "1g.10gb", 0))
        await here.until(lambda: [one.fields["profile"] for one in here.facts.mig] == ["1g.10gb"])
        standin.set(1, mig=0)
        await here.until(lambda: here.facts.mig == ())


# --- faults -----------------------------------------------------------------------------------------------------------


async def test_an_xid_makes_its_gpu_faulty_alone(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 2)
    async with client(standin) as here:
        standin.event(1, 79)
        await here.until(lambda: here.failures(UUIDS[1]) == ["XID 79"])
        assert here.failures(UUIDS[0]) == []
        assert here.told == [XidSeen(UUIDS[1], 79)]


async def test_an_xid_of_a_mig_instance_is_its_alone_and_one_of_the_gpu_is_everyone_s(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    standin.mig(0, (9, "1g.10gb", 0), (10, "1g.10gb", 1))
    async with client(standin) as here:
        standin.event(0, 95, 9, 0)
        await here.until(lambda: here.failures(mig_uuid(0, 9)) == ["XID 95"])
        assert here.failures(UUIDS[0]) == here.failures(mig_uuid(0, 10)) == []
        standin.event(0, 48)
        await here.until(lambda: here.failures(UUIDS[0]) == ["XID 48"])
        assert here.failures(mig_uuid(0, 10)) == ["XID 48"]
        standin.mig(0, (10, "1g.10gb", 1))
        await here.until(lambda: len(here.facts.mig) == 1)
        standin.mig(0, (9, "1g.10gb", 0), (10, "1g.10gb", 1))
        await here.until(lambda: len(here.facts.mig) == 2)
        assert here.failures(mig_uuid(0, 9)) == ["XID 48"], "the instance was made anew"


CONDITIONS: list[tuple[dict[str, object], dict[str, object], FailureKind, str]] = [
    ({"error": "* 15"}, {"error": None}, FailureKind.LOST, "NVML says that the GPU is lost"),
    ({"error": "nvmlDeviceGetTemperature 16"}, {"error": None}, FailureKind.RESET, "NVML says that it needs a reset"),
    ({"recovery": 1}, {"recovery": 0}, FailureKind.RESET, "the driver asks for a reset of the GPU"),
    ({"ecc": 2}, {"ecc": 0}, FailureKind.ECC, "uncorrectable ECC errors since the driver was loaded"),
    (
        {"rows": "0 1 1 0"}, {"rows": "0 1 0 0"}, FailureKind.ECC,
        "a row of its memory is remapped at the next reset, which is due",
    ),
    (
        {"rows": "0 9 0 1"}, {"rows": "0 9 0 0"}, FailureKind.ECC,
        "remapping a row of its memory failed: it has to be replaced",
    ),
    (
        {"retired": 1}, {"retired": 0}, FailureKind.ECC,
        "pages of its memory are retired at the next reset, which is due",
    ),
    (
        {"throttle": 64, "celsius": 90}, {"throttle": 0}, FailureKind.THERMAL,
        "it is too hot, so the hardware slows it down",
    ),
    (
        {"celsius": 92}, {"celsius": 50}, FailureKind.THERMAL,
        "it is too hot, so the hardware slows it down",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ill", "well", "kind", "text"), CONDITIONS, ids=[str(case[0]) for case in CONDITIONS])
async def test_a_condition_is_a_failure_as_long_as_it_lasts(
    ill: dict[str, object], well: dict[str, object], kind: FailureKind, text: str, tmp_path: Path
) -> None:
    standin = StandIn(tmp_path, 2)
    async with client(standin) as here:
        standin.set(0, **ill)
        await here.until(lambda: (here.kinds(UUIDS[0]), here.failures(UUIDS[0])) == ([kind], [text]))
        assert here.failures(UUIDS[1]) == []
        standin.set(0, **well)
        await here.until(lambda: here.failures(UUIDS[0]) == [])


async def test_links_to_other_gpus_that_need_recovery_are_no_fault_of_the_gpu(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 2)
    async with client(standin) as here:
        standin.set(0, recovery=3)
        standin.set(1, recovery=4)
        await here.until(lambda: here.kinds(UUIDS[1]) == [FailureKind.RESET])
        assert here.kinds(UUIDS[0]) == []


async def test_a_flood_of_xids_hides_none(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 2)
    async with client(standin) as here:
        for _ in range(100):
            standin.event(0, 31)
        standin.event(1, 79)
        await here.until(lambda: here.failures(UUIDS[1]) == ["XID 79"])
        assert here.told == [*[XidSeen(UUIDS[0], 31)] * 100, XidSeen(UUIDS[1], 79)]
        assert here.failures(UUIDS[0]) == ["XID 31"]


async def test_an_event_makes_it_look_at_once(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    async with client(standin, timing=Timing(look=600, silence=700)) as here:
        standin.set(0, ecc=1)
        standin.event(0, 0, kind=DOUBLE_BIT_ECC_EVENT)
        await here.until(lambda: here.kinds(UUIDS[0]) == [FailureKind.ECC])


async def test_an_xid_is_over_after_a_time_without_another(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    async with client(standin, xid_recovery_seconds=1) as here:
        standin.event(0, 79)
        await here.until(lambda: here.failures(UUIDS[0]))
        changes = here.changes
        await here.until(lambda: not here.failures(UUIDS[0]))
        assert here.changes > changes


async def test_an_xid_is_over_when_the_gpu_was_reset(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 2)
    async with client(standin, xid_recovery_seconds=0) as here:
        standin.event(0, 79)
        standin.event(1, 74)
        await here.until(lambda: here.failures(UUIDS[0]) and here.failures(UUIDS[1]))
        standin.set(0, error="* 15")
        await here.until(lambda: FailureKind.LOST in here.kinds(UUIDS[0]))
        assert FailureKind.XID in here.kinds(UUIDS[0])
        standin.set(0, error=None)
        await here.until(lambda: here.failures(UUIDS[0]) == [])
        assert here.failures(UUIDS[1]) == ["XID 74"]
        standin.set("-", init=9)
        os.kill(here.pid, signal.SIGKILL)
        await here.until(lambda: here.failures(UUIDS[1]) == [])
        await here.until(lambda: here.nvml.problem == "NVIDIA's driver is not loaded")


async def test_a_gpu_that_fell_off_before_nvml_was_asked_is_lost(tmp_path: Path) -> None:
    proc = nvidia.read(machines.nvidia_proc(tmp_path / "proc", 3, excluded=[2]) / "driver/nvidia")
    standin = StandIn(tmp_path, 2)
    standin.set(0, error="nvmlDeviceGetHandleByIndex_v2 15")
    async with client(standin, proc) as here:
        assert here.kinds(UUIDS[0]) == [FailureKind.LOST]
        assert here.kinds(UUIDS[1]) == here.kinds(UUIDS[2]) == []


# --- a library that is missing, hangs, crashes or lies ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (18, "the library is of another version than the driver that is loaded: reboot, or reload the driver"),
        (9, "NVIDIA's driver is not loaded"),
        (4, "the agent may not open /dev/nvidia*: it has to be privileged, or run with NVIDIA's container runtime"),
        (999, "an error"),
    ],
)
async def test_why_nvml_does_not_work_is_told_once_and_it_is_tried_again(code: int, why: str, tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    standin.set("-", init=code)
    async with client(standin) as here:
        assert here.told == [NvmlChanged(why)]
        await asyncio.sleep(0.5)
        assert here.told == [NvmlChanged(why)]
        assert here.facts is nvidia.NOTHING
        standin.set("-", init=0)
        await here.until(lambda: gpus_of(here.facts, 0)[0])
        assert here.told == [NvmlChanged(why), NvmlChanged("")]


async def test_a_missing_library_is_told(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    standin.library.write_text("no library")
    async with client(standin) as here:
        assert "file too short" in here.problem
    standin.library.unlink()
    async with client(standin) as here:
        assert here.problem.startswith("libnvidia-ml.so.1 was not found")


def test_structures_and_numbers_are_those_of_nvidia_s_own_module() -> None:
    theirs = {
        nvml_library.PciInfo: pynvml.nvmlPciInfo_t,
        nvml_library.Memory: pynvml.c_nvmlMemory_t,
        nvml_library.AddressingMode: pynvml.c_nvmlDeviceAddressingMode_t,
        nvml_library.GpuFabricInfo: pynvml.c_nvmlGpuFabricInfo_t,
        nvml_library.FieldValue: pynvml.c_nvmlFieldValue_t,
        nvml_library.EventData: pynvml.c_nvmlEventData_t,
        nvml_library.DeviceAttributes: pynvml.c_nvmlDeviceAttributes,
        nvml_library.ProcessInfo: pynvml.c_nvmlProcessInfo_v3_t,
        nvml_library.ProcessSample: pynvml.c_nvmlProcessUtilizationSample_t,
        nvml_library.GpuInstancePlacement: pynvml.c_nvmlGpuInstancePlacement_t,
        nvml_library.GpuInstanceInfo: pynvml.c_nvmlGpuInstanceInfo_t,
        nvml_library.GpuInstanceProfileInfo: pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
    }
    here = [one for one in vars(nvml_library).values() if isinstance(one, type) and one is not ctypes.Structure]
    assert set(theirs) == {one for one in here if issubclass(one, ctypes.Structure)}
    for ours, known in theirs.items():
        assert ctypes.sizeof(ours) == ctypes.sizeof(known), ours
        for name, *_ in ours._fields_:
            assert name == "_rest" or getattr(ours, name).offset == getattr(known, name).offset, (ours, name)
        assert getattr(ours(), "version", 0) == getattr(known(), "version", 0), ours
    assert (nvml_library.TIMEOUT, nvml_library.LIBRARY_NOT_FOUND, nvml_library.FUNCTION_NOT_FOUND) == (
        pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    )  # fmt: skip
    assert (nvml_library.GPU_IS_LOST, nvml_library.RESET_REQUIRED, nvml_library.GPU_INSTANCE_PROFILES) == (
        pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
    )  # fmt: skip
    text = Path(pynvml.__file__).read_text()
    assert [name for name in nvml_library.ANSWERS if f'_nvmlGetFunctionPointer("{name}")' not in text] == []


@pytest.mark.parametrize("function", ["nvmlDeviceGetTemperature", "nvmlEventSetWait_v2"])
@pytest.mark.parametrize("fault", ["hang", "crash"])
async def test_a_hanging_or_crashing_library_costs_nothing_but_news(function: str, fault: str, tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 2)
    async with client(standin, timing=Timing(look=0.05, silence=1.0, start=9.0, pauses=(0.05,))) as here:
        before = here.facts
        standin.event(1, 79)
        await here.until(lambda: here.failures(UUIDS[1]) == ["XID 79"])
        standin.add("-", fault, function)
        says = "hangs" if fault == "hang" else "ended by SIGSEGV"
        await here.until(lambda: says in here.problem)
        assert (here.facts.gpus, here.failures(UUIDS[0])) == (before.gpus, [])
        assert here.failures(UUIDS[1]) == ["XID 79"]
        standin.remove("-", fault)
        await here.until(lambda: here.nvml.problem == "")
        assert (here.facts.gpus, here.failures(UUIDS[0])) == (before.gpus, [])
        assert here.failures(UUIDS[1]) == ["XID 79"]


async def test_it_hangs_from_the_start(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    standin.add("-", "hang", "nvmlInitWithFlags")
    async with client(standin, timing=Timing(start=0.7, pauses=(60,))) as here:
        assert here.nvml.problem == "it hangs: nothing was heard of it for 0.7 s, so its process was killed"
        assert here.facts is nvidia.NOTHING


async def test_a_uuid_that_changes_is_another_gpu(tmp_path: Path) -> None:
    proc = nvidia.read(machines.nvidia_proc(tmp_path / "proc", 1) / "driver/nvidia")
    standin = StandIn(tmp_path)
    async with client(standin) as here:
        standin.set(0, uuid="GPU-other")
        await here.until(lambda: gpus_of(here.facts, 0)[0]["uuid"] == "GPU-other")
        here.proc = proc
        assert gpus_of(here.facts, 0)[0]["uuid"] == UUIDS[0], "the driver's files count"
        assert here.nvml.notes == [
            f"NVML calls the GPU at {machines.gpu_address(0)} GPU-other, the driver's files {UUIDS[0]}: the files count"
        ]
        standin.set(0, ecc=1)
        await here.until(lambda: here.kinds(UUIDS[0]) == [FailureKind.ECC])


async def test_two_gpus_of_one_uuid_are_said(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 2)
    standin.set(1, uuid=UUIDS[0], serial="1654423000000")
    async with client(standin) as here:
        assert [fields["uuid"] for fields in gpus_of(here.facts, 0, 1)] == [UUIDS[0]] * 2
        assert here.nvml.notes == [f"NVML gives 2 GPUs the UUID {UUIDS[0]}"]


async def test_text_that_is_none_stays_out(tmp_path: Path) -> None:
    standin = StandIn(tmp_path)
    standin.set(0, serial="\x1b[31m1", name="\x7f")
    async with client(standin) as here:
        assert gpus_of(here.facts, 0)[0]["serial"] == "\\x1b[31m1"


PROGRAMS = {
    "a line without an end": ("import os\nfor _ in range(1600): os.write(1, b'x' * 65536)", "line without an end"),
    "no messages": ("print('hello', flush=True)\nimport time; time.sleep(60)", "no message"),
    "another kind": ('print(\'{"kind": "cake"}\', flush=True)\nimport time; time.sleep(60)', "no message"),
    "numbers for texts": ('print(\'{"kind": "event", "gpu": 1, "xid": 1}\', flush=True)', "no message"),
    "lists in lists": ('print(\'{"kind": "alive", "x": \' + \'[\' * 100_000, flush=True)', "no message"),
    "nothing": ("", "ended (0)"),
    "a real-time signal": ("import os; os.kill(os.getpid(), 35)", "ended by signal 35"),
    "an exit": ("raise SystemExit(3)", "ended (3)"),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=list(PROGRAMS))
async def test_a_process_that_writes_nonsense_is_ended(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, why = PROGRAMS[program]
    monkeypatch.setattr(nvml_process, "PROGRAM", source)
    async with client(StandIn(tmp_path)) as here:
        assert why in here.problem
        assert here.facts is nvidia.NOTHING


# --- the process ------------------------------------------------------------------------------------------------------


async def test_other_gpus_or_another_library_make_it_begin_anew(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, 2)
    read = machines.nvidia_proc
    async with client(standin, nvidia.read(read(tmp_path / "one", 1) / "driver/nvidia")) as here:
        _, first = here.facts, here.pid
        here.proc = nvidia.read(read(tmp_path / "two", 2) / "driver/nvidia")
        _ = here.facts
        await here.until(lambda: here.pid != first)
        second = here.pid
        other = tmp_path / "other"
        other.mkdir()
        await here.until(lambda: here.nvml.problem == "")
        here.nvml.start(Nvidia(library=str(StandIn(other).library)))
        await here.until(lambda: here.pid != second)
        await here.until(lambda: here.facts.of(machines.gpu_address(1)).get("memory_mib") is None)
        assert not [fact for fact in here.told if isinstance(fact, NvmlChanged)], "that is no trouble"


async def test_where_nothing_is_of_nvidia_nobody_asks() -> None:
    async with watching(loops("none")) as here:
        assert (here.inventory.nvml.problem, here.inventory.nvml.notes) == (None, [])
        assert here.inventory.nvml._process is None


def children() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # threads end meanwhile
            yield from (task / "children").read_text().split()


async def test_it_ends_with_the_client_and_reads_nothing_but_what_it_needs(tmp_path: Path) -> None:
    async with client(StandIn(tmp_path)) as here:
        pid = here.pid
        assert str(pid) in set(children())
        assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1] == b"-IS"
        assert "site-packages" not in Path(f"/proc/{pid}/maps").read_text(), "no foreign library"
    await until(lambda: not Path(f"/proc/{pid}").exists(), 5.0)
