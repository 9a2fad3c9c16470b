"""Checks of fabric devices, against addresses of this machine and names that nobody resolves."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from drabridge.config.fabric import FabricDevice, TcpCheck
from drabridge.coordinator.tcp_checks import TcpChecks
from tests.support.waiting import until


async def test_names_that_nobody_resolves_delay_no_other_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that is silent: ``getaddrinfo`` takes half a minute then, longer than a check may."""
    asked: list[str] = []
    answer = threading.Event()

    def resolve(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        if host.startswith("dead-"):
            answer.wait(30)
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def device(name: str) -> FabricDevice:
            return FabricDevice(
                name=name, health=TcpCheck(host=f"{name}.example", port=port, timeout_seconds=1, every_seconds=1)
            )

        checks = TcpChecks(lambda: None)
        dead = [f"dead-{n}" for n in range(40)]
        try:
            checks.follow(map(device, dead), {})
            await until(lambda: len(asked) >= 5, 10, "lookups")
            checks.follow(map(device, [*dead, "here"]), {})
            await until(lambda: "here" not in checks.failing, 5, "a check of a name that is known")
            assert checks.failing.keys() == set(dead)
            await asyncio.sleep(2.5)
            silent = [host for host in asked if host.startswith("dead-")]
            assert len(silent) == len(set(silent)), "a name server that is silent is not asked again"
        finally:
            answer.set()
            checks.stop()
    await until(lambda: not [it for it in threading.enumerate() if it.name.startswith("lookup-")], 10, "threads")
