"""Ask NVIDIA's management library (NVML) about the node's GPUs, in a process of its own.

A driver that hangs or a library that crashes ends this process, not the agent. ``nvml_process.py`` starts it, reads
what it writes to standard output, and starts another when it ends or falls silent.

Its arguments: the seconds between two looks, where proc is mounted, and paths of libnvidia-ml.so.1, of which the first
that exists is used; without one, the dynamic linker looks for the library. Each line that it writes is a JSON object
with the fields of a struct in ``nvml_report.py`` (MIG instances and failures: ``nvidia.py``). Its ``kind`` is ``state``
(something changed), ``alive`` (a look found no change), ``use`` (the processes' use changed; only where the node's
processes are visible), ``event`` (an XID, at once) or ``failed`` (NVML cannot be used; the process ends).

This module imports little of the agent and of the standard library, because a separate process needs its own memory for
them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from _json import encode_basestring_ascii as quoted
from time import monotonic, sleep

from drabridge.inventory import nvml_library as nvml
from drabridge.inventory.nvml_library import Library, NvmlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

EVENT_WAIT_MS = 5000  # as NVIDIA/k8s-device-plugin internal/rm/health.go
OVERDUE_WAITS = 3  # if the wait for events takes this many times as long, the library hangs
LOOK_PAUSE_SECONDS = 0.5  # least time between two looks: a flood of events must not cause a flood of questions
EVENTS_RETRY_SECONDS = 1.0  # after an error of the wait, which returns at once
NO_INSTANCE = 0xFFFFFFFF  # the instance ids of an event of a whole GPU: nvml.h, nvmlEventData_t
HOT_LOOKS = 3  # looks in a row that must agree that a GPU is too hot, or no longer is
MIB = 1 << 20
PR_SET_PDEATHSIG, SIGKILL = 1, 9  # importing the module signal would take 0.2 MiB
NODE_PROCESSES = "pid:[4026531836]"  # include/linux/proc_ns.h, PROC_PID_INIT_INO: the namespace of all processes
PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
MOST_PROCESSES = 500  # on one GPU or MIG instance; more do not fit, because each has a context of some hundred MiB

# The recovery actions of nvml.h (nvmlDeviceGpuRecoveryAction_t) that mean that the GPU cannot be used. The others are
# about its links to other GPUs.
RECOVERY = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    4: "a drain and a reset of the GPU",
    6: "a reset of the bus",
    7: "a reboot of the system",
}
FABRIC_COMPLETED = 3  # nvml.h: NVML_GPU_FABRIC_STATE_COMPLETED

# As NVIDIA's programs write them: NVIDIA/go-nvlib pkg/nvlib/device/device.go.
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper",
    10: "Blackwell",
}  # fmt: skip
BRANDS = {
    1: "Quadro", 2: "Tesla", 3: "NVS", 4: "Grid", 5: "GeForce", 6: "Titan", 7: "NvidiaVApps", 8: "NvidiaVPC",
    9: "NvidiaVCS", 10: "NvidiaVWS", 11: "NvidiaCloudGaming", 12: "QuadroRTX", 13: "NvidiaRTX", 14: "Nvidia",
    15: "GeForceRTX", 16: "TitanRTX",
}  # fmt: skip
ADDRESSING = {0: "None", 1: "HMM", 2: "ATS"}


_writing = threading.Lock()  # both threads write messages


def say(**message: object) -> None:
    """Write one message. Ends the process if nobody reads any more."""
    line = (_json(message) + "\n").encode()
    with _writing:
        try:
            while line:
                line = line[os.write(1, line) :]
        except OSError:
            os._exit(0)


def _json(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(str(name))}:{_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else quoted(str(value))


# --- one GPU ---------------------------------------------------------------------------------------------------------


class Gpu:
    """A GPU that NVML has a handle for, and what it said last."""

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self.handle = handle
        self.uuid = ""
        self.pci = ""
        self.watched = True  # its events are registered
        self._lost = self._reset = False
        self._hot: list[bool] = []
        self._thermal = False
        self._fixed: dict[str, str] = {}  # what does not change while the UUID stays
        self._instances: dict[str, dict[str, object]] = {}  # MIG instances by UUID
        self._parts: dict[str, Any] = {}  # their handles
        self._sampled_us = 0  # NVML's time of the newest sample of the processes

    def ask(self, function: str, *arguments: Any, of: Any = None) -> Any:
        """Return what NVML says about the GPU, or about the handle ``of``, or None. Remember if the GPU is lost."""
        try:
            return self._library.call(function, of or self.handle, *arguments)
        except NvmlError as error:
            self._note(error)
        except ValueError:  # not UTF-8
            pass
        return None

    def _note(self, error: NvmlError) -> None:
        self._lost |= error.code == nvml.GPU_IS_LOST
        self._reset |= error.code == nvml.RESET_REQUIRED

    def look(self) -> dict[str, object]:
        """Ask for everything that may have changed; return the message about this GPU."""
        self._lost = self._reset = False
        uuid = self.ask("nvmlDeviceGetUUID") or self.uuid
        if uuid != self.uuid or not self._fixed:
            self.uuid, self._fixed, self._instances = uuid, self._constants(), {}
        if "clique" not in self._fixed and (clique := self._clique()):
            self._fixed["clique"] = clique
        mode, self._parts = self.ask("nvmlDeviceGetMigMode"), {}
        instances = list(self._mig()) if mode and mode[0] else []
        failures = self._conditions()
        fields = {"uuid": self.uuid, **self._fixed}
        if mode is not None:
            fields["mig_mode"] = "enabled" if mode[0] else "disabled"
            if mode[0] and "memory_slices" not in self._fixed:
                self._fixed |= self._mig_totals()
        return {
            "pci": self.pci,
            "watched": self.watched,
            "fields": {name: value for name, value in (fields | self._fixed).items() if value},
            "failures": failures,
            "mig": instances,
        }

    def _constants(self) -> dict[str, str]:
        found: dict[str, Any] = {}
        if (pci := self.ask("nvmlDeviceGetPciInfo_v3")) is not None:
            self.pci = pci_address(pci.busId.decode(errors="replace"))
        found["model"] = self.ask("nvmlDeviceGetName")
        found["minor"] = self.ask("nvmlDeviceGetMinorNumber")
        found["serial"] = self.ask("nvmlDeviceGetSerial")
        if (memory := self.ask("nvmlDeviceGetMemoryInfo")) is not None:
            found["memory_mib"] = memory.total // MIB
        if (capability := self.ask("nvmlDeviceGetCudaComputeCapability")) is not None:
            found["compute_capability"] = "{}.{}".format(*capability)
        found["architecture"] = ARCHITECTURES.get(self.ask("nvmlDeviceGetArchitecture"))
        found["brand"] = BRANDS.get(self.ask("nvmlDeviceGetBrand"))
        if (mode := self.ask("nvmlDeviceGetAddressingMode")) is not None:
            found["addressing_mode"] = ADDRESSING.get(mode.value)
        return {name: str(value) for name, value in found.items() if value is not None}

    def _clique(self) -> str:
        """Return the NVLink domain and its part, ``<UUID>.<number>``, as GPU Feature Discovery's label has it.

        Empty without a fabric that reaches other nodes, and until the driver has joined it.
        """
        info = self.ask("nvmlDeviceGetGpuFabricInfo")
        if info is None:
            return ""
        domain = bytes(info.clusterUuid).hex()
        if info.state != FABRIC_COMPLETED or info.status != 0 or not domain.strip("0"):
            return ""
        return f"{domain[:8]}-{domain[8:12]}-{domain[12:16]}-{domain[16:20]}-{domain[20:]}.{info.cliqueId}"

    # --- who uses it --------------------------------------------------------------------------------------------------

    def use(self) -> Iterator[tuple[object, ...]]:
        """Yield what processes use of the GPU, or of each MIG instance that the last look found.

        Each item: PCI address or UUID; whether NVML reports memory; whether it reports time; and for each process pid,
        bytes and percent.
        """
        busy = None if self._parts else self._busy()  # NVML does not report this for instances
        for name, handle in (self._parts or {self.pci: self.handle}).items():
            told = [self._processes(function, handle) for function in PROCESSES]
            memory = {one.pid: one.usedGpuMemory for those in told for one in those or ()}
            known = told[0] is not None and nvml.NOT_AVAILABLE not in memory.values()
            memory = {pid: 0 if used == nvml.NOT_AVAILABLE else used for pid, used in memory.items()}
            pids = [*{**memory, **(busy or {})}][:MOST_PROCESSES]
            processes = [(pid, memory.get(pid) or 0, (busy or {}).get(pid, 0)) for pid in pids]
            yield name, known, busy is not None, processes

    def _processes(self, function: str, handle: Any) -> list[Any] | None:
        try:
            return self._library.rows(function, nvml.ProcessInfo, lambda rows, count: (handle, count, rows))
        except NvmlError as error:
            self._note(error)
            return None

    def _busy(self) -> dict[int, int] | None:
        """Return the percentage of recent time for which each process ran there; None if NVML does not tell."""
        since = ctypes.c_ulonglong(self._sampled_us)
        try:
            samples = self._library.rows(
                "nvmlDeviceGetProcessUtilization",
                nvml.ProcessSample,
                lambda rows, count: (self.handle, rows, count, since),
            )
        except NvmlError as error:  # "not found": nothing ran
            return {} if error.code == nvml.NOT_FOUND else None
        found = {}
        for one in sorted(samples, key=lambda one: one.timeStamp):
            self._sampled_us = max(self._sampled_us, one.timeStamp)
            if one.pid and one.smUtil <= 100:  # drivers leave rows without a sample
                found[one.pid] = one.smUtil
        return found

    # --- why it is not healthy ----------------------------------------------------------------------------------------

    def _conditions(self) -> list[tuple[str, str]]:
        """Return kind and text of each failure. Texts have no changing numbers: each would look like a new failure."""
        found = []
        celsius = self.ask("nvmlDeviceGetTemperature", nvml.TEMPERATURE_GPU)
        action = nvml.FieldValue(fieldId=nvml.RECOVERY_ACTION_FIELD, nvmlReturn=nvml.FUNCTION_NOT_FOUND)
        self.ask("nvmlDeviceGetFieldValues", 1, ctypes.byref(action))
        if action.nvmlReturn == 0 and action.value in RECOVERY:
            found.append(("reset", f"the driver asks for {RECOVERY[action.value]}"))
        if (rows := self.ask("nvmlDeviceGetRemappedRows")) is not None:
            if rows[3]:
                found.append(("ecc", "remapping a row of its memory failed: it has to be replaced"))
            elif rows[2]:
                found.append(("ecc", "a row of its memory is remapped at the next reset, which is due"))
        if self.ask("nvmlDeviceGetRetiredPagesPendingStatus"):
            found.append(("ecc", "pages of its memory are retired at the next reset, which is due"))
        if self.ask("nvmlDeviceGetTotalEccErrors", nvml.UNCORRECTED, nvml.VOLATILE):
            found.append(("ecc", "uncorrectable ECC errors since the driver was loaded"))
        if self._too_hot(celsius):
            found.append(("thermal", "it is too hot, so the hardware slows it down"))
        if self._reset:
            found.append(("reset", "NVML says that it needs a reset"))
        if self._lost:
            found.append(("lost", "NVML says that the GPU is lost"))
        return found

    def _too_hot(self, celsius: int | None) -> bool:
        reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        limit = self.ask("nvmlDeviceGetTemperatureThreshold", nvml.TEMPERATURE_THRESHOLD_SHUTDOWN) or 0
        hot = bool(reasons & nvml.THROTTLED_BY_HEAT) or 0 < limit <= (celsius or 0)
        self._hot = [*self._hot, hot][-HOT_LOOKS:]
        if len(self._hot) == HOT_LOOKS and len(set(self._hot)) == 1:
            self._thermal = hot
        return self._thermal

    # --- MIG ----------------------------------------------------------------------------------------------------------

    def _mig(self) -> Iterator[dict[str, object]]:
        known, self._instances = self._instances, {}
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
            handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
            uuid = handle and self.ask("nvmlDeviceGetUUID", of=handle)
            instance = uuid and (known.get(uuid) or self._instance(handle, uuid))
            if instance:
                self._instances[uuid], self._parts[uuid] = instance, handle
                yield instance

    def _instance(self, handle: Any, uuid: str) -> dict[str, object] | None:
        gi = self.ask("nvmlDeviceGetGpuInstanceId", of=handle)
        ci = self.ask("nvmlDeviceGetComputeInstanceId", of=handle)
        has = self.ask("nvmlDeviceGetAttributes_v2", of=handle)
        if gi is None or ci is None or has is None:  # it was destroyed meanwhile
            return None
        name = self.ask("nvmlDeviceGetName", of=handle) or ""  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        profile = name.rpartition(" MIG ")[2] if " MIG " in name else ""
        profile = profile or _profile(has, int(self._fixed.get("memory_mib", 0)))
        fields: dict[str, object] = {
            "profile": profile,
            "parent_uuid": self.uuid,
            "gpu_instance": gi,
            "compute_instance": ci,
            "memory_mib": has.memorySizeMB,
            "multiprocessor_count": has.multiprocessorCount,
            "slices": has.gpuInstanceSliceCount,
            "compute_slices": has.computeInstanceSliceCount,
            "copy_engines": has.sharedCopyEngineCount,
            "decoders": has.sharedDecoderCount,
            "encoders": has.sharedEncoderCount,
            "jpeg_engines": has.sharedJpegCount,
            "ofa_engines": has.sharedOfaCount,
        }
        where = self.ask("nvmlDeviceGetGpuInstanceById", gi)
        info = where and self.ask("nvmlGpuInstanceGetInfo", of=where)
        if info:
            fields |= {
                "profile_id": info.profileId,
                "placement_start": info.placement.start,
                "placement_size": info.placement.size,
            }
        return {
            "uuid": uuid,
            "gpu": self.pci,
            "gpu_instance": gi,
            "compute_instance": ci,
            "fields": {key: str(value) for key, value in fields.items()},
        }

    def _mig_totals(self) -> dict[str, str]:
        """Return the totals that all instances share: the maximum over profiles, as NVIDIA's DRA driver counts."""
        totals: dict[str, int] = {}
        for profile in range(nvml.GPU_INSTANCE_PROFILES):
            has = self.ask("nvmlDeviceGetGpuInstanceProfileInfoV", profile)
            if has is None:
                continue
            found = {
                "multiprocessor_count": has.multiprocessorCount,
                "copy_engines": has.copyEngineCount,
                "decoders": has.decoderCount,
                "encoders": has.encoderCount,
                "jpeg_engines": has.jpegCount,
                "ofa_engines": has.ofaCount,
                "mig_memory_mib": has.memorySizeMB,
                "memory_slices": self._placements_end(has.id),
            }
            totals = {name: max(totals.get(name, 0), value) for name, value in found.items()}
        return {name: str(value) for name, value in totals.items()}

    def _placements_end(self, profile_id: int) -> int:
        places, count = (nvml.GpuInstancePlacement * 32)(), ctypes.c_uint(32)
        function = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
        try:
            self._library.call(function, self.handle, profile_id, places, ctypes.byref(count))
        except NvmlError:
            return 0
        return max((place.start + place.size for place in places[: count.value]), default=0)


def _profile(has: Any, gpu_memory_mib: int) -> str:
    """Return a profile's name from what an instance has, as NVIDIA/go-nvlib pkg/nvlib/device/mig_profile.go does."""
    eighths = -(-8 * has.memorySizeMB // gpu_memory_mib) if gpu_memory_mib else 0
    gigabytes = round(eighths * -(-gpu_memory_mib // 1024) / 8)
    name = f"{has.gpuInstanceSliceCount}g.{gigabytes}gb"
    if has.computeInstanceSliceCount == has.gpuInstanceSliceCount:
        return name
    return f"{has.computeInstanceSliceCount}c.{name}"


def pci_address(bus_id: str) -> str:
    """Return NVML's bus id (``00000000:3B:00.0``) as sysfs writes it: ``0000:3b:00.0``."""
    domain, colon, rest = bus_id.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}{colon}{rest}"


# --- the whole node --------------------------------------------------------------------------------------------------


class Watch:
    """All GPUs: a look at each in turn, and a thread that waits for NVML's events."""

    def __init__(self, library: Library, look_seconds: float, *, sees_processes: bool) -> None:
        self._library = library
        self._look_seconds = look_seconds
        self._sees_processes = sees_processes
        self._pause_seconds = min(LOOK_PAUSE_SECONDS, look_seconds)
        self._wait_ms = min(EVENT_WAIT_MS, int(1000 * look_seconds))
        self._look_now = threading.Event()
        self._events_at = monotonic()  # when the last wait for events returned
        self._said: object = None
        self._used: object = None
        self._gpus: list[Gpu] = []
        self._unreachable = 0  # number of GPUs that NVML counts and calls lost

    def run(self) -> None:
        """Look and report until the process is ended."""
        node = {"driver_version": self._of_node("nvmlSystemGetDriverVersion")}
        cuda = self._of_node("nvmlSystemGetCudaDriverVersion_v2")  # 12040 is 12.4
        if cuda:
            node["cuda_version"] = f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}"
        for index in range(self._library.call("nvmlDeviceGetCount_v2")):
            try:
                handle = self._library.call("nvmlDeviceGetHandleByIndex_v2", index)
            except NvmlError as error:  # the others still count
                self._unreachable += error.code == nvml.GPU_IS_LOST
            else:
                self._gpus.append(Gpu(self._library, handle))
        events = self._register()
        first = True
        while True:
            looked_at = monotonic()
            gpus = [gpu.look() for gpu in self._gpus]
            if self._sees_processes and (use := [row for gpu in self._gpus for row in gpu.use()]) != self._used:
                self._used = use
                say(kind="use", devices=use)
            known = {name: value for name, value in node.items() if value}
            state = {"node": known, "gpus": gpus, "unreachable": self._unreachable}
            if state != self._said:
                self._said = state
                say(kind="state", **state)
            elif monotonic() - self._events_at < OVERDUE_WAITS * self._wait_ms / 1000:
                say(kind="alive")
            if first:
                threading.Thread(target=self._follow, args=(events,), daemon=True).start()
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
                first = False
            self._look_now.wait(self._look_seconds)
            sleep(max(0.0, looked_at + self._pause_seconds - monotonic()))
            self._look_now.clear()

    def _register(self) -> Any:
        """Make an event set of the events that each GPU has; None when NVML has none."""
        wanted = nvml.XID_EVENT | nvml.DOUBLE_BIT_ECC_EVENT | nvml.SINGLE_BIT_ECC_EVENT
        try:
            events = self._library.call("nvmlEventSetCreate")
        except NvmlError:
            events = None
        for gpu in self._gpus:
            kinds = gpu.ask("nvmlDeviceGetSupportedEventTypes") or 0
            try:
                if events is not None:
                    kinds &= wanted
                    self._library.call("nvmlDeviceRegisterEvents", gpu.handle, ctypes.c_ulonglong(kinds), events)
                gpu.watched = events is not None and bool(kinds & nvml.XID_EVENT)
            except NvmlError:
                gpu.watched = False
        return events

    def _follow(self, events: Any) -> None:
        """Wait for events, in a thread of its own."""
        event = nvml.EventData()
        while events is not None:
            try:
                self._library.call("nvmlEventSetWait_v2", events, ctypes.byref(event), self._wait_ms)
            except NvmlError as error:
                self._events_at = monotonic()
                if error.code != nvml.TIMEOUT:
                    self._look_now.set()  # for example a lost GPU: the look finds which
                    sleep(EVENTS_RETRY_SECONDS)
                continue
            self._events_at = monotonic()
            if event.eventType == nvml.XID_EVENT:
                self._xid(event)
            self._look_now.set()
        self._events_at = float("inf")

    def _xid(self, event: Any) -> None:
        gpu = next((gpu for gpu in self._gpus if gpu.handle.value == event.device), None)
        message: dict[str, object] = {"gpu": gpu.uuid if gpu else "", "xid": event.eventData}
        ids = {"gpu_instance": event.gpuInstanceId, "compute_instance": event.computeInstanceId}
        say(kind="event", **message, **{name: value for name, value in ids.items() if value != NO_INSTANCE})

    def _of_node(self, function: str) -> str:
        try:
            return str(self._library.call(function))
        except (NvmlError, ValueError):
            return ""


def _sees_processes(proc: str) -> bool:
    """Whether process ids here are the node's, as in a pod with ``hostPID``."""
    try:
        return os.readlink(f"{proc}/self/ns/pid") == NODE_PROCESSES
    except OSError:
        return False


def main(look_seconds: str, proc: str, *libraries: str) -> None:
    """Watch until the agent ends, or NVML cannot be used."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    path = next(filter(os.path.exists, libraries), "")
    try:
        library = Library(path or "libnvidia-ml.so.1")
        library.call("nvmlInitWithFlags", 0)
        Watch(library, float(look_seconds), sees_processes=_sees_processes(proc)).run()
    except NvmlError as error:
        say(kind="failed", code=error.code, text=str(error))
    except OSError as error:  # not a library, or not for this machine
        say(kind="failed", code=-1 if path else nvml.LIBRARY_NOT_FOUND, text=str(error))
