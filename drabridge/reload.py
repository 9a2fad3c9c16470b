"""Following the configuration file: validated first, the last good one stays, only what changed is restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from drabridge.config.loader import load
from drabridge.config.messages import ConfigErrors
from drabridge.config.schema import Config
from drabridge.tasks import Signal

log = logging.getLogger(__name__)

# A ConfigMap's file is a link into a directory that kubelet swaps by rename; one stat sees every way to change it.
POLL_SECONDS = 2.0

Identity = tuple[int, int, int, int] | None


class ConfigFollower:
    """Applies a changed file; ``refused`` gets the complaints about one that cannot be used, "" when all is well."""

    def __init__(
        self,
        path: Path,
        current: Config,
        apply: Callable[[Config], Awaitable[None]],
        refused: Callable[[str], None],
    ) -> None:
        self._path = path
        self._apply = apply
        self._refused = refused
        self._seen = _identity(path)
        self.current = current
        self.reload = Signal()  # SIGHUP

    async def run(self) -> None:
        while True:
            asked = await self.reload.wait(POLL_SECONDS)
            identity = _identity(self._path)
            if asked or identity != self._seen:
                self._seen = identity
                await self.take()

    async def take(self) -> None:
        """Load, check, apply. Whatever is wrong leaves the running configuration in place."""
        try:
            config = await asyncio.to_thread(load, self._path)
        except ConfigErrors as errors:
            self._refuse(list(map(str, errors.faults)))
            return
        if config.driver != self.current.driver:
            self._refuse(
                [
                    f"{self._path}: driver: found {config.driver}, this agent runs as {self.current.driver}. "
                    "The driver's name is in CDI names that pods hold: drain the node, then restart the agent"
                ]
            )
            return
        self._refused("")
        if config == self.current:
            return
        await self._apply(config)
        self.current = config
        log.info("configuration reloaded", extra={"file": str(self._path)})

    def _refuse(self, faults: list[str]) -> None:
        self._refused("\n".join(faults))
        for fault in faults:
            log.error("the changed configuration is refused, the last good one stays", extra={"fault": fault})


def _identity(path: Path) -> Identity:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
