"""``drabridge devices``: list the devices that the configuration makes of this machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from drabridge.cli.hardware import add_config, enumerate_once, resources_named
from drabridge.cli.output import add_output, said, show
from drabridge.cli.pods import add_nodes
from drabridge.config.loader import load
from drabridge.inventory.fallbacks import why_fallbacks
from drabridge.inventory.model import Device, Semver


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--resource", metavar="NAME", help="only devices of this resource")
    add_output(parser)
    add_nodes(parser)
    parser.epilog = (
        "Needs no running agent and no cluster: it looks at this machine.\n\n"
        "examples:\n"
        "  drabridge devices --config radios.yaml\n"
        "  drabridge devices -c radios.yaml -o json | jq '.[].attributes'"
    )


def row(device: Device) -> dict[str, Any]:
    """Return a device as every output shows it."""
    return {
        "name": device.name,
        "id": device.id,
        "resource": device.resource,
        "presence": str(device.presence),
        "reason": device.reason,
        "nodes": [node.path for node in device.nodes],
        "cdiDevices": list(device.cdi_devices),
        "cdiMissing": device.cdi_missing,
        "numa": list(device.numa_nodes),
        "pci": device.pci_bus_id,
        "pcieRoot": device.pcie_root,
        "root": device.root,
        "replicas": device.replicas,
        "syspath": device.syspath,
        "attributes": {k: v.text if isinstance(v, Semver) else v for k, v in device.attributes.items()},
        "capacity": dict(device.capacity),
    }


def _gets(device: Device) -> list[str]:
    """What a container gets: nodes of our own, and other programs' CDI devices or the nodes in their place."""
    instead = device.fallback.nodes if device.cdi_missing and device.fallback is not None else ()
    return [*(node.path for node in (*device.nodes, *instead)), *device.cdi_devices]


def run(arguments: argparse.Namespace) -> int:
    config = load(arguments.config)
    snapshot, inventory = enumerate_once(config)
    resources = [resource.name for resource in resources_named(inventory.config, arguments.resource)]
    devices = [device for device in snapshot.devices if device.resource in resources]
    tables = arguments.output in ("table", "wide")
    rows = [row(device) | ({"gets": _gets(device)} if tables else {}) for device in devices]
    names = ", ".join(resources)
    ours = [collision for collision in snapshot.collisions if set(collision.resource.split(", ")) & set(resources)]
    alike = {path for collision in ours for path in collision.syspaths}
    empty = f"no device matches ({names}); drabridge match --explain says why"
    if alike:
        empty = f"no device is offered ({names}); devices that match and have no identity of their own: {len(alike)}"
    show(
        rows,
        arguments.output,
        columns=("resource", "name", "presence", "gets", "numa", "reason"),
        wide=("id", "pci", "pcieRoot", "replicas", "syspath"),
        empty=empty,
    )
    notes = [f"not offered: {collision}" for collision in snapshot.collisions]
    notes += [f"note: {note}" for note in (*inventory.notes, *why_fallbacks(devices))]
    notes += [f"events: {inventory.status}"] if tables else []
    for line in said(notes):
        print(line, file=sys.stderr)
    return 1 if snapshot.collisions else 0
