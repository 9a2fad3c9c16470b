"""Answers of CEL selectors, remembered per expression and device as it stands in its slice."""

from __future__ import annotations

from typing import Any

from drabridge.sim.scheduler import cel
from drabridge.sim.scheduler.pools import Device

_LIMIT = 50_000
"""Answers kept; a device's old ones go with everything when there are more."""


class Selectors:
    """Evaluates each expression once on each revision of each device."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str, str], bool] = {}
        self._values: dict[tuple[str, str], Any] = {}

    def match(self, expression: str, device: Device) -> bool:
        """Raises SelectorError."""
        key = (expression, device.revision, device.name)
        if key not in self._answers:
            if len(self._answers) > _LIMIT:
                self._answers.clear()
                self._values.clear()
            self._answers[key] = cel.matches(expression, self._value(device))
        return self._answers[key]

    def _value(self, device: Device) -> Any:
        key = (device.revision, device.name)
        if key not in self._values:
            self._values[key] = cel.device_value(device.driver, device.spec)
        return self._values[key]
