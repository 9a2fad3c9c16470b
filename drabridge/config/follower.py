"""Follow the configuration file: apply a changed one if it is good, else keep the last good one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from drabridge.config.loader import load
from drabridge.config.problems import ConfigErrors
from drabridge.config.schema import Config
from drabridge.system.supervise import WakeUp

log = logging.getLogger(__name__)

AGENT = (
    "this agent runs as {}. The driver's name is in CDI names that pods hold: drain the node, then restart the agent"
)
# A ConfigMap's file is a link into a directory that kubelet swaps by rename; one stat sees every way to change it.
POLL_SECONDS = 2.0

Identity = tuple[int, int, int, int] | None


class ConfigFollower:
    """Applies a changed file. ``current`` is the configuration in use; None while it may be applied in part."""

    def __init__(
        self,
        path: Path,
        current: Config,
        reload: WakeUp,
        apply: Callable[[Config], Awaitable[None]],
        refused: Callable[[str], None],
        unfit: Callable[[Config], str] = lambda config: "",
        driver_stays: str = AGENT,
    ) -> None:
        """``reload`` asks to read the file now, even if it seems unchanged (SIGHUP); ``apply`` takes a good one.

        ``refused`` gets the faults of a file that cannot be used, "" when all is well. ``unfit`` says why a running
        agent cannot take a configuration that is good in itself: another ``dra.pool`` while claims hold devices.
        ``driver_stays`` says why the driver may not change; braces stand for the present one.
        """
        self._path = path
        self._apply = apply
        self._refused = refused
        self._unfit = unfit
        self._driver_stays = driver_stays
        self._seen = identity_of(path)
        self._faults: tuple[str, ...] = ()
        self._driver = current.driver
        self.current: Config | None = current
        self._reload = reload

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while True:
            asked = await self._reload.wait(POLL_SECONDS)
            identity = identity_of(self._path)
            if asked or identity != self._seen:
                self._seen = identity if await self.take() else None

    async def take(self) -> bool:
        """Load, check and apply the file; on any fault the running configuration stays.

        False: the fault is not in the file (out of descriptors, a disk that fails); it is to be tried again.
        """
        try:
            config = await asyncio.to_thread(load, self._path)
        except ConfigErrors as errors:
            self._refuse(*map(str, errors.faults))
            return not isinstance(errors.__cause__, OSError)
        except (OSError, RuntimeError) as error:  # no descriptor, no thread
            self._refuse(f"{self._path} could not be read: {error}")
            return False
        if config.driver != self._driver:
            stays = self._driver_stays.format(self._driver)
            self._refuse(f"{self._path}: driver: found {config.driver}, {stays}")
            return True
        if why := self._unfit(config):
            self._refuse(f"{self._path}: {why}")
            return False  # tried again: the reason may end while the file stays as it is
        if config != self.current:
            self.current = None  # if applying fails, a part may be applied
            try:
                await self._apply(config)
            except Exception as error:
                self._refuse(f"{self._path} could not be applied whole, and is tried again: {error}", cause=error)
                return False
            self.current = config
            log.info("configuration reloaded", extra={"file": str(self._path)})
        self._refused("")
        self._faults = ()
        return True

    def _refuse(self, *faults: str, cause: Exception | None = None) -> None:
        self._refused("\n".join(faults))
        if faults != self._faults:
            for fault in faults:
                fields = {"reason": fault}
                log.error("the changed configuration is refused, the last good one stays", extra=fields, exc_info=cause)
        self._faults = faults


def identity_of(path: Path) -> Identity:
    """Return the identity and state of the file at a path, to notice every change; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
