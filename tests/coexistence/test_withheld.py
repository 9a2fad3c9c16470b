"""What an agent tells the others of its node, and when it asks them again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from drabridge.coexistence.withheld import ASK_AGAIN_SECONDS, WithheldDevices
from drabridge.inventory.devices import Device, DeviceNode, Presence, Snapshot
from drabridge.ledger.entries import Entry, Ledger, LedgerDevice, Owner

DEVICES = tuple(Device(name, name, "r") for name in ("free", "doubtful", "held", "unknown"))
SNAPSHOT = Snapshot(1, DEVICES)
GONE = Device("gone", "gone", "r", presence=Presence.GONE)
DISK = Device("disk", "disk", "r", nodes=(DeviceNode("/dev/disk", "/dev/disk", "rw", "b", 259, 1 << 19),))
LEDGER = Ledger.of(
    Entry(LedgerDevice(name, "r"), owner)
    for name, owner in (("free", Owner.NONE), ("doubtful", Owner.QUARANTINE), ("held", Owner.DRA_PREPARED))
)


class Agents:
    """The other agents of the node: what they were told, and what they withhold."""

    def __init__(self, left: dict[str, Any] | None = None, **withheld: str) -> None:
        self.left, self.withheld = left or {}, withheld
        self.told: list[Any] = []

    def announce(self, devices: Any, held: Any) -> dict[str, str]:
        self.told.append([device.name for device in devices if held(device.name)])
        return self.withheld

    def end(self, ledger: Ledger) -> None:
        self.told.append("what stays held")

    def close(self) -> None:
        self.told.append("nothing")


async def test_only_what_is_certainly_held_here_is_kept_from_another_agent() -> None:
    agents = Agents()
    shown = await WithheldDevices(cast("Any", agents)).update(SNAPSHOT, LEDGER)
    assert agents.told == [["held"]]
    assert shown is SNAPSHOT


@pytest.mark.parametrize(("agents", "asked"), [(Agents(), False), (Agents({"x": ()}), True), (Agents(free="x"), True)])
async def test_others_are_asked_again_while_they_may_let_go_of_a_device(agents: Agents, asked: bool) -> None:
    withheld = WithheldDevices(cast("Any", agents))
    assert withheld.again_seconds == (ASK_AGAIN_SECONDS if agents.left else None)
    shown = await withheld.update(SNAPSHOT, LEDGER)
    assert withheld.again_seconds == (ASK_AGAIN_SECONDS if asked else None)
    faulty = [device.name for device in shown.devices if device.presence is Presence.FAULTY]
    assert faulty == list(agents.withheld)
    assert withheld.shown(SNAPSHOT) is shown, "nothing has changed"
    assert withheld.shown(Snapshot(2, ())).devices == ()


async def test_the_host_is_asked_again_about_disks_and_what_is_gone_stays_gone() -> None:
    withheld = WithheldDevices(cast("Any", Agents(gone="x")))
    shown = await withheld.update(Snapshot(1, (GONE,)), LEDGER)
    assert shown.devices == (GONE,)
    withheld = WithheldDevices(cast("Any", Agents()))
    await withheld.update(Snapshot(1, (DISK,)), LEDGER)
    assert withheld.again_seconds == ASK_AGAIN_SECONDS


@pytest.mark.parametrize(("ended", "told"), [(True, "what stays held"), (False, "nothing")])
async def test_an_agent_that_breaks_down_writes_nothing_about_what_it_holds(ended: bool, told: str) -> None:
    agents = Agents()
    await WithheldDevices(cast("Any", agents)).leave(LEDGER, ended=ended)
    assert agents.told == [told]
