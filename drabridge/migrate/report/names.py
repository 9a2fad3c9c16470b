"""Say which extended resource a DeviceClass, and a ResourceSlice, belong to. Pure.

The first that applies: what the caller says, the class's ``extendedResourceName``, the same name written the other way
round (``gpu.nvidia.com`` for ``nvidia.com/gpu``, as drivers are named). Else the class has a row of its own, under the
name that Kubernetes has for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from drabridge.migrate.report.facts import CLASS_RESOURCE, ClassFacts, SliceFacts


class ResourceNames:
    """Resources by class and by driver. ``known``: resources in limits and on nodes; ``said``: class -> resource."""

    def __init__(self, known: Set[str], classes: Sequence[ClassFacts], said: Mapping[str, str]) -> None:
        self._turned = {turned(name): name for name in sorted(known)}
        self._said = dict(said)
        self._extended = {one.name: one.extended for one in classes if one.extended}
        self._by_driver: dict[str, set[str]] = {}
        self.classes: dict[str, list[str]] = {}
        for one in sorted(classes, key=lambda one: one.name):
            resource = self.of_class(one.name)
            self.classes.setdefault(resource, []).append(one.name)
            for driver in one.drivers:
                self._by_driver.setdefault(driver, set()).add(resource)
        self._known = {*known, *self.classes}

    def of_class(self, name: str) -> str:
        return self._said.get(name) or self._extended.get(name) or self._turned.get(name) or f"{CLASS_RESOURCE}{name}"

    def of_limit(self, name: str) -> str:
        """Return the row of a resource in limits: those that name a class are the class's."""
        return self.of_class(name.removeprefix(CLASS_RESOURCE)) if name.startswith(CLASS_RESOURCE) else name

    def devices(self, slices: Iterable[SliceFacts]) -> Counter[str]:
        """Count devices in slices by resource; slices of an older generation of a pool are no longer offered."""
        newest: dict[tuple[str, str], int] = {}
        slices = list(slices)
        for one in slices:
            key = one.driver, one.pool
            newest[key] = max(newest.get(key, 0), one.generation)
        count: Counter[str] = Counter()
        for one in slices:
            if one.generation == newest[one.driver, one.pool]:
                for attribute, devices in one.devices:
                    if resource := self._of_device(one.driver, attribute):
                        count[resource] += devices
        return count

    def _of_device(self, driver: str, attribute: str) -> str:
        """Return the resource of a device; "" where nobody can say, because its driver has several."""
        if attribute in self._known:
            return attribute
        resources = self._by_driver.get(driver, set())
        if len(resources) == 1:
            return next(iter(resources))
        return self._turned.get(driver, "")


def turned(resource: str) -> str:
    """Return ``gpu.nvidia.com`` for ``nvidia.com/gpu``."""
    domain, _, name = resource.partition("/")
    return f"{name}.{domain}"
