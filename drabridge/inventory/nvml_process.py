"""Run the process that asks NVML while a configuration reads what NVIDIA's driver says, and keep what it said last.

The process is started again after it ends. It is killed when it is silent for too long or writes something other than
a message. Its last message stays valid meanwhile: if NVML does not answer, that says nothing about a GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from drabridge.config.nvidia import Nvidia
from drabridge.config.schema import Config
from drabridge.inventory import gpu_use, nvml_report
from drabridge.inventory.gpu_use import GpuUse
from drabridge.inventory.nvidia import NvidiaFacts
from drabridge.inventory.nvml_report import Event, Failed, State, Use, Xids
from drabridge.inventory.observer import NvmlChanged, OnFact, XidSeen
from drabridge.inventory.udev_device import clean
from drabridge.inventory.udev_scope import needs_nvidia

PROGRAM = """\
import sys; sys.path.append(sys.argv.pop(1)); from drabridge.inventory.nvml_worker import main; main(*sys.argv[1:])
"""
_ROOT = str(Path(__file__).parents[2])
_FLAGS = "-IS" + "O" * sys.flags.optimize  # optimised as the agent is, so that it uses the same bytecode files
LINE_MAX_BYTES = 512 << 10  # 16 GPUs with 7 instances each need 80 KiB

_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu",
            "lib/aarch64-linux-gnu")  # fmt: skip
LIBRARIES = tuple(f"{root}/{folder}/libnvidia-ml.so.1" for root in ("/run/nvidia/driver", "") for folder in _FOLDERS)
"""Where the library is looked for: in the driver root of NVIDIA's GPU operator, then on the host.

The folders are those of kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/root.go.
"""

_DRIVER_NOT_LOADED = 9  # nvml.h
_HINTS = {
    _DRIVER_NOT_LOADED: "NVIDIA's driver is not loaded",
    12: "libnvidia-ml.so.1 was not found: say in nvidia.library where the agent sees it",
    18: "the library is of another version than the driver that is loaded: reboot, or reload the driver",
    4: "the agent may not open /dev/nvidia*: it has to be privileged, or run with NVIDIA's container runtime",
}


class Timing(Struct, frozen=True):
    """Seconds. ``start``: until the first message (NVML initialises GPUs that nothing else has open)."""

    look: float = 5.0
    silence: float = 30.0  # a look at eight GPUs takes 0.1 s
    start: float = 90.0
    kill: float = 5.0  # wait for the end of a killed process
    pauses: tuple[float, ...] = (0.5, 2.0, 5.0, 15.0, 60.0)  # before it is started again


TIMING = Timing()
FIRST_SECONDS = 10.0
"""How long the first snapshot waits for NVML. It initialises GPUs that nothing else has open: about a second each."""

END_SECONDS = 0.5
"""How long the end waits for the killed process; part of the 3 s in which SIGTERM ends the agent."""

STABLE_SECONDS = 60.0  # after a run of this length, the pauses begin with the first one again
_NAMED_SIGNALS = frozenset(signal.Signals)  # real-time signals have no names


class NvmlClient:
    """Runs a process that asks NVML, and keeps its answers. Use it on one loop.

    ``news``: the result of :meth:`facts` has changed since it was called last.
    """

    def __init__(
        self, on_change: Callable[[], None], on_fact: OnFact, timing: Timing = TIMING, proc: Path = Path("/proc")
    ) -> None:
        """``on_change`` is called when the result of :meth:`facts` changes. ``proc``: where procfs is mounted."""
        self._told = on_change
        self._on_fact = on_fact
        self._timing = timing
        self._proc = proc
        self._settings = Nvidia()
        self._state: State | None = None
        self._xids = Xids()
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._answered = asyncio.Event()
        self._again = asyncio.Event()  # when set, the process ends, and starts again at once unless there is a pause
        self._pause = ""  # why no process may run
        self._addresses: frozenset[str] | None = None  # PCI addresses of the GPUs that the driver's files showed last
        self._notes: list[str] = []
        self.news = False
        self.problem: str | None = None
        """Why NVML does not answer; "" while it does; None while no configuration needs it."""
        self.use: GpuUse | None = None
        """What containers use of the GPUs; None if the node's processes are not visible, or NVML does not answer."""

    @property
    def notes(self) -> list[str]:
        """Return sentences for people about NVML's answers."""
        return [*([f"NVML: {self.problem}"] if self.problem else []), *self._notes]

    def follow(self, configs: Iterable[Config], settings: Nvidia) -> None:
        """Ask NVML if a configuration needs it and ``settings`` allow it; else end the process and forget its answers.

        Call it on the loop.
        """
        if settings.nvml and any(map(needs_nvidia, configs)):
            self.start(settings)
        elif self._task is not None:
            self._end_task()
            self._task, self._state, self._xids, self._notes, self.problem = None, None, Xids(), [], None
            self._answered.clear()
            self._on_change()

    def start(self, settings: Nvidia) -> None:
        """Start the process, or use other settings from now on. Call it on the loop."""
        library = self._settings.library
        self._settings = settings
        if self._task is None:
            self.problem = ""
            self._task = asyncio.create_task(self._run(), name="nvml")
        elif settings.library != library:
            self._again.set()

    async def answered(self, seconds: float = FIRST_SECONDS) -> None:
        """Wait ``seconds`` at most for the first answer, or until it is known that none will come."""
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._answered.wait()

    def pause(self, why: str) -> None:
        """End the process, which keeps the driver in use, and start none while ``why`` is a reason; "" goes on."""
        if why != self._pause:
            self._pause = why
            self._again.set()

    async def stop(self, seconds: float = END_SECONDS) -> None:
        """End the process. Wait ``seconds`` at most for its end: a driver may keep it for ever."""
        if self._task is not None:
            self._end_task()
            await asyncio.wait((self._task,), timeout=seconds)

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._process is not None:
            _kill(self._process)

    def facts(self, proc: NvidiaFacts) -> NvidiaFacts:
        """Return ``proc`` (of ``/proc/driver/nvidia``) with NVML's answers. If GPUs came or went, restart NVML."""
        self.news = False
        addresses = frozenset(proc.gpus)
        if self._state is not None and self._addresses not in (None, addresses):
            self._again.set()
        self._addresses = addresses
        if self._state is None:
            return proc
        self._notes = list(nvml_report.notes(proc, self._state))
        return nvml_report.merged(proc, self._state, self._xids)

    # --- the process --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            while self._pause:
                self._tell(f"it is not asked because of {self._pause}")
                self._answered.set()
                self._again.clear()
                await self._again.wait()
            began = time.monotonic()
            self._again.clear()
            why = await self._watch()
            if time.monotonic() - began > STABLE_SECONDS:
                failures = 0
            if why:
                self._tell(why)
            self._answered.set()
            pauses = self._timing.pauses
            pause = pauses[min(failures, len(pauses) - 1)] if why else 0.0
            failures += bool(why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._again.wait()

    async def _watch(self) -> str:
        """Run one process until it ends or must end; return why, "" if this agent asked for it."""
        libraries = [self._settings.library] if self._settings.library else LIBRARIES
        arguments = [_ROOT, str(self._timing.look), str(self._proc), *libraries]
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, _FLAGS, "-c", PROGRAM, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=LINE_MAX_BYTES,
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},  # one for both threads: 0.1 MiB
            )
        except OSError as error:
            return f"its process could not be started: {error.strerror}"
        assert process.stdout is not None
        again = asyncio.create_task(self._again.wait())
        reading = asyncio.create_task(self._read(process.stdout))
        try:
            await asyncio.wait((reading, again), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return ""
            why = reading.result()
        finally:
            for task in (reading, again):
                task.cancel()
            self.use = None
            await self._end(process)
        if why:
            return why
        status = process.returncode or 0
        if status >= 0:
            return f"its process ended ({status})"
        name = signal.Signals(-status).name if -status in _NAMED_SIGNALS else f"signal {-status}"
        return f"its process ended by {name}"

    async def _read(self, messages: asyncio.StreamReader) -> str:
        """Read messages until their end, or until one is invalid or ``failed``; return why, "" if unknown."""
        limit = self._timing.start
        while True:
            try:
                async with asyncio.timeout(limit):
                    line = await messages.readline()
            except TimeoutError:
                return f"it hangs: nothing was heard of it for {limit:g} s, so its process was killed"
            except ValueError:
                return "its process wrote a line without an end, and was killed"
            if not line:
                return ""
            try:
                message = nvml_report.decode(line)
            except (ValueError, RecursionError):
                return "its process wrote what is no message, and was killed"
            if isinstance(message, Failed):
                if message.code == _DRIVER_NOT_LOADED and self._xids.clear():
                    self._on_change()
                return _HINTS.get(message.code) or clean(message.text) or f"error {message.code}"
            if isinstance(message, Use):
                self.use = await asyncio.to_thread(gpu_use.by_container, message, self._proc)
            self._take(message)
            limit = self._timing.silence

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Kill the process and wait for its end, however long: a new process would hang in the same way."""
        _kill(process)
        try:
            async with asyncio.timeout(self._timing.kill):
                await process.wait()
        except TimeoutError:
            self._tell("it hangs in the driver, and its process cannot be ended")
            await process.wait()

    # --- what it says -------------------------------------------------------------------------------------------------

    def _take(self, message: nvml_report.Message) -> None:
        self._tell("")
        now, seconds, changed = time.monotonic(), self._settings.xid_recovery_seconds, isinstance(message, State)
        if isinstance(message, State):
            self._xids.follow(self._state, message)
            self._state = message
            self._answered.set()
        elif isinstance(message, Event):
            self._on_fact(XidSeen(clean(message.gpu), message.xid))
            changed = self._xids.add(message, now)
        if seconds and self._xids.expire(now - seconds):  # a GPU without news has not recovered
            changed = True
        if changed:
            self._on_change()

    def _on_change(self) -> None:
        self.news = True
        self._told()

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_fact(NvmlChanged(problem))


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # Process.kill() may take its status away from asyncio
