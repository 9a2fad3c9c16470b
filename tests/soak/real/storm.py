"""The storm on real nodes: what goes wrong there, one thing after another, drawn by a seeded generator.

Where there are several nodes each fault is one node's, drawn as well, if it is not the control plane's.

Every kind comes once before any comes twice, so that three minutes have seen them all. Pods that are force-deleted are
the load's business (:mod:`tests.soak.real.load`): that happens all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from drabridge.errors import DrabridgeError
from tests.soak.real.bed import NAMES, READY_SECONDS, RealNode, comes_true

CALM_SECONDS = (3.0, 9.0)
"""Between two faults. An agent needs 3 s to be back; shorter, and nobody would ever get a device."""
AWAY_SECONDS = (10.0, 20.0)  # below 40 s, when a node would count as lost (nodeMonitorGracePeriod)
KUBELET_AWAY_SECONDS = (1.0, 6.0)
LONGEST_SECONDS = 40.0
"""What one fault may take: the API server away for 20 s, and starting."""


@dataclass(slots=True)
class Storm:
    """Runs until ``ends_at``; every fault is over by then."""

    nodes: Sequence[RealNode]
    rng: random.Random
    ends_at: float
    """Monotonic. No fault begins that would last longer."""
    kinds: tuple[str, ...]
    """Of :data:`FAULTS`: those that happen."""
    counts: Counter[str] = field(default_factory=Counter)
    node: RealNode = field(init=False)
    """Where the present fault happens."""
    _deck: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = self.nodes[0]

    async def run(self) -> None:
        while self.kinds:
            await asyncio.sleep(self.rng.uniform(*CALM_SECONDS))
            name = self._draw()
            if time.monotonic() + TAKES.get(name, 10.0) > self.ends_at:
                return
            self.counts[name] += 1
            began = time.monotonic()
            of_one = len(self.nodes) > 1 and name not in CONTROL_PLANE
            if of_one:
                self.node = self.rng.choice(self.nodes)
            self.node.log(f"fault: {name}" + (f" ({self.node.object_name})" if of_one else ""))
            with contextlib.suppress(DrabridgeError, OSError):  # an agent that is away already cannot be killed
                what = await FAULTS[name][1](self)
                self.node.log(f"fault: {name}: {what}, {time.monotonic() - began:.1f} s")

    def _draw(self) -> str:
        if not self._deck:
            names = list(self.kinds)
            self._deck = [*names, *self.rng.choices(names, [FAULTS[name][0] for name in names], k=len(names))]
            first, rest = self._deck[: len(names)], self._deck[len(names) :]
            self.rng.shuffle(first)
            self._deck = [*first, *rest]
        return self._deck.pop(0)

    # --- faults: each returns what it did ---------------------------------------------------------------------------

    async def _kill(self) -> str:
        """Kubelet starts a container again at once the first time, later after 10, 20, 40 s: then its pod goes too."""
        pid = self.node.agent_pid()
        os.kill(pid, signal.SIGKILL)
        again = [
            pod["metadata"]["name"]
            for pod in await self.node.agent_pods()
            for status in pod["status"].get("containerStatuses", ())
            if status["restartCount"]
        ]
        for name in again:
            await self.node.end_pod(name, forced=True)
        await self._another_agent(pid)
        return f"process {pid}" + (f", and its pod {', '.join(again)} deleted" if again else "")

    async def _end(self) -> str:
        pid = self.node.agent_pid()
        names = [pod["metadata"]["name"] for pod in await self.node.agent_pods()]
        for name in names:
            await self.node.end_pod(name)
        await self._another_agent(pid)
        return ", ".join(names)

    async def _roll_out(self) -> str:
        pid = self.node.agent_pid()
        await self.node.roll_out()
        await self._another_agent(pid)
        return "as an upgrade does"

    async def _another_agent(self, pid: int) -> None:
        """Wait a while for the next one, so that some faults hit an agent that serves; what comes next may not wait."""

        async def there() -> bool:
            with contextlib.suppress(OSError):
                return self.node.agent_pid() != pid and await self.node.ready()
            return False

        await comes_true(there, 10.0)

    async def _restart_kubelet(self) -> str:
        await self.node.fault("restart", "kubelet")
        return "ended and started"

    async def _kill_kubelet(self) -> str:
        away = self.rng.uniform(*KUBELET_AWAY_SECONDS)
        await self.node.fault("kill", "kubelet")
        try:
            await asyncio.sleep(away)
        finally:
            await self.node.fault("start", "kubelet")
        return f"away for {away:.1f} s"

    async def _api_away(self) -> str:
        away = self.rng.uniform(*AWAY_SECONDS)
        await self.node.fault("stop", "apiserver")
        try:
            await asyncio.sleep(away)
        finally:
            await self.node.fault("start", "apiserver")
        back = await comes_true(self._api_answers, READY_SECONDS)
        return f"away for {away:.1f} s" + ("" if back else ", and does not come back")

    async def _api_answers(self) -> bool:
        return bool(await self.node.agent_pods())

    async def _restart_containerd(self) -> str:
        await self.node.fault("restart", "containerd")
        return "ended and started"

    async def _restart_scheduler(self) -> str:
        await self.node.fault("restart", "scheduler")
        return "ended and started"

    async def _move_lanes(self) -> str:
        legacy = self.rng.randint(1, len(NAMES) - 1)
        await self.node.move_lanes(legacy)
        return f"{legacy} to limits, {len(NAMES) - legacy} to claims"

    async def _reboot(self) -> str:
        """Its pods end, and are admitted anew or not; its devices are held until that is known."""
        await self.node.reboot(agent_first=False)
        back = await comes_true(self._node_is_back, READY_SECONDS)
        self.node.rebooted = time.time()
        return "powered off and on" + ("" if back else ", and does not come back")

    async def _node_is_back(self) -> bool:
        return self.node.own("tell").ready(self.node.object_name) and await self.node.ready()

    async def _cut_cable(self) -> str:
        machine, away = self.node.own("cut a cable").node(self.node.object_name), self.rng.uniform(*AWAY_SECONDS)
        await asyncio.to_thread(machine.cut)
        try:
            await asyncio.sleep(away)
        finally:
            await asyncio.to_thread(machine.heal)
        return f"no network for {away:.1f} s"


FAULTS: dict[str, tuple[int, Callable[[Storm], Awaitable[str]]]] = {
    "agent killed": (4, Storm._kill),
    "agent ended": (2, Storm._end),
    "agent rolled out": (2, Storm._roll_out),
    "kubelet restarted": (3, Storm._restart_kubelet),
    "kubelet killed": (3, Storm._kill_kubelet),
    "API server away": (1, Storm._api_away),
    "containerd restarted": (2, Storm._restart_containerd),
    "lanes moved": (6, Storm._move_lanes),
    "scheduler restarted": (2, Storm._restart_scheduler),
    "node rebooted": (1, Storm._reboot),
    "cable cut": (2, Storm._cut_cable),
}
CONTROL_PLANE = ("API server away", "scheduler restarted")
OF_SEVERAL = ("node rebooted", "cable cut")
HALVES = tuple(name for name in FAULTS if name not in ("scheduler restarted", *OF_SEVERAL))
SHARED = tuple(name for name in FAULTS if name not in ("lanes moved", *OF_SEVERAL))  # all devices are in one lane
TAKES = {
    "API server away": LONGEST_SECONDS,
    "kubelet killed": 15.0,
    "node rebooted": LONGEST_SECONDS,
    "cable cut": 25.0,
}
