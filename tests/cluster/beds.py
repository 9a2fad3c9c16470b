"""Give each scenario a bed in its first state; after a scenario that failed, make a new one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.cluster.bed import Bed, at_the_beginning, clear, failed
from tests.cluster.real_bed import real
from tests.cluster.sim_bed import simulated

BEDS: dict[str, Callable[[Any], AbstractAsyncContextManager[Bed]]] = {"simulated": simulated, "real": real}


class Beds:
    """Gives each scenario a bed as it is at the beginning: a ready agent, its devices in their lanes, no workloads."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Bed]]) -> None:
        self._make = make
        self._stack = contextlib.AsyncExitStack()
        self._bed: Bed | None = None
        self._current: Bed | None = None

    async def begin(self) -> Bed:
        """The bed of the scenario before, if :meth:`end` has found it in order; else a new one."""
        if self._bed is None:
            bed = await self._stack.enter_async_context(self._make())
        else:
            bed = self._bed
        self._bed = None
        if not await bed.ready():
            await bed.install()
        await at_the_beginning(bed)
        self._current = bed
        return bed

    async def end(self) -> None:
        """Judge the scenario and take its workloads away."""
        bed = self._current
        assert bed is not None, "no scenario has begun"
        if conflicts := await bed.conflicts():
            raise await failed(bed, f"double holds: {conflicts}")
        await clear(bed)
        self._bed = bed

    async def give_up(self) -> None:
        """After a scenario that failed nothing is believed: all that there is goes."""
        await self._stack.aclose()
        self._bed = None
