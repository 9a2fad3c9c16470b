"""Ask NVML what each process uses of a GPU. A part of the worker, see ``nvml_worker.py``."""

from __future__ import annotations

import os

import pynvml as nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

NODE_PROCESSES = "pid:[4026531836]"  # include/linux/proc_ns.h, PROC_PID_INIT_INO: the namespace that sees them all
PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
MOST_PROCESSES = 500  # of one GPU or MIG instance: each has a context of some hundred MiB


class Users:
    """The processes of one GPU, or of its MIG instances."""

    def __init__(self) -> None:
        self._sampled_us = 0  # NVML's time of the newest sample

    def look(
        self, ask: Callable[..., Any], whole: tuple[str, Any], parts: Mapping[str, Any]
    ) -> Iterator[tuple[object, ...]]:
        """Yield what processes use of the GPU, or of each instance.

        That is: its PCI address or UUID; whether NVML tells the memory, and the time that they ran; pid, bytes and
        percent of each. ``whole`` and ``parts``: by such a name the handle.
        """
        busy = None if parts else self._busy(whole[1])  # NVML tells it of no instance
        for name, handle in parts.items() if parts else (whole,):
            told = [ask(function, of=handle) for function in PROCESSES]
            memory = {one.pid: one.usedGpuMemory for those in told for one in those or ()}
            known = told[0] is not None and None not in memory.values()
            pids = [*{**memory, **(busy or {})}][:MOST_PROCESSES]
            processes = [(pid, memory.get(pid) or 0, (busy or {}).get(pid, 0)) for pid in pids]
            yield name, known, busy is not None, processes

    def _busy(self, handle: Any) -> dict[int, int] | None:
        """Return the percentage of time for which each process ran there lately; None if NVML does not tell."""
        ask = getattr(nvml, "nvmlDeviceGetProcessUtilization", None)
        if ask is None:
            return None
        try:
            samples = ask(handle, self._sampled_us)
        except nvml.NVMLError as error:  # "not found", or "success" without a sample: nothing ran
            return {} if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND) else None
        found = {}
        for one in sorted(samples, key=lambda one: one.timeStamp):
            self._sampled_us = max(self._sampled_us, one.timeStamp)
            if one.pid and one.smUtil <= 100:  # drivers leave rows without a sample
                found[one.pid] = one.smUtil
        return found


def sees_processes(proc: str) -> bool:
    """Tell whether process numbers here are the node's, as in a pod with ``hostPID``."""
    try:
        return os.readlink(f"{proc}/self/ns/pid") == NODE_PROCESSES
    except OSError:
        return False
