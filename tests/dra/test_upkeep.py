"""The files of prepared claims at start, when the inventory changes at the same time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.dra.server import PluginServer
from drabridge.inventory.model import DeviceNode, Snapshot
from tests.dra.helpers import a_node, gpu
from tests.dra.test_prepare import text_of


async def test_a_change_while_the_sockets_are_bound_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        await node.stop()
        moved = replace(gpu(1), nodes=(DeviceNode("/dev/zero", "/dev/gpu1", "rw", "c", 1, 5),))
        bind = PluginServer.start

        async def busy(self: Any) -> None:
            await bind(self)
            node.snapshot = Snapshot(node.snapshot.version + 1, (gpu(0), moved, gpu(2), gpu(3)))

        monkeypatch.setattr(PluginServer, "start", busy)
        await node.start()
        await node.wait_for(lambda: "/dev/zero" in text_of(node, claim), "the new node")
