"""Follow CDI files of other programs once a configuration names one of their devices; before, cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from drabridge.inventory.cdi_names import NO_NAMES, CdiNames
from drabridge.system.supervise import forever

if TYPE_CHECKING:
    from drabridge.inventory.cdi_index import CdiIndex

_NONE: frozenset[str] = frozenset()


class CdiFollower:
    """The CDI devices that exist, of the kinds (``vendor/class``) that were given to :meth:`follow`."""

    def __init__(self, directories: Collection[Path], driver: str, on_change: Callable[[], None]) -> None:
        self._made_of = directories, driver, on_change
        self._index: CdiIndex | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def current(self) -> CdiNames:
        """What the last look found. Never waits for a disk."""
        return self._index.current if self._index is not None else NO_NAMES

    async def confirm(self, names: Collection[str]) -> None:
        """Return once a look at the files of these CDI devices, in a thread, has found them. Raises HostError."""
        await self._made().confirm(names)

    async def follow(self, kinds: Callable[[], frozenset[str]]) -> None:
        """Return when the devices of these kinds are known; follow their files from then on."""
        while (wanted := kinds()) != (self._index.kinds if self._index is not None else _NONE):
            await self._made().use(wanted)
        if self._task is None and self._index is not None:
            self._task = asyncio.create_task(forever("CDI files", self._index.run), name="CDI files")

    async def stop(self) -> None:
        """Stop following the files; :meth:`confirm` still looks at them."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _made(self) -> CdiIndex:
        if self._index is None:
            from drabridge.inventory.cdi_index import CdiIndex  # here: most agents do without it

            self._index = CdiIndex(*self._made_of)
        return self._index
