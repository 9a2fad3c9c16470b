"""Devices recorded in the lab's guest, as umockdev shows them: ``python -m tests.inventory.umockdev_lab NAME``."""

from __future__ import annotations

import sys

from drabridge.config import load
from drabridge.inventory.match import matches
from drabridge.inventory.suggest import SUGGESTED, suggest
from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_scope import UdevScope
from tests.lab.inside.found import find
from tests.lab.records import RECORDS
from tests.support.configurations import HEAD
from tests.support.umockdev import Testbed, tree

SAYS = {
    "quad": "it may be another device's after the next boot",  # nothing but the kernel's name tells its ports apart
    "sound": "nodes: [{from: group}]",
    "twin1": 'devpath: "3"',
    "bare": 'devpath: "5"',
    "edu1": 'sysname: "0000:00:',
    "nvme2": b"NV-0002".hex(),  # in its WWID
}


def check(name: str) -> None:
    """What ``suggest`` writes for each device of a record matches it, and no other device of the record."""
    Testbed(tree(name))
    everything = Udev(UdevScope(attributes=SUGGESTED)).enumerate()
    for device in RECORDS[name]:
        syspath = find(device)
        entry = suggest(everything[syspath], everything.values())
        rules = load(f"{HEAD}resources:\n{entry}").resources[0].match
        assert [path for path, one in everything.items() if matches(one, rules)] == [syspath], entry
        assert SAYS.get(device, "") in entry, entry


if __name__ == "__main__":
    check(sys.argv[1])
