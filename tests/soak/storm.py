"""Let things go wrong on a node and around it, one after another, drawn by a seeded generator."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from drabridge.cli.agent_client import ask
from drabridge.errors import DrabridgeError
from drabridge.sim.kubelet.faults import ListFault
from tests.soak.bed import LOOP_DEVICES, MEM, Bed

CALM_SECONDS = (0.5, 3.0)  # between two faults; a fault itself lasts as long as it draws


@dataclass(slots=True)
class Storm:
    """Run until ``active`` is false, and repair every fault at the end."""

    bed: Bed
    rng: random.Random
    active: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    _unplugged: set[int] = field(default_factory=set)

    async def run(self) -> None:
        names, weights = zip(*((name, weight) for name, (weight, _) in FAULTS.items()), strict=True)
        while self.active:
            await asyncio.sleep(self.rng.uniform(*CALM_SECONDS))
            (name,) = self.rng.choices(names, weights)
            if self.bed.loops is None and name == "unplug":
                continue
            self.counts[name] += 1
            await FAULTS[name][1](self)
        await self._heal()

    async def _heal(self) -> None:
        bed = self.bed
        bed.cluster.api.faults.heal()
        bed.kubelet.faults.podresources = ListFault.NONE
        bed.kubelet.thaw()
        for index in sorted(self._unplugged):
            self._plug(index)
        if not bed.kubelet.is_running:
            await bed.kubelet.start()
        await bed.start_agent()

    def _plug(self, index: int) -> None:
        assert self.bed.loops is not None
        self.bed.loops.add(index)
        self._unplugged.discard(index)

    # --- faults -----------------------------------------------------------------------------------------------------

    async def _kill(self) -> None:
        await self.bed.agent.stop(signal.SIGKILL)
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.5, 3.0)))
        await self.bed.start_agent()

    async def _terminate(self) -> None:
        await self.bed.agent.stop(signal.SIGTERM)
        await self.bed.start_agent()

    async def _restart_kubelet(self) -> None:
        await self.bed.kubelet.restart(downtime_seconds=self.rng.choice((0.0, 0.2, 2.0)))

    async def _both(self) -> None:
        """An upgrade of the node's packages: everything at once, in any order."""
        await self.bed.agent.stop(signal.SIGKILL)
        await self.bed.kubelet.stop()
        await asyncio.sleep(self.rng.uniform(0, 1))
        parts = [self.bed.start_agent(), self.bed.kubelet.start()]
        self.rng.shuffle(parts)
        for part in parts:
            await part

    async def _reboot(self) -> None:
        await self.bed.reboot()

    async def _partition(self) -> None:
        faults = self.bed.cluster.api.faults
        faults.partition()
        await asyncio.sleep(self.rng.uniform(0.3, 4))
        faults.heal()

    async def _late_watches(self) -> None:
        faults = self.bed.cluster.api.faults
        faults.watch_lag_seconds = self.rng.uniform(0.1, 1)
        faults.latency_seconds = self.rng.uniform(0, 0.3)
        faults.drop_watches()
        await asyncio.sleep(self.rng.uniform(1, 3))
        faults.heal()

    async def _late_answers(self) -> None:
        faults = self.bed.cluster.api.faults
        faults.answer_lag_seconds = self.rng.uniform(0.1, 1)
        await asyncio.sleep(self.rng.uniform(1, 3))
        faults.heal()

    async def _failing_writes(self) -> None:
        faults = self.bed.cluster.api.faults
        for status in (409, 500, 503):
            faults.fail(2, status, after_commit=self.rng.random() < 0.5)
        await asyncio.sleep(1)
        faults.heal()

    async def _blind(self) -> None:
        """PodResources lies or is silent."""
        faults = self.bed.kubelet.faults
        faults.podresources = self.rng.choice([fault for fault in ListFault if fault is not ListFault.NONE])
        await asyncio.sleep(self.rng.uniform(0.5, 3))
        faults.podresources = ListFault.NONE

    async def _freeze_kubelet(self) -> None:
        self.bed.kubelet.freeze()
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        self.bed.kubelet.thaw()

    async def _drop_stream(self) -> None:
        await self.bed.kubelet.drop_stream(self.rng.choice(sorted(self.bed.capacity)))

    async def _unplug(self) -> None:
        """A loop device goes, and comes back later. One that is open cannot go: the kernel says so."""
        assert self.bed.loops is not None
        if self._unplugged and self.rng.random() < 0.6:
            self._plug(self.rng.choice(sorted(self._unplugged)))
            return
        index = self.rng.randrange(LOOP_DEVICES)
        if index not in self._unplugged:
            with contextlib.suppress(OSError):
                self.bed.loops.remove(index)
                self._unplugged.add(index)

    async def _move_lanes(self) -> None:
        """What ``drabridge lanes set`` does, over the same socket, while everything runs."""
        resource = self.rng.choice(sorted(self.bed.capacity))
        legacy = self.rng.randint(0, self.bed.capacity[resource])
        wish: dict[str, Any] = {"resource": resource, "legacy": legacy, "dra": "*"}
        with contextlib.suppress(DrabridgeError):  # it may be away; an operator tries again
            await asyncio.to_thread(ask, self.bed.agent.control, "/lanes", wish)

    async def _middle(self) -> None:
        """Restore the default lanes."""
        with contextlib.suppress(DrabridgeError):
            await asyncio.to_thread(ask, self.bed.agent.control, "/lanes", {"resource": MEM, "reset": True})


FAULTS: dict[str, tuple[int, Callable[[Storm], Awaitable[None]]]] = {
    "agent killed": (6, Storm._kill),
    "agent terminated": (2, Storm._terminate),
    "kubelet restarted": (4, Storm._restart_kubelet),
    "both restarted": (2, Storm._both),
    "rebooted": (1, Storm._reboot),
    "API partitioned": (3, Storm._partition),
    "watches late": (2, Storm._late_watches),
    "answers late": (2, Storm._late_answers),
    "writes failing": (2, Storm._failing_writes),
    "PodResources blind": (3, Storm._blind),
    "kubelet frozen": (2, Storm._freeze_kubelet),
    "stream dropped": (2, Storm._drop_stream),
    "unplug": (6, Storm._unplug),
    "lanes moved": (8, Storm._move_lanes),
    "lanes reset": (2, Storm._middle),
}
