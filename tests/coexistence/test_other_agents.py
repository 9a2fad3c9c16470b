"""Files by which agents of several drivers tell each other what hardware they serve, and what each withholds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge.coexistence.other_agents import OtherAgents
from drabridge.inventory.devices import Device
from drabridge.ledger.entries import ClaimHold, ClaimPhase, ClaimRef, Entry, Hold, Ledger, LedgerDevice, Owner
from drabridge.ledger.lock import Lock
from drabridge.ledger.store import Store
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import Paths
from tests.support.waiting import HANG_SECONDS, short_directory

NODE = "node-a"
CARD = Device("card", "C1", "example.com/card", "/sys/devices/pci0/0000:01:00.0")
DISK = Device("disk", "D1", "example.com/disk", "/sys/devices/virtual/disk", also_at=("b8:0",))


def nothing(name: str) -> bool:
    return False


class Node:
    """The directories of one node, and agents that are not ended by a test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0
        self.begun: list[OtherAgents] = []
        (root / "plugins_registry").mkdir()
        (root / "plugins").mkdir()

    def agent(self, driver: str) -> OtherAgents:
        paths = Paths.of(f"{driver}.example.com", kubelet=self.root)
        agent = OtherAgents(paths, f"{driver}.example.com", NODE, clock=lambda: self.now)
        self.begun.append(agent)
        return agent

    def forget(self) -> None:
        """So long that who has ended does not come back."""
        self.now += 100

    @property
    def files(self) -> set[str]:
        return {path.name for path in (self.root / "plugins_registry").iterdir()}


@pytest.fixture
def node() -> Iterator[Node]:
    with short_directory() as root:
        node = Node(root)
        yield node
        for agent in node.begun:
            agent.close()


OVERLAPS = {
    "the same": (CARD, CARD),
    "under another name": (CARD, replace(CARD, name="x", id="x")),
    "its child": (CARD, replace(DISK, syspath=f"{CARD.syspath}/drm/card0")),
    "its parent": (replace(DISK, syspath=f"{CARD.syspath}/drm/card0"), CARD),
    "its companion": (replace(DISK, also_at=(CARD.syspath,)), CARD),
    "its node": (DISK, replace(CARD, also_at=("b8:0",))),
    "its companion's node": (DISK, replace(CARD, also_at=("+b8:0",))),
}


@pytest.mark.parametrize(("one", "other"), OVERLAPS.values(), ids=OVERLAPS)
def test_the_second_agent_withholds_what_the_first_one_serves(node: Node, one: Device, other: Device) -> None:
    apart = Device("apart", one.id, "r", f"{CARD.syspath}0")  # its id is spelled alike
    first, second = node.agent("first"), node.agent("second")
    assert first.announce([one], nothing) == {}
    assert second.announce([other, apart], nothing).keys() == {other.name}
    assert first.announce([one], nothing) == {}, "it was there before"
    assert second.announce([other, apart], lambda name: name == other.name).keys() == {other.name}, (
        "whoever had it before"
    )


def test_an_agent_that_is_replaced_finds_its_hardware_as_it_was(node: Node) -> None:
    first, second = node.agent("first"), node.agent("second")
    assert first.announce([CARD], nothing) == {}
    assert "whose agent serves it" in second.announce([CARD], nothing)["card"]
    first.end(Ledger())
    assert second.announce([CARD], nothing).keys() == {"card"}, "it may be back in a moment"
    again = node.agent("first")
    assert again.announce([CARD], nothing) == {}
    again.end(Ledger())
    node.forget()
    assert second.announce([CARD], nothing) == {}
    assert node.agent("first").announce([CARD], nothing).keys() == {"card"}


def held(device: Device) -> Entry:
    return Entry(LedgerDevice.of(device), Owner.LEGACY, hold=Hold(device.units))


def test_an_ended_agents_file_names_the_hardware_that_it_holds_and_no_more(node: Node) -> None:
    first = node.agent("first")
    assert first.announce([CARD, DISK], nothing) == {}
    claim = ClaimHold(ClaimRef("u", "ns", "c"), ClaimPhase.PREPARED, 1.0)
    entry = Entry(LedgerDevice.of(CARD), Owner.DRA_PREPARED, claims=(claim,))
    first.end(Ledger.of([entry, Entry(LedgerDevice.of(DISK))]))
    withheld = node.agent("second").announce([CARD, DISK], nothing)
    assert withheld.keys() == {"card"}
    assert "it is card of the driver first.example.com on this node, which is held by claim ns/c" in withheld["card"]
    assert "remove" in withheld["card"]


def test_an_agent_that_holds_nothing_leaves_no_file(node: Node) -> None:
    first = node.agent("first")
    first.announce([CARD], nothing)
    assert len(node.files) == 3
    first.end(Ledger.of([Entry(LedgerDevice.of(CARD))]))
    assert node.files == set()


def test_a_killed_agents_hardware_is_all_withheld_unless_its_ledger_can_be_read(node: Node) -> None:
    first, second = node.agent("first"), node.agent("second")
    first.announce([CARD, DISK], nothing)
    first.close()
    withheld = second.announce([CARD, DISK], nothing)
    assert withheld.keys() == {"card", "disk"}
    assert "whose agent was killed" in withheld["card"]
    store = Store(node.root / "plugins" / "first.example.com", node=NODE)
    store.rewrite(Ledger.of([held(DISK), Entry(LedgerDevice.of(CARD))]))
    store.close()
    assert second.announce([CARD, DISK], nothing).keys() == {"disk"}


@pytest.mark.parametrize("runs", [False, True])
def test_an_older_agent_without_a_file_is_known_by_its_ledger(node: Node, runs: bool) -> None:
    store = Store(node.root / "plugins" / "first.example.com", node=NODE)
    store.rewrite(Ledger.of([held(DISK), Entry(LedgerDevice.of(CARD))]))
    if not runs:
        store.close()
    second = node.agent("second")
    assert second.announce([CARD, DISK], nothing).keys() == ({"card", "disk"} if runs else {"disk"})
    store.close()


def test_a_ledger_of_another_node_is_ignored(node: Node) -> None:
    store = Store(node.root / "plugins" / "first.example.com", node="node-b")
    store.rewrite(Ledger.of([held(DISK)]))
    store.close()
    assert node.agent("second").announce([DISK], nothing) == {}


PIECE = '{"pieces": [{"name": "x", "id": "x", "places": []}]}'
GARBAGE = {
    "torn": '{"pieces": [{',
    "without a place": PIECE,
    "too deep": f'{{"pieces": [], "x": {"[" * 100_000}{"]" * 100_000}}}',
    "of a later version": '{"pieces": [], "version": 2}',
    "too large": '{"pieces": []}' + " " * (1 << 22),
}


@pytest.mark.parametrize("text", GARBAGE.values(), ids=GARBAGE)
def test_a_file_that_no_agent_wrote_is_ignored(node: Node, text: str) -> None:
    (node.root / "plugins_registry" / ".drabridge-first.example.com.hardware").write_text(text)
    assert "is not known" in node.agent("second").announce([CARD], nothing)["card"]


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
async def test_anything_but_a_file_is_not_waited_for(node: Node, kind: str) -> None:
    path = node.root / "plugins_registry" / ".drabridge-first.example.com.hardware"
    {"pipe": os.mkfifo, "link": lambda one: one.symlink_to("/dev/zero"), "directory": Path.mkdir}[kind](path)
    os.mkfifo(path.with_suffix(".lock"))
    files = IoThread("files")
    asking = files.run(lambda: node.agent("second").announce([CARD], nothing))
    assert "is not known" in (await asyncio.wait_for(asking, HANG_SECONDS))["card"]
    files.stop()


@pytest.mark.parametrize("what", ["file", "ledger"])
def test_an_unreadable_file_withholds_everything(node: Node, what: str) -> None:
    if what == "file":
        (node.root / "plugins_registry" / ".drabridge-first.example.com.hardware").write_text('{"pieces": [{')
    else:
        (node.root / "plugins" / "first.example.com").mkdir()
        (node.root / "plugins" / "first.example.com" / "ledger.jsonl").write_text("rotten\n")
    second = node.agent("second")
    assert second.announce([CARD], lambda name: True) == {}
    assert "what the driver first.example.com has on this node is not known" in second.announce([CARD], nothing)["card"]


def test_nobody_is_told_to_remove_the_files_of_an_agent_that_runs(node: Node) -> None:
    directory = node.root / "plugins" / "first.example.com"
    directory.mkdir()
    lock = Lock(directory)
    (directory / "ledger.jsonl").write_text("rotten\n")
    said = node.agent("second").announce([CARD], nothing)["card"]
    lock.close()
    assert "Take it out of one of the two configurations" in said
    assert "remove" not in said


def test_held_hardware_that_is_elsewhere_now_is_known_by_its_id(node: Node) -> None:
    first = node.agent("first")
    moved, here = (
        replace(CARD, syspath="/sys/devices/not/there"),
        Device("null", "N1", "r", "/sys/devices/virtual/mem/null"),
    )
    first.announce([moved, here], nothing)
    first.end(Ledger.of([held(moved), held(here)]))
    elsewhere = [replace(CARD, syspath="/sys/devices/elsewhere"), replace(here, syspath="/sys/devices/other")]
    assert node.agent("second").announce(elsewhere, nothing).keys() == {"card"}


def test_nothing_new_is_served_while_the_files_of_others_cannot_be_read(node: Node) -> None:
    agent = node.agent("first")
    assert agent.announce([CARD], nothing) == {}
    turn = node.root / "plugins_registry" / ".drabridge-turn.lock"
    turn.unlink()
    turn.mkdir()
    assert agent.announce([CARD, DISK], nothing).keys() == {"disk"}
    assert agent.announce([CARD, DISK], lambda name: name == "disk") == {}
    turn.rmdir()
    assert agent.announce([CARD, DISK], nothing) == {}


def test_two_agents_of_one_driver_with_other_directories_do_not_both_serve(node: Node) -> None:
    first, second = node.agent("first"), node.agent("first")
    assert first.announce([CARD], nothing) == {}
    assert "another agent of the driver first.example.com runs" in second.announce([CARD], nothing)["card"]


def test_removed_files_are_written_again(node: Node) -> None:
    first = node.agent("first")
    first.announce([CARD], nothing)
    before, handles = node.files, os.listdir("/proc/self/fd")
    for path in (node.root / "plugins_registry").iterdir():
        path.unlink()
    first.announce([CARD], nothing)
    assert node.files == before
    assert len(os.listdir("/proc/self/fd")) == len(handles), "somebody may remove them every second"
    assert node.agent("second").announce([CARD], nothing).keys() == {"card"}


def test_a_running_agents_removed_file_withholds_until_it_is_written_again(node: Node) -> None:
    first, second = node.agent("first"), node.agent("second")
    first.announce([CARD], nothing)
    file = node.root / "plugins_registry" / ".drabridge-first.example.com.hardware"
    before = file.read_bytes()
    file.unlink()
    assert "is not known" in second.announce([CARD, DISK], nothing)["disk"]
    first.restore_file()
    assert file.read_bytes() == before
    assert second.announce([CARD, DISK], nothing).keys() == {"card"}


def test_devices_that_another_agent_got_meanwhile_are_not_taken_back(node: Node) -> None:
    """A person has removed the file, say: our own ledger is of long ago."""
    assert node.agent("first").announce([CARD], nothing) == {}
    assert node.agent("second").announce([CARD], lambda name: True).keys() == {"card"}


def test_a_pod_of_an_ended_agent_keeps_its_device_with_the_agent_that_found_it(node: Node) -> None:
    """A driver under a new name: kubelet shows the pod, and a device that turns Unhealthy may end it."""
    first, second = node.agent("first"), node.agent("second")
    first.announce([CARD], nothing)
    first.end(Ledger.of([held(CARD)]))
    assert second.announce([CARD], nothing).keys() == {"card"}
    assert second.announce([CARD], lambda name: True) == {}


def test_forgotten_hardware_is_free_for_every_agent(node: Node) -> None:
    first, second = node.agent("first"), node.agent("second")
    first.announce([CARD, DISK], nothing)
    first.end(Ledger.of([held(CARD), held(DISK)]))
    assert second.announce([CARD, DISK], nothing).keys() == {"card", "disk"}
    (left,) = second.left.values()
    second.strike_out("first.example.com", [piece for piece in left if piece.name == "card"])
    assert second.announce([CARD, DISK], nothing).keys() == {"disk"}
    second.strike_out("first.example.com", left)
    assert second.announce([CARD, DISK], nothing) == {}
    assert not second.left
    second.end(Ledger.of([held(CARD)]))
    back = node.agent("first")
    for _ in range(2):
        assert back.announce([CARD, DISK], lambda name: True).keys() == {"card"}, "its ledger is of before"
    assert back.announce([CARD], nothing).keys() == {"card"}


def test_hardware_known_by_a_ledger_can_be_forgotten(node: Node) -> None:
    store = Store(node.root / "plugins" / "first.example.com", node=NODE)
    store.rewrite(Ledger.of([held(DISK)]))
    store.close()
    second = node.agent("second")
    assert second.announce([DISK], nothing).keys() == {"disk"}
    second.strike_out("first.example.com", second.left["first.example.com"])
    assert second.announce([DISK], nothing) == {}


def test_hardware_of_an_agent_that_is_back_is_not_forgotten(node: Node) -> None:
    first, second = node.agent("first"), node.agent("second")
    first.announce([CARD], nothing)
    first.end(Ledger.of([held(CARD)]))
    second.announce([CARD], nothing)
    left = second.left["first.example.com"]
    node.agent("first").announce([CARD], lambda name: True)
    second.strike_out("first.example.com", left)
    assert second.announce([CARD], nothing).keys() == {"card"}
