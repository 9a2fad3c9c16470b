"""Hold what the command line of ``drabridge run`` says; everything else is in the configuration file."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from drabridge.system.paths import BOOT_ID, CDI_DIRECTORY, CDI_SPECS, KUBELET_ROOT


class Options(Struct, frozen=True):
    """The options of one agent. A path that is None follows from the others (:class:`drabridge.system.paths.Paths`)."""

    config: Path
    node_name: str
    kubelet: Path = KUBELET_ROOT
    device_plugins: Path | None = None
    state: Path | None = None
    cdi: Path = CDI_DIRECTORY
    cdi_specs: tuple[Path, ...] = CDI_SPECS
    listen: str = "127.0.0.1:9400"  # empty: no port
    page: str = "local"  # who gets the page for people on the port: "local" (loopback only), "all", or "off" (nobody)
    kubeconfig: Path | None = None
    boot_id: Path = BOOT_ID
