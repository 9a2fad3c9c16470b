"""Silently drop the fields that a feature gate guards if this gate is off (``gated`` of the schemas)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drabridge.sim.apiserver.schema import Schema
from drabridge.sim.apiserver.schema_dra import TOLERATIONS
from drabridge.sim.releases import Release


def drop_disabled(schema: Schema, obj: Any, gates: Mapping[str, bool], release: Release) -> None:
    """Delete from ``obj`` the fields whose gate is off."""
    _drop(schema, obj, {**gates, TOLERATIONS: gates["DRADeviceTaints"] or not release.drops_tolerations})


def _drop(schema: Schema, value: Any, gates: Mapping[str, bool]) -> None:
    if isinstance(value, list) and schema.items is not None:
        for item in value:
            _drop(schema.items, item, gates)
    elif isinstance(value, dict):
        for name in list(value):
            child = schema.child(name)
            if child is not None and child.gate and not gates[child.gate]:
                del value[name]
            elif child is not None:
                _drop(child, value[name], gates)
