"""Return how a conversion claims each resource, by an agent's configuration or by the caller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from drabridge.config import load
from drabridge.migrate.convert.settings import Device, Published


def devices_of(config: Path | None, classes: Mapping[str, str]) -> dict[str, Device]:
    """Return how each resource is claimed. ``classes``: resource -> DeviceClass, which outranks the configuration.

    Raises ConfigError for a configuration that cannot be read.
    """
    found = _configured(config) if config is not None else {}
    for name, device_class in classes.items():
        known = found.get(name)
        found[name] = structs.replace(known, device_class=device_class) if known else Device(device_class)
    return found


def _configured(path: Path) -> dict[str, Device]:
    """Return the resources of an agent's configuration that have a DeviceClass.

    Resources with a template in their name are left out: their class has devices of several resources.
    """
    config = load(path)
    found: dict[str, Device] = {}
    for resource in config.resources:
        if resource.device_class is not None and "{" not in resource.name:
            kinds = {name: attribute.kind for name, attribute in resource.attributes.items() if "/" not in name}
            published = Published(
                config.driver,
                texts=frozenset(name for name, kind in kinds.items() if kind == "string"),
                versions=frozenset(name for name, kind in kinds.items() if kind == "version"),
                capacity=frozenset(name for name in resource.capacity if "/" not in name),
            )
            found[resource.name] = Device(
                resource.device_class.name,
                published,
                shares=resource.replicas.count,
                claims_share=resource.sharing.allow_multiple_allocations,
            )
    return found
