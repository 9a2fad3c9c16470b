"""``drabridge devices``: list the devices that the configuration makes of this machine, or take one out of service."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from drabridge.cli.agent_client import ask, find_socket
from drabridge.cli.hardware import enumerate_once, resources_named
from drabridge.cli.options import add_config, add_output, add_socket
from drabridge.cli.output import said, show
from drabridge.cli.pods import add_nodes
from drabridge.config.loader import load
from drabridge.errors import ConfigError, DrabridgeError
from drabridge.inventory.devices import Device, NvidiaFiles, Semver
from drabridge.inventory.fallbacks import no_driver, why_fallbacks

LOOK_SECONDS = 2.0  # for asking an agent; the list works without one


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("action", nargs="?", choices=("list", "cordon", "uncordon"), default="list")
    parser.add_argument("device", nargs="?", metavar="NAME", help="for cordon and uncordon: a device")
    parser.add_argument("--reason", metavar="TEXT", help="for cordon: why, for whoever finds the device missing")
    parser.add_argument("--resource", metavar="NAME", help="only devices of this resource")
    add_socket(parser)
    add_output(parser)
    add_nodes(parser)
    parser.epilog = (
        "The list needs no running agent and no cluster: it looks at this machine.\n\n"
        "cordon takes a device out of service for both APIs, for a reset or an exchange: nobody new gets it, nor a\n"
        "part of it, nor what it is a part of; who has it keeps it. It stays so over restarts, until uncordon. The\n"
        "Node's annotation <driver>/cordoned does the same.\n\n"
        "examples:\n"
        "  drabridge devices --config radios.yaml\n"
        "  drabridge devices -c radios.yaml -o json | jq '.[].attributes'\n"
        "  drabridge devices cordon GPU-8f1c --reason 'fan, ticket 4711'\n"
        "  drabridge devices uncordon GPU-8f1c --node node-7\n"
        '  kubectl annotate node node-7 gpu.example.com/cordoned=\'{"GPU-8f1c": "fan, ticket 4711"}\''
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
    """Return what a container gets: our own nodes, and CDI devices of other programs or the fallback's nodes."""
    instead = device.fallback.nodes if device.cdi_missing and device.fallback is not None else ()
    return [*(node.path for node in (*device.nodes, *instead)), *device.cdi_devices]


def _driver_files(device: Device, driver: NvidiaFiles | None) -> dict[str, Any]:
    """Return where the driver's files were found, if the device gets them with its fallback."""
    given = device.fallback.mounts if device.fallback is not None and device.cdi_missing else ()
    if driver is None or not (no_driver(device) or set(driver.mounts) & set(given)):
        return {}
    files = [{"path": one.path, "found": one.found, "inContainer": list(one.container_paths)} for one in driver.files]
    said = driver.problem or f"{driver.version}: {len(files)} files by {driver.files[0].found}"
    return {"driver": said, "driverFiles": files}


def run(arguments: argparse.Namespace) -> int:
    if arguments.action != "list":
        return _cordon(arguments)
    if arguments.device is not None or arguments.reason is not None:
        raise ConfigError("NAME and --reason are for cordon", hint="drabridge devices cordon NAME --reason TEXT")
    config = load(arguments.config)
    snapshot, inventory = enumerate_once(config)
    resources = [resource.name for resource in resources_named(inventory.config, arguments.resource)]
    devices = [device for device in snapshot.devices if device.resource in resources]
    tables = arguments.output in ("table", "wide")
    cordoned = _cordoned(arguments.socket)
    driver = inventory.driver.current
    rows = [
        row(device)
        | _driver_files(device, driver)
        | {"cordoned": cordoned.get(device.name, "")}
        | ({"gets": _gets(device)} if tables else {})
        for device in devices
    ]
    names = ", ".join(resources)
    ours = [collision for collision in snapshot.collisions if set(collision.resource.split(", ")) & set(resources)]
    alike = {path for collision in ours for path in collision.syspaths}
    empty = f"no device matches ({names}); drabridge match --explain says why"
    if alike:
        empty = f"no device is offered ({names}); devices that match and have no identity of their own: {len(alike)}"
    show(
        rows,
        arguments.output,
        columns=(
            *("resource", "name", "presence", "gets", "numa", "reason"),
            *(("cordoned",) if any(one["cordoned"] for one in rows) else ()),
        ),
        wide=(
            *("id", "pci", "pcieRoot", "replicas", "syspath"),
            *(("driver",) if any("driver" in one for one in rows) else ()),
        ),
        empty=empty,
    )
    notes = [f"not offered: {collision}" for collision in snapshot.collisions]
    notes += [f"note: {note}" for note in (*inventory.notes, *why_fallbacks(devices))]
    notes += [f"events: {inventory.status}"] if tables else []
    for line in said(notes):
        print(line, file=sys.stderr)
    return 1 if snapshot.collisions else 0


def _cordon(arguments: argparse.Namespace) -> int:
    """Take a device out of service, or put it back; show who has it."""
    if arguments.device is None:
        raise ConfigError(f"drabridge devices {arguments.action} needs a NAME", hint="drabridge status lists them")
    undo = arguments.action == "uncordon"
    if undo and arguments.reason is not None:
        raise ConfigError("uncordon takes no --reason")
    request = {"device": arguments.device} | ({"undo": True} if undo else {"reason": arguments.reason or ""})
    answer = ask(find_socket(arguments.socket), "/cordon", request)
    show([answer], arguments.output, columns=("device", "cordoned", "owner", "holder"))
    return 0


def _cordoned(socket: Path | None) -> dict[str, str]:
    """Return name -> why, of the devices that the running agent has cordoned; {} without an agent.

    Raises DrabridgeError if a socket was given and does not answer.
    """
    try:
        document = ask(find_socket(socket), "/status", seconds=LOOK_SECONDS)
    except DrabridgeError:
        if socket is not None:
            raise
        return {}
    return {one["name"]: one.get("cordoned", "") for one in document["devices"]}
