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
