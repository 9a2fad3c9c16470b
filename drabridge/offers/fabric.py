"""Lay out the slices of devices that several nodes reach, in pools that no node owns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drabridge.config.fabric import FabricDevice
from drabridge.config.schema import Config
from drabridge.inventory.fabric import fabric_device
from drabridge.offers.pool import capacity_policies
from drabridge.offers.slices import Effect, Offer, Pool, Taint

UNCHECKED = "unchecked"  # the reason why a device counts as not answering before the first verdict


def fabric_pools(config: Config, taints: Mapping[str, Taint]) -> dict[str, Pool]:
    """Return the pools by name. ``taints``: by device, for those that do not answer."""
    members: dict[str, list[FabricDevice]] = {}
    for entry in config.fabric:
        members.setdefault(entry.pool_name(config.driver), []).append(entry)
    # A slice's name begins with the node's name. These slices have no node, so their names begin with the pool's.
    return {
        name: Pool(
            config.driver,
            name.replace("/", "."),
            tuple(_offer(entry, config.driver, taints) for entry in entries),
            place=_place(entries[0]),
        )
        for name, entries in members.items()
    }


def taint_key(driver: str) -> str:
    """Return the key of the taint of devices that do not answer."""
    return f"{driver}/unreachable"


def unreachable(driver: str, entry: FabricDevice, why: str) -> Taint:
    """Return the taint of a device that does not answer. ``why`` is a word of the checks, never of the device.

    Before the first verdict it evicts nobody: pods may have a device whose slice was deleted.
    """
    assert entry.health is not None
    effect = Effect.NO_SCHEDULE if why == UNCHECKED else Effect(entry.health.effect)
    return Taint(taint_key(driver), why, effect)


def _offer(entry: FabricDevice, driver: str, taints: Mapping[str, Taint]) -> Offer:
    device = fabric_device(entry, driver)
    policies = capacity_policies(entry.capacity, device.capacity) if entry.sharing.allow_multiple_allocations else None
    found = (taints[entry.name],) if entry.name in taints else ()
    return Offer(device, found, policies=policies)


def _place(entry: FabricDevice) -> dict[str, Any]:
    if not entry.node_selector:
        return {"allNodes": True}
    selector = sorted(entry.node_selector.items())
    labels = [{"key": label, "operator": "In", "values": list(values)} for label, values in selector]
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": labels}]}}
