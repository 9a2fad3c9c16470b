"""Find the resource names that templates in names stand for, from the devices that exist. Pure.

A resource stays for as long as the agent runs: its pods and its registration with kubelet outlive its devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from drabridge.config.matcher import any_of
from drabridge.config.name_template import VALUES_MAX, expanded
from drabridge.config.resource_names import field_of, name_for
from drabridge.config.schema import Config
from drabridge.inventory.devices import Collision
from drabridge.inventory.match import holds
from drabridge.inventory.mig import identity_hint
from drabridge.inventory.udev_device import UdevDevice


class NamedResources:
    """``config``: the configuration with plain names. ``collisions``: the devices that get no resource name.

    ``file``: the configuration as the file has it.
    """

    def __init__(self, file: Config, values: Mapping[str, frozenset[str]] | None = None) -> None:
        """``values``: those of an earlier configuration, by template."""
        self.file = file
        self.values = dict(values or {})
        self.config = expanded(file, self.values)
        self.collisions: tuple[Collision, ...] = ()
        self._rules = [(resource, field_of(resource.name), any_of(resource.match)) for resource in file.resources]

    def update(self, devices: Iterable[UdevDevice]) -> bool:
        """Look at all devices; return whether ``config`` changed."""
        if self.config is self.file:
            return False
        nameless: dict[tuple[str, str], list[str]] = defaultdict(list)  # one message for all with the same reason
        before = dict(self.values)
        for device in devices:
            for resource, field, rule in self._rules:
                if not holds(rule, device):
                    continue
                if field is not None and (why := self._take(resource.name, field.key, device)):
                    nameless[resource.name, why].append(device.syspath)
                break
        self.collisions = tuple(Collision("", name, tuple(paths), why) for (name, why), paths in nameless.items())
        if before == self.values:
            return False
        self.config = expanded(self.file, self.values)
        return True

    def _take(self, template: str, attribute: str, device: UdevDevice) -> str:
        """Record a device's value; return why it gives no resource name, or ""."""
        value = device.attributes.get(attribute, "")
        known = self.values.get(template, frozenset())
        if value in known:
            return ""
        if not value:
            return identity_hint(device) or f"It has no attribute {attribute}, which its resource is named after"
        name = name_for(template, value)
        if name is None:
            return f"Its attribute {attribute} is {value[:64]!r}, which gives no name of a resource"
        if name in {resource.name for resource in self.file.resources}:
            return f"Its resource would be {name}, which is in the configuration beside {template}"
        if len(known) >= VALUES_MAX:
            return f"{template} stands for {VALUES_MAX} resources already, which is the most"
        self.values[template] = known | {value}
        return ""
