"""Places of hardware: syspaths, and the nodes that a device hands out (``c188:0``, ``/dev/vfio/12``). Pure.

A node is a device's own, or a companion's (``+c188:1``): two devices may have one companion, and holders side by side.
"""

from __future__ import annotations

from drabridge.inventory.model import COMPANION


def filed_as(place: str) -> str:
    """The key of a place in an index: a node is one place, whoever's own it is."""
    return place[1:] if place[:1] == COMPANION else place


def is_node(place: str) -> bool:
    """Whether a place is a node, and no syspath."""
    return place.startswith("/dev/") or (place[:1] in ("c", "b", COMPANION) and place[-1:].isdecimal())


def share_a_node(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether a node that is the device's own on one side is there on the other, its own or a companion's."""
    if not some or not others:
        return False
    return any(
        place in there or f"{COMPANION}{place}" in there
        for here, there in ((some, others), (others, some))
        for place in here
        if is_node(place) and place[:1] != COMPANION
    )
