"""What the cluster under test has, asked without the product: tests of what is missing are skipped.

A feature is there if its gates are on. A gate that the server does not list is either not there yet or was removed when
it became general; then the API's schema decides, which has the field or has it not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

Ask = Callable[[str], str | None]
"""Returns what an administrator's GET of a path answers; None where that is an error."""

SCHEMA = "/openapi/v3/apis/resource.k8s.io/v1"
_GATE = re.compile(r'^kubernetes_feature_enabled\{name="(\w+)",stage="\w*"\} ([01])$', re.MULTILINE)


@dataclass(frozen=True)
class Feature:
    """``gates``: of the API server. ``field``: of the schema. ``paths``: of APIs of which one has to be served."""

    name: str
    gates: tuple[str, ...] = ()
    field: str = ""
    paths: tuple[str, ...] = ()

    def there(self, ask: Ask) -> bool:
        if self.paths:
            return any(ask(path) is not None for path in self.paths)
        on = {name: value == "1" for name, value in _GATE.findall(ask("/metrics") or "")}
        in_schema = f'"{self.field}"' in (ask(SCHEMA) or "")
        return in_schema and all(on.get(gate, True) for gate in self.gates)


ADMISSION = "/apis/admissionregistration.k8s.io"
STATUS = ("DRAResourceClaimDeviceStatus",)
FEATURES = {
    one.name: one
    for one in (
        Feature("extended resources", ("DRAExtendedResource",), "extendedResourceName"),
        Feature("binding conditions", ("DRADeviceBindingConditions", *STATUS), "bindingConditions"),
        Feature("device taints", ("DRADeviceTaints",), "taints"),
        Feature("consumable capacity", ("DRAConsumableCapacity",), "allowMultipleAllocations"),
        Feature("partitionable devices", ("DRAPartitionableDevices",), "consumesCounters"),
        Feature("device status", STATUS, "devices"),
        Feature(
            "admission policies that change pods",
            paths=tuple(f"{ADMISSION}/{version}/mutatingadmissionpolicies" for version in ("v1", "v1beta1")),
        ),
    )
}


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark tests that skip themselves on a real cluster without one of these features."""
    assert all(name in FEATURES for name in names), names
    return pytest.mark.needs(*names)


def missing(names: tuple[str, ...], ask: Ask) -> list[str]:
    return [name for name in names if not FEATURES[name].there(ask)]


def gates(ask: Ask) -> dict[str, bool]:
    """All gates that the API server lists."""
    return {name: value == "1" for name, value in _GATE.findall(ask("/metrics") or "")}


def version(ask: Ask) -> str:
    """The API server's version, as ``1.36.3``."""
    return str(json.loads(ask("/version") or "{}").get("gitVersion", "")).removeprefix("v").partition("+")[0]
