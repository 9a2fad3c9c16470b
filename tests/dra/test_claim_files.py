"""The CDI files of prepared claims at a start while the inventory changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.server import DraServers
from drabridge.errors import HostError
from drabridge.inventory.devices import DeviceNode, Presence, Snapshot
from tests.support.dra_node import a_node, gpu, text_of, with_profile
from tests.support.waiting import until


async def test_a_change_while_the_sockets_are_bound_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        await node.stop()
        moved = replace(gpu(1), nodes=(DeviceNode("/dev/zero", "/dev/gpu1", "rw", "c", 1, 5),))
        bind = DraServers.start

        async def busy(self: Any) -> None:
            await bind(self)
            node.snapshot = Snapshot(node.snapshot.version + 1, (gpu(0), moved, gpu(2), gpu(3)))

        monkeypatch.setattr(DraServers, "start", busy)
        await node.start()
        await until(lambda: "/dev/zero" in text_of(node, claim), why="the new node")


async def test_files_come_back_where_the_directory_can_be_written_and_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        before = text_of(node, claim)
        await node.stop()
        for name in node.cdi_files():
            (node.root / "cdi" / name).unlink()

        def refused(self: Any) -> Any:
            raise HostError("cannot be listed")

        monkeypatch.setattr(CdiStore, "claims", refused)
        await node.start()
        assert text_of(node, claim) == before


async def test_a_claim_whose_hook_takes_long_holds_up_no_other(tmp_path: Path) -> None:
    """A hook delays neither the files of other claims nor health reports; its own claim's files follow when it ends."""
    gate = tmp_path / "gate"
    gate.touch()
    hook = f"{{command: [/bin/sh, -c, 'while [ -e {gate} ]; do sleep 0.01; done; exit 1'], timeoutSeconds: 60}}"
    async with a_node(with_profile(f"unprepare: {hook}")) as node:
        claims = {n: node.claims.add(f"cl{n}", f"gpu-{n}") for n in range(3)}
        for claim in claims.values():
            await node.prepared(claim)
        (busy, first), *others = sorted(claims.items(), key=lambda item: item[1].uid)
        ending = asyncio.ensure_future(node.unprepare(first))
        await until(lambda: first.uid in node.driver._preparer._unpreparing, why="the hook")
        moved = [gpu(n, nodes=(DeviceNode("/dev/zero", f"/dev/gpu{n}", "rw", "c", 1, 5),)) for n in range(3)]
        await node.set_devices(*moved)
        await until(lambda: all("/dev/zero" in text_of(node, claim) for _, claim in others), why="the new nodes")
        await node.set_devices(*moved[:2], replace(moved[2], presence=Presence.FAULTY))
        await until(lambda: not all(h.healthy for h, _ in node.driver._health._devices), why="the news")
        assert not ending.done()
        gate.unlink()
        assert "failed for" in (await ending)[first.uid]
        await until(lambda: "/dev/zero" in text_of(node, first), why=f"the new node of gpu-{busy}")
