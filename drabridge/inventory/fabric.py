"""Make a device from an entry of ``fabric:``. Such a device is in no inventory and no ledger. Pure: reads no files."""

from __future__ import annotations

from drabridge.config.fabric import FabricDevice, fabric_resource
from drabridge.config.template import Field, Template
from drabridge.inventory.attribute_values import attributes_of, capacity_of
from drabridge.inventory.container_edits import render_env, render_mount
from drabridge.inventory.devices import Device, DeviceNode, Mount


def fabric_device(entry: FabricDevice, driver: str) -> Device:
    """Return the device as the coordinator publishes it, and as an agent gives it to a container."""

    def values(field: Field) -> str | None:
        return entry.name if field.source == "name" else None

    def path(template: Template | None, otherwise: str = "") -> str:
        return otherwise if template is None else template.render_path(values) or otherwise

    mounts = (render_mount(rule, values) for rule in entry.mounts)
    return Device(
        entry.name,
        entry.name,
        fabric_resource(driver),
        nodes=tuple(DeviceNode(path(n.path), path(n.alias, path(n.path)), n.permissions) for n in entry.nodes),
        env=render_env(entry.env, values),
        mounts=tuple(mount for mount in mounts if isinstance(mount, Mount)),
        attributes=attributes_of(entry, values),
        capacity=capacity_of(entry, values),
    )
