"""Registration survives what happens on a node: restarts, lost sockets and directories, in any order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deviceplugin import Device, Phase, PluginServer
from tests.deviceplugin.helpers import QUICK, ListPlugin, MiniKubelet, eventually, running, sockets_in

DEVICES = (Device("a"), Device("b"))
BOTH = {"a": "Healthy", "b": "Healthy"}


async def test_registers_and_sends_the_list(directory: Path, kubelet: MiniKubelet) -> None:
    server = PluginServer(ListPlugin(*DEVICES), directory=directory, name="t", timeouts=QUICK)
    async with running(server):
        await eventually(lambda: kubelet.health() == BOTH)
        assert server.state.phase is Phase.ACTIVE
        assert server.state.registered
        assert server.state.error == ""
        await server.wait_sent(1)
        assert server.sent_version == 1
        assert len(kubelet.requests) == 1
    assert sockets_in(directory) == []


async def test_kubelet_restart(directory: Path, kubelet: MiniKubelet) -> None:
    server = PluginServer(ListPlugin(*DEVICES), directory=directory, name="t", timeouts=QUICK)
    async with running(server):
        await eventually(lambda: kubelet.health() == BOTH)
        for round_ in range(2, 6):
            await kubelet.restart()
            await eventually(lambda: kubelet.health() == BOTH)
            await asyncio.sleep(0.3)  # a late event, or a second registration, would come now
            assert len(kubelet.requests) == round_
        assert kubelet.most_streams == 1
