"""A whole and its parts stay related while either is held, whatever a changed configuration names them."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.config.schema import Config
from drabridge.inventory.builder import BuildResult, DeviceBuilder
from drabridge.inventory.identity import Key
from drabridge.inventory.nvidia import NOTHING
from drabridge.inventory.udev_device import UdevDevice
from tests.support.hardware import MemoryHost, config, record

BRIDGE = record("/sys/devices/pci0000:00/0000:00:01.0", "pci")
HUB = record(f"{BRIDGE.syspath}/0000:01:00.0", "pci", BRIDGE)
CARD = record(f"{HUB.syspath}/card", "card", HUB)
BETWEEN = record(f"{CARD.syspath}/between", "bus", CARD)
BELOW = record(f"{BETWEEN.syspath}/part", "part", BETWEEN)
BESIDE = record(f"{BRIDGE.syspath}/part", "part", BRIDGE, links={"physfn": CARD.syspath, "other": HUB.syspath})
PLACES = {"parent": BELOW, "link:physfn": BESIDE}


def cards(name: str, prefix: str = "", **more: Any) -> dict[str, Any]:
    return {
        "name": f"example.com/{name}",
        "match": [{"subsystem": "card"}],
        "id": [f"{prefix}{{sysname}}"],
        "nodes": [],
    } | more


def parts(name: str, of: str, by: str, prefix: str = "") -> dict[str, Any]:
    return {
        "name": f"example.com/{name}",
        "match": [{"subsystem": "part"}],
        "id": [f"{prefix}{{sysname}}"],
        "nodes": [],
        "partition": {"of": f"example.com/{of}", "by": by},
    }


# Other devices, above and between the whole and its parts: no whole of theirs.
OTHERS = {"name": "example.com/other", "match": [{"subsystem": ["pci", "bus"]}], "id": ["o-{sysname}"], "nodes": []}


def before(by: str) -> Config:
    return config(OTHERS, cards("card"), parts("part", "card", by))


def changed(what: str, by: str) -> Config:
    whole, part = cards("card2"), parts("part", "card2", by)
    if what == "both names":
        part = parts("part2", "card2", by)
    elif what == "id":
        whole, part = cards("card", "c-"), parts("part", "card", by, "p-")
    elif what == "all":
        whole, part = cards("card2", "c-"), parts("part2", "card2", by, "p-")
    elif what == "swapped":
        whole, part = cards("part"), parts("card", "part", by)
    elif what == "the whole is another's":
        whole = cards("first")
        part = parts("part2", "card2", by)
        return config(OTHERS, whole, cards("card2"), part)
    elif what == "only parts":
        part.pop("partition")
        return config(OTHERS, part)
    elif what == "only wholes":
        return config(OTHERS, whole)
    return config(OTHERS, whole, part)


BOTH_STAY = ("name", "both names", "id", "all", "swapped", "the whole is another's")
CHANGES = [
    *((what, held) for what in BOTH_STAY for held in ("card", "part", "both")),
    *(("only parts", held) for held in ("card", "both")),  # else there is no card any more
    *(("only wholes", held) for held in ("part", "both")),
]


class Bench:
    """A card with a part, above or beside it, and a configuration that changes."""

    def __init__(self, first: Config, part: UdevDevice) -> None:
        self.held: set[str] = set()
        self.given: dict[Key, str] = {}
        self.records = {one.syspath: one for one in (HUB, CARD, BETWEEN, part)}
        self.builder = DeviceBuilder(first, MemoryHost())

    def look(self, unready: str = "") -> BuildResult:
        built = self.builder.build(
            self.records,
            NOTHING,
            known_ids=self.given,
            held=self.held.__contains__,
            ready=lambda seen: seen.syspath != unready,
        )
        self.given |= {(device.resource, device.syspath): device.id for device in built.devices}
        return built

    def change(self, new: Config) -> None:
        self.builder = DeviceBuilder(new, MemoryHost(), self.builder.named_by)


def related(built: BuildResult, part: UdevDevice) -> tuple[str, str]:
    """What the part says of its whole, and what the whole is called."""
    here = {device.syspath: device for device in built.devices}
    assert [path for path, device in here.items() if device.root] in ([], [part.syspath]), "the others are no parts"
    return here[part.syspath].root, here[CARD.syspath].name


@pytest.mark.parametrize("by", PLACES)
@pytest.mark.parametrize(("what", "held"), CHANGES)
def test_a_part_names_its_whole_while_either_is_held(what: str, held: str, by: str) -> None:
    part = PLACES[by]
    bench = Bench(before(by), part)
    assert related(bench.look(), part) == ("card", "card")
    bench.held = {"card", "part"} if held == "both" else {held}
    bench.change(changed(what, by))
    for _ in range(2):
        root, whole = related(bench.look(), part)
        assert root == whole, what
        bench.change(changed(what, by))
    bench.held = set()
    if what in BOTH_STAY:
        root, whole = related(bench.look(), part)
        assert (root == whole) is (what != "the whole is another's"), "as the new configuration says"


@pytest.mark.parametrize("by", PLACES)
def test_a_part_that_comes_after_the_change_names_the_held_whole(by: str) -> None:
    part = PLACES[by]
    bench = Bench(before(by), part)
    del bench.records[part.syspath]
    bench.look()
    bench.held = {"card"}
    bench.change(changed("all", by))
    bench.records[part.syspath] = part
    assert related(bench.look(), part) == ("card", "card")


@pytest.mark.parametrize("by", PLACES)
def test_a_part_names_a_whole_that_udevd_is_not_done_with(by: str) -> None:
    part = PLACES[by]
    whole = cards("card", match=[{"subsystem": "card", "tag": "ours"}])
    bench = Bench(config(OTHERS, whole, parts("part", "card", by)), part)
    bench.records[CARD.syspath] = record(CARD.syspath, "card", HUB, tags=("ours",))
    assert related(bench.look(), part) == ("card", "card")
    built = bench.look(unready=CARD.syspath)
    assert built.waiting == (CARD.syspath,)
    assert [device.root for device in built.devices if device.syspath == part.syspath] == ["card"]
