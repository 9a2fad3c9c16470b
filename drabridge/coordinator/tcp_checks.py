"""Connect to devices by TCP, now and then, and say which of them do not answer.

Who begins to lead knows nothing: a published device counts as its slice says until there is a verdict, one that is new
counts as not answering.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from drabridge.config.fabric import FabricDevice, TcpCheck
from drabridge.system.supervise import forever

log = logging.getLogger(__name__)

AT_ONCE = 64  # connections
UNCHECKED = "unchecked"  # there has been no verdict since the device is in the list


class TcpChecks:
    """Runs a check for each device that has one. ``failing``: device -> why, in one of the words of this module."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._running: dict[str, tuple[TcpCheck, asyncio.Task[None]]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.failing: dict[str, str] = {}

    def follow(self, devices: Iterable[FabricDevice], published: Mapping[str, str]) -> None:
        """Check these devices from now on, and no others.

        ``published``: those in slices, each with the value of its taint, or "".
        """
        wanted = {device.name: device.health for device in devices if device.health is not None}
        for name in [name for name, (check, _) in self._running.items() if wanted.get(name) != check]:
            self._running.pop(name)[1].cancel()
            if name not in wanted:
                self.failing.pop(name, None)
        for name, check in wanted.items():
            if name not in self._running:
                if name not in self.failing and (why := published.get(name, UNCHECKED)):
                    self.failing[name] = why
                work = forever(f"check of {name}", partial(self._check, name, check))
                self._running[name] = (check, asyncio.create_task(work))

    def stop(self) -> None:
        """End all checks."""
        self.follow((), {})

    async def _check(self, name: str, check: TcpCheck) -> None:
        failures = 0
        while True:
            async with self._slots:
                why = await attempt(check)
            failures = failures + 1 if why else 0
            known = self.failing.get(name, "")
            if why and failures >= check.failures and known in ("", UNCHECKED):
                self._verdict(name, why)
            elif not why and known:
                self._verdict(name, "")
            await asyncio.sleep(check.every_seconds)

    def _verdict(self, name: str, why: str) -> None:
        if why:
            self.failing[name] = why
            log.warning("device does not answer", extra={"device": name, "reason": why})
        else:
            del self.failing[name]
            log.info("device answers", extra={"device": name})
        self._changed()


async def attempt(check: TcpCheck) -> str:
    """Connect once; "" if that went well, else why not. The word is the value of a taint."""
    try:
        async with asyncio.timeout(check.timeout_seconds):
            _, writer = await asyncio.open_connection(check.host, check.port)
        writer.transport.abort()
    except TimeoutError:
        return "timeout"
    except socket.gaierror:
        return "name-unknown"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError):  # ValueError: a name that IDNA cannot encode
        return "unreachable"
    return ""
