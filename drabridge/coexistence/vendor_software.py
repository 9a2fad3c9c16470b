"""Detect a vendor's own device plugin or DRA driver on the node if this agent shall serve under its names.

A configuration with a vendor's driver name replaces the vendor's software. If both ran, they would publish the same
pool, prepare each other's claims and give out each other's devices. So nothing is served while it runs. Its device
plugin and its driver are found by sockets on which somebody listens: neither kubelet nor the API server is asked.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from drabridge.config.vendors import VENDORS, Vendor
from drabridge.dra.lifecycle import ClaimSide
from drabridge.dra.sockets import is_dead
from drabridge.system.paths import Paths

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between looks while vendor software keeps us from serving: pods wait for the agent

# In plugins/<driver>: kubernetes-sigs/dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin/main.go and driver.go;
# ROCm/k8s-gpu-dra-driver cmd/gpu-kubeletplugin/main.go; intel/intel-resource-drivers-for-kubernetes pkg/gpu/device.
_VENDORS_FILES = frozenset({"checkpoint.json", "pu.lock", "cp.lock", "preparedClaims.json"})

_UID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class VendorSoftware:
    """Looks for running software of the vendor of ``driver``. ``found``: the last finding, in words; "" for nothing.

    While ``claims`` serves, the registration socket with the plain driver name is this agent's own.
    """

    def __init__(self, paths: Paths, driver: str, claims: ClaimSide) -> None:
        self.found = ""
        self._paths = paths
        self._driver = driver
        self._vendor = VENDORS.get(driver)
        self._claims = claims

    async def look(self) -> None:
        """Look once, in a thread. Never raises; files that cannot be read count as absent."""
        if self._vendor is None:
            return
        state, vendor = self._claims.state, self._vendor
        ours = state is not None and state.serving
        found = await asyncio.to_thread(lambda: self._in_words(vendor, ours=ours))
        if found and found != self.found:
            log.error("the vendor's own software serves this node", extra={"reason": found})
        elif self.found and not found:
            log.info("the vendor's own software has ended", extra={"driver": self._driver})
        self.found = found

    def _in_words(self, vendor: Vendor, *, ours: bool) -> str:
        plugins = list(self._alive(self._paths.device_plugins, vendor.plugin_sockets))
        drivers = [path for path in self._registrations() if not (ours and path.name == f"{self._driver}-reg.sock")]
        kinds = (("device plugin", plugins), (f"DRA driver {self._driver}", drivers))
        there = [f"{vendor.name}'s {what} ({', '.join(map(str, paths))})" for what, paths in kinds if paths]
        if not there:
            return ""
        return (
            f"{' and '.join(there)} runs on this node, and only one may serve it. Remove it from the node: pods keep "
            "their devices, and this agent begins as soon as it has ended"
        )

    def _alive(self, directory: Path, pattern: str) -> Iterator[Path]:
        try:
            paths = sorted(directory.glob(pattern))
        except OSError:
            return
        yield from filter(_has_listener, paths)

    def _registrations(self) -> Iterator[Path]:
        """Yield the vendor's registration sockets. A standby's socket, with a token in its name, has another form.

        Go's kubeletplugin library names them ``<driver>-reg.sock``, or with the pod's UID for rolling updates.
        """
        name = re.compile(rf"{re.escape(self._driver)}(-{_UID})?-reg\.sock")
        for path in self._alive(self._paths.kubelet / "plugins_registry", f"{self._driver}*-reg.sock"):
            if name.fullmatch(path.name):
                yield path


def is_vendors(path: Path) -> bool:
    """Whether a file in the driver's directory may be the vendor's: by its name, or a socket with a listener."""
    return path.name in _VENDORS_FILES or _has_listener(path)


def _has_listener(path: Path) -> bool:
    return path.is_socket() and not is_dead(path)
