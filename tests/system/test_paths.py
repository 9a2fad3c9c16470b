"""The agent's paths follow kubelet's, and are absolute and short enough for sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.errors import ConfigError
from drabridge.system.paths import Paths


def test_paths_follow_kubelets_and_long_or_relative_ones_are_refused() -> None:
    paths = Paths.of("gpu.example.com", kubelet=Path("/var/lib/k0s/kubelet"))
    assert paths.state == Path("/var/lib/k0s/kubelet/plugins/gpu.example.com")
    assert Paths.of("d", device_plugins=Path("/x")).kubelet_socket == Path("/x/kubelet.sock")
    with pytest.raises(ConfigError, match="relative"):
        Paths.of("d", cdi=Path("cdi"))
    with pytest.raises(ConfigError, match="107"):
        Paths.of("d", kubelet=Path("/" + "x" * 100))


def test_cdi_files_are_looked_for_where_the_runtime_does_and_in_our_own_directory() -> None:
    etc, run, static = Path("/etc/cdi"), Path("/var/run/cdi"), Path("/var/cdi/static")
    assert Paths.of("d").cdi_specs == (etc, run)
    assert Paths.of("d", cdi=Path("/opt/cdi")).cdi_specs == (etc, run, Path("/opt/cdi"))
    talos = Paths.of("d", cdi=Path("/var/cdi/dynamic"), cdi_specs=(static, Path("/var/cdi/dynamic")))
    assert talos.cdi_specs == (static, Path("/var/cdi/dynamic"))
    with pytest.raises(ConfigError, match="relative path"):
        Paths.of("d", cdi_specs=(Path("cdi"),))
