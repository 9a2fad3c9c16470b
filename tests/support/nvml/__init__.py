"""A stand-in for libnvidia-ml.so.1, compiled from C."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from drabridge.inventory.nvml_process import NvmlClient
from tests.support import machines
from tests.support.waiting import until

SOURCE = Path(__file__).with_name("libnvidia-ml.c")
COMPILER = shutil.which("gcc") or shutil.which("cc")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler: apt-get install gcc libc6-dev")

XID_EVENT, DOUBLE_BIT_ECC_EVENT = 8, 2  # nvml.h
NO_INSTANCE = 0xFFFFFFFF

# What NVML shows of an H100 80GB HBM3 (SXM5) with driver 580.
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "memory": 85_520_809_984,
    "capability": "9.0",
    "architecture": 9,
    "brand": 14,
    "addressing": 0,
    "events": 31,  # single and double bit ECC, P-state, XID, clock
    "celsius": 34,
    "shutdown": 92,
    "throttle": 1,  # idle
    "ecc": 0,
    "rows": "0 0 0 0",
    "recovery": 0,
    "mig": 0,
}
# Number in nvml.h, id, SMs, copy engines, decoders, encoders, JPEG, OFA, MiB, memory slices, where it may begin.
# From `nvidia-smi mig -lgip` and `-lgipp` as NVIDIA's MIG user guide prints them for an H100 80GB; names and engines
# also in https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html. No GPU was at hand.
H100_PROFILES = {
    "1g.10gb": "0 19 16 1 1 0 1 0 9984 1 0 1 2 3 4 5 6",
    "1g.10gb+me": "7 20 16 1 1 0 1 1 9984 1 0 1 2 3 4 5 6",
    "1g.20gb": "9 15 26 1 1 0 1 0 20096 2 0 2 4 6",
    "2g.20gb": "1 14 32 2 2 0 2 0 20096 2 0 2 4",
    "3g.40gb": "2 9 60 3 3 0 3 0 40448 4 0 4",
    "4g.40gb": "3 5 64 4 4 0 4 0 40448 4 0",
    "7g.80gb": "4 0 132 8 7 0 7 1 81152 8 0",
}


@functools.cache
def _compiled() -> bytes:
    assert COMPILER is not None
    options = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run(
            [COMPILER, *options, "-o", str(library), str(SOURCE), "-ldl"],
            check=True,
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        )
        return library.read_bytes()


class StandIn:
    """The library in a folder of its own, and what it answers. Every change is there at once for who asks next."""

    def __init__(self, folder: Path, gpus: int = 1) -> None:
        self.library = folder / "libnvidia-ml.so.1"
        self._file = folder / "nvml.txt"
        self._lines: dict[tuple[str, str], list[str]] = {}
        self._events = 0
        self.library.write_bytes(_compiled())
        self.set("-", driver="580.95.05", cuda=13000)
        for index in range(gpus):
            self.set(
                index,
                **H100,
                uuid=machines.GPU_UUID.format(index),
                pci=f"0000{machines.gpu_address(index).upper()}",
                minor=index,
                serial=f"165442300{index:04}",
            )
        self.set("-", count=gpus)

    def set(self, gpu: int | str, **answers: object) -> None:
        """Answer so; None: not at all any more."""
        for name, value in answers.items():
            self._lines[str(gpu), name] = [] if value is None else [str(value)]
        self._write()

    def add(self, gpu: int | str, name: str, value: object) -> None:
        """One more answer of this name."""
        self._lines.setdefault((str(gpu), name), []).append(str(value))
        self._write()

    def remove(self, gpu: int | str, name: str) -> None:
        """No answer of this name any more."""
        self.set(gpu, **{name: None})

    def event(self, gpu: int, data: int, gi: int = NO_INSTANCE, ci: int = NO_INSTANCE, kind: int = XID_EVENT) -> None:
        """Let the library report an event, once: an XID, of the GPU or of a MIG instance."""
        self._events += 1
        self.add(gpu, "event", f"{self._events} {kind} {data} {gi} {ci}")

    def uses(self, gpu: int, *processes: tuple[int, int, int], instance: int = -1) -> None:
        """Let these processes, and no others, use the GPU: pid, bytes, percent; ``instance``: its number, from 0."""
        self._lines[str(gpu), "process"] = [f"{pid} {used} {busy} {instance}" for pid, used, busy in processes]
        self._write()

    def mig(self, gpu: int, *instances: tuple[int, str, int]) -> None:
        """Enable MIG with these instances: id of the GPU instance, profile, the memory slice where it begins."""
        found = []
        for gi, profile, start in instances:
            _, _, sms, ce, dec, enc, jpeg, ofa, memory, size, *_ = H100_PROFILES[profile].split()
            slices = int(profile[0])
            has = f"{slices} {slices} {sms} {memory} {ce} {dec} {enc} {jpeg} {ofa}"
            found.append(f"{gi} 0 {mig_uuid(gpu, gi)} {profile} {start} {size} {has}")
        self._lines[str(gpu), "instance"] = found
        self._lines[str(gpu), "profile"] = list(H100_PROFILES.values())
        self.set(gpu, mig=1)

    def _write(self) -> None:
        lines = [f"{gpu} {name} {value}\n" for (gpu, name), values in self._lines.items() for value in values]
        new = self._file.with_suffix(".new")
        new.write_text("".join(lines))
        new.rename(self._file)


async def end(client: NvmlClient) -> None:
    """End a client and its process, pipes included: on a busy machine the loop may be closed before them."""
    task, process = client._task, client._process
    await client.stop()
    assert task is not None
    await asyncio.gather(task, return_exceptions=True)
    if process is not None:
        await until(process._transport.is_closing)  # type: ignore[attr-defined]


def mig_uuid(gpu: int, gpu_instance: int) -> str:
    """The UUID of an instance that :meth:`StandIn.mig` made."""
    return f"MIG-{gpu:08x}-5555-6666-7777-8888888800{gpu_instance:02x}"
