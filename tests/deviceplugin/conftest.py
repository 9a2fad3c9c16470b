from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import PluginServer, Timeouts
from tests.deviceplugin.small_kubelet import QUICK, Facts, ListPlugin, MiniKubelet, Served, running
from tests.support.waiting import short_directory, until


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


@pytest.fixture
async def serve(directory: Path, kubelet: MiniKubelet) -> AsyncIterator[Any]:
    """``await serve(plugin, timeouts)`` registers a plugin; all are stopped at the end."""
    stack = []

    async def start(plugin: ListPlugin, timeouts: Timeouts = QUICK) -> Served:
        facts = Facts()
        server = PluginServer(plugin, directory=directory, name="t", timeouts=timeouts, observer=facts)
        context = running(server)
        await context.__aenter__()
        stack.append(context)
        await until(lambda: plugin.resource in kubelet.clients and kubelet.client(plugin.resource).lists)
        return Served(plugin, server, kubelet, facts)

    yield start
    for context in stack:
        await context.__aexit__(None, None, None)
