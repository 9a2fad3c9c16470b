"""Connect to devices by TCP, again and again, and say which of them do not answer.

A new leader knows nothing. Until there is a verdict, a published device counts as its slice says, and a new device
counts as not answering.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from drabridge.config.fabric import FabricDevice, TcpCheck
from drabridge.offers.fabric import UNCHECKED
from drabridge.system.io_thread import IoThread, Job
from drabridge.system.supervise import forever

log = logging.getLogger(__name__)

AT_ONCE = 64  # connections at the same time


class TcpChecks:
    """Runs a check for each device that has one. ``failing``: device -> why, in one of the words of this module."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._running: dict[str, tuple[TcpCheck, asyncio.Task[None]]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.failing: dict[str, str] = {}

    def follow(self, devices: Iterable[FabricDevice], published: Mapping[str, str]) -> None:
        """Check these devices from now on, and no others.

        ``published``: devices in slices -> the value of their taint, or "".
        """
        wanted = {device.name: device.health for device in devices if device.health is not None}
        for name in [name for name, (check, _) in self._running.items() if wanted.get(name) != check]:
            self._running.pop(name)[1].cancel()
            self.failing.pop(name, None)
        for name, check in wanted.items():
            if name not in self._running:
                if why := published.get(name, UNCHECKED):
                    self.failing[name] = why
                work = forever(f"check of {name}", partial(self._check, name, check))
                self._running[name] = (check, asyncio.create_task(work))

    def stop(self) -> None:
        """End all checks."""
        self.follow((), {})

    async def _check(self, name: str, check: TcpCheck) -> None:
        failures, lookups = 0, _Lookups(check.host)
        try:
            while True:
                async with self._slots:
                    why = await _attempt(check, lookups)
                failures = failures + 1 if why else 0
                known = self.failing.get(name, "")
                if failures >= check.failures and known in ("", UNCHECKED):
                    self._verdict(name, why)
                elif not why and known:
                    self._verdict(name, "")
                await asyncio.sleep(check.every_seconds)
        finally:
            lookups.stop()

    def _verdict(self, name: str, why: str) -> None:
        if why:
            self.failing[name] = why
            log.warning("device does not answer", extra={"device": name, "reason": why})
        else:
            del self.failing[name]
            log.info("device answers", extra={"device": name})
        self._changed()


class _Lookups:
    """The addresses of one host. A silent name server blocks only the thread of this host, for half a minute.

    The loop's own threads are few: ten such hosts would keep all others from being looked up.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._thread = IoThread(f"lookup-{host}")
        self._job: Job[list[str]] | None = None

    async def addresses(self) -> list[str]:
        """Look the host up, or wait for the lookup that is under way. Raises OSError, ValueError."""
        try:
            return [str(ipaddress.ip_address(self._host))]
        except ValueError:
            pass
        if self._job is None or self._job.over():
            self._job = self._thread.submit(self._look_up)
        await self._thread.wait_all()
        return self._job.result()

    def _look_up(self) -> list[str]:
        found = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def stop(self) -> None:
        self._thread.stop()


async def _attempt(check: TcpCheck, lookups: _Lookups) -> str:
    """Connect once; return "" if that worked, else why not, in a word that is the value of a taint."""
    why = "unreachable"
    try:
        async with asyncio.timeout(check.timeout_seconds):
            for address in await lookups.addresses():
                try:
                    _, writer = await asyncio.open_connection(address, check.port)
                except ConnectionRefusedError:
                    why = "refused"
                except OSError:
                    why = "unreachable"
                else:
                    writer.transport.abort()
                    return ""
    except TimeoutError:
        return "timeout"
    except socket.gaierror:
        return "name-unknown"
    except (OSError, ValueError):  # ValueError: a name that IDNA cannot encode
        return "unreachable"
    return why
