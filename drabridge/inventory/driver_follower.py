"""Follow the files of NVIDIA's driver while a configuration wants them.

A look that finds nothing new costs some calls of stat(2), in a thread: 0.1 ms with the files of an H100's driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from drabridge.config.nvidia import Nvidia
from drabridge.config.schema import Config
from drabridge.inventory.devices import NvidiaFiles
from drabridge.inventory.host import HostPaths
from drabridge.system.io_thread import IoThread
from drabridge.system.supervise import end, forever

LOOK_SECONDS = 5.0
FIRST_SECONDS = 5.0  # how long devices wait for the first look: a disk that hangs must not hold up the others


class DriverFollower:
    """The files of NVIDIA's driver on the host. Use it on one loop; a thread of its own does the looking."""

    def __init__(self, paths: HostPaths, on_change: Callable[[], None]) -> None:
        self._paths = paths
        self._on_change = on_change
        self._settings: Nvidia | None = None
        self._thread = IoThread("driver files")
        self._task: asyncio.Task[None] | None = None
        self.current: NvidiaFiles | None = None
        """What the last look found; None until the first look has ended."""

    async def follow(self, configs: Iterable[Config], settings: Nvidia) -> None:
        """Follow the files if a configuration gives them. Return when they are known, or after ``FIRST_SECONDS``."""
        if not any(one.cdi_fallback and one.cdi_fallback.driver_files for each in configs for one in each.resources):
            await self.stop()
            return
        if settings == self._settings:
            return
        self._settings, self.current = settings, None
        look = asyncio.create_task(self._look())
        await asyncio.wait((look,), timeout=FIRST_SECONDS)
        if self._task is None:
            self._task = asyncio.create_task(forever("driver files", self._run), name="driver files")

    async def stop(self) -> None:
        """Stop following the files."""
        self._settings, self.current = None, None
        task, self._task = self._task, None
        if task is not None:
            await end(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        from drabridge.inventory.nvidia_files import find  # here, because most agents do not need it

        settings, before = self._settings or Nvidia(), self.current
        found = await self._thread.run(partial(find, settings, self._paths, before))
        if settings == self._settings and found != before:
            self.current = found
            self._on_change()
