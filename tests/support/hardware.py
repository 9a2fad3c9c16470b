"""Records and hosts made by hand, a running inventory, and loop devices."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from drabridge.config.checker import check
from drabridge.config.schema import Config
from drabridge.inventory.devices import Snapshot
from drabridge.inventory.host import Host, NodeStat
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.observer import Fact
from drabridge.inventory.udev_device import UdevDevice
from tests.support.waiting import PATIENCE

LOOP_MAJOR = 7
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81

needs_loop_devices = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/loop-control", os.W_OK),
    reason="adding loop devices needs root and /dev/loop-control",
)


def config(*resources: Mapping[str, Any], **more: Any) -> Config:
    """A configuration as the file would have it."""
    return check(
        Config, {"apiVersion": "drabridge/v1alpha1", "kind": "AgentConfig", "resources": list(resources), **more}
    )


def loops(pattern: str = "loop*", **more: Any) -> Config:
    """One resource of loop devices, by kernel name."""
    resource = {"name": "example.com/loop", "match": [{"subsystem": "block", "sysname": pattern}], "id": ["{sysname}"]}
    return config(resource, **more)


def record(syspath: str, subsystem: str = "usb", above: UdevDevice | None = None, **more: Any) -> UdevDevice:
    """A record with the sysname that its path implies."""
    return UdevDevice(syspath=syspath, sysname=os.path.basename(syspath), subsystem=subsystem, above=above, **more)


@dataclass
class MemoryHost(Host):
    """A host out of three tables."""

    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    own: dict[str, tuple[str, tuple[int, int] | None]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)  # files that do not answer
    asked: list[str] = field(default_factory=list)  # every node that was looked at, in order

    def close(self) -> None:
        pass

    def node(self, path: str) -> NodeStat:
        self.asked.append(path)
        if path not in self.nodes:
            raise OSError(f"{path}: no such file or directory")
        return NodeStat(path, "c", *self.nodes[path])

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.nodes or path in self.own

    def first_line(self, path: str) -> str | None:
        return self.files.get(path)

    def health_line(self, path: str) -> str | None:
        if path in self.silent:
            raise TimeoutError
        return self.files.get(path)

    def own_node(self, syspath: str) -> tuple[str, tuple[int, int] | None]:
        return self.own.get(syspath, ("", None))


class Watched:
    """A running inventory with everything it said."""

    def __init__(self, inventory: Inventory, facts: list[Fact]) -> None:
        self.inventory = inventory
        self.facts = facts
        self.snapshots: list[Snapshot] = []
        self._changed = asyncio.Event()

    def take(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        self._changed.set()

    async def snapshot_with(self, condition: Callable[[Snapshot], bool], timeout: float = 10.0) -> Snapshot:
        """The first current snapshot that fulfils ``condition``."""
        timeout *= PATIENCE
        try:
            async with asyncio.timeout(timeout):
                while not (self.snapshots and condition(self.snapshots[-1])):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            last = self.snapshots[-1] if self.snapshots else None
            raise AssertionError(f"not within {timeout} s; last: {last}; source: {self.inventory.status}") from None
        return self.snapshots[-1]

    def states(self) -> dict[str, str]:
        """Presence by name, now."""
        return {device.name: str(device.presence) for device in self.inventory.current.devices}

    def told(self, kind: type[Fact]) -> list[Any]:
        """The facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]


@contextlib.asynccontextmanager
async def watching(configuration: Config, **more: Any) -> AsyncIterator[Watched]:
    """Run an inventory; it has a first snapshot when the block begins, and did not fail when it ends."""
    facts: list[Fact] = []
    inventory = Inventory(configuration, on_fact=facts.append, **more)
    watched = Watched(inventory, facts)
    task = asyncio.create_task(inventory.run(watched.take))
    try:
        await watched.snapshot_with(lambda snapshot: snapshot.complete)
        yield watched
        assert not task.done() or task.result() is None
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def loop_control(command: int, number: int) -> None:
    """LOOP_CTL_ADD or LOOP_CTL_REMOVE."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(control, command, number)
    finally:
        os.close(control)


class Loops:
    """Loop devices of this test alone: numbers that no other process of the machine uses."""

    def __init__(self) -> None:
        self.base = 100_000 + os.getpid() % 10_000 * 64
        self._made: set[int] = set()

    def number(self, index: int) -> int:
        return self.base + index

    def name(self, index: int) -> str:
        return f"loop{self.number(index)}"

    @property
    def pattern(self) -> str:
        """A glob for exactly the 64 possible devices of this test."""
        return "|".join(self.name(index) for index in range(64))

    def add(self, index: int) -> str:
        loop_control(LOOP_CTL_ADD, self.number(index))
        self._made.add(index)
        return self.name(index)

    def remove(self, index: int) -> str:
        for attempt in range(200):  # whoever looks at every new disk has it open for a moment
            try:
                loop_control(LOOP_CTL_REMOVE, self.number(index))
                break
            except OSError as error:
                if error.errno != errno.EBUSY or attempt == 199:
                    raise
                time.sleep(0.01)
        self._made.discard(index)
        return self.name(index)

    def close(self) -> None:
        for index in sorted(self._made):
            with contextlib.suppress(OSError):
                self.remove(index)


@contextlib.contextmanager
def loop_devices() -> Iterator[Loops]:
    """Loop devices that are gone afterwards."""
    made = Loops()
    try:
        yield made
    finally:
        made.close()
