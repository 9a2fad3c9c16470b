from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.deviceplugin.helpers import MiniKubelet, short_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """kubelet's plugin directory, in a parent of its own, as on a node."""
    with short_directory() as parent:
        plugins = parent / "device-plugins"
        plugins.mkdir()
        yield plugins


@pytest.fixture
async def kubelet(directory: Path) -> AsyncIterator[MiniKubelet]:
    kubelet = MiniKubelet(directory)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()
