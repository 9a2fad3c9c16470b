"""Device health that drivers report, without sockets (``pkg/kubelet/cm/dra/healthinfo.go``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MESSAGE_LIMIT = 1024  # pkg/kubelet/cm/dra/manager.go: longer texts are cut to 1021 and "..."
_NAMES = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}  # enum HealthStatus of the health contract


@dataclass(frozen=True, slots=True)
class Health:
    """``Healthy``, ``Unhealthy`` or ``Unknown``; believed until ``expires`` (monotonic seconds)."""

    health: str
    message: str
    expires: float


@dataclass(slots=True)
class HealthBook:
    """driver -> (pool, device) -> the last report."""

    drivers: dict[str, dict[tuple[str, str], Health]] = field(default_factory=dict)

    def report(
        self, driver: str, devices: Iterable[tuple[str, str, int, float, str]], now: float, default_timeout: float
    ) -> None:
        """Take in one message, (pool, device, status, timeout in seconds or 0, text) each.

        It is a complete list: a device left out keeps its last value until that is too old.
        """
        known = self.drivers.setdefault(driver, {})
        for pool, device, status, timeout, text in devices:
            if len(text) > MESSAGE_LIMIT:
                text = text[: MESSAGE_LIMIT - 3] + "..."
            known[pool, device] = Health(_NAMES.get(status, "Unknown"), text, now + (timeout or default_timeout))

    def clear(self, driver: str) -> None:
        """The stream ended: nothing is known any more."""
        self.drivers.pop(driver, None)

    def of(self, driver: str, pool: str, device: str, now: float) -> Health:
        known = self.drivers.get(driver, {}).get((pool, device))
        if known is None or now > known.expires:
            return Health("Unknown", "", now)
        return known
