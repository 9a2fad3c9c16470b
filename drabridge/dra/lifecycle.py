"""Start the DRA driver when it has something to serve, and keep it running.

Something to serve comes from the configuration, from an override of the lanes, or from an earlier agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

from drabridge.config.schema import Config
from drabridge.dra.claim_demand import ClaimDemand
from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster
from drabridge.kube.connection import ApiServer
from drabridge.kube.features import FeatureState
from drabridge.ledger.entries import ClaimRef
from drabridge.system.io_thread import IoThread
from drabridge.system.supervise import WakeUp, end

if TYPE_CHECKING:
    from drabridge.dra.driver import DraDriver, DraState

log = logging.getLogger(__name__)

ACKNOWLEDGED_SECONDS = 5.0  # limit of one wait until kubelet has taken the lists of devices
ACKNOWLEDGED_POLL_SECONDS = 0.05  # registration takes about this time; while kubelet is away, a wait ends at once


class ClaimSide:
    """Runs the DRA driver once kubelet has taken the DevicePlugin lists.

    Once started, the driver stays: claims come back more often than they go for good. Only a restart, or a reload that
    changes ``dra``, decides again whether it is needed.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        demand: ClaimDemand,
        api_server: ApiServer,
        new_driver: Callable[[Cluster], DraDriver],
        acknowledged: Callable[[float], Awaitable[bool]],
        state_worker: IoThread,
    ) -> None:
        """``new_driver`` makes a driver with the configuration in use.

        ``acknowledged`` waits at most the given seconds, and returns whether kubelet has taken the lists of devices.
        ``state_worker`` waits for the state directory's disk.
        """
        self._config = config
        self._demand = demand
        self._api_server = api_server
        self._new_driver = new_driver
        self._acknowledged = acknowledged
        self._state_worker = state_worker
        self._again = WakeUp()  # the running driver shall be replaced by a new one
        self._look = WakeUp()  # there may be something to serve now
        self._settings = config().dra  # the running driver's
        self._serving = False  # the driver runs, or waits for kubelet
        self._stranded_logged = False
        self.driver: DraDriver | None = None
        self.error = ""  # why the driver could not serve when it was last started

    @property
    def wanted(self) -> bool:
        """Whether claims are served, or shall be."""
        return self._api_server.cluster is not None and (self._serving or self._demand.needed)

    @property
    def state(self) -> DraState | None:
        """Return the running driver's state; None while none runs."""
        return self.driver.state if self.driver else None

    @property
    def pool(self) -> str:
        """Return the name of this node's pool in the slices, or that it would have."""
        return self.driver.pool if self.driver is not None else self._demand.pool()

    @property
    def api_version(self) -> str:
        """Return the version of resource.k8s.io that the running driver speaks; "" while it is not known."""
        return self.driver.state.api_version if self.driver is not None else ""

    @property
    def published(self) -> bool:
        """Whether the API server has our slices, as far as is known: then a device given to claims is offered."""
        return self.driver is not None and self.driver.state.publisher.published

    @property
    def keeps_leases(self) -> bool | None:
        """Whether the API server keeps what a lease needs; None while that is not known."""
        return self.driver.keeps_leases if self.driver is not None else None

    @property
    def features(self) -> Mapping[str, FeatureState]:
        """Return what the running driver knows of the features that it asks about; nothing while none runs."""
        return self.driver.features if self.driver is not None else {}

    @property
    def synced_seq(self) -> int:
        """Return the sequence number of the ledger from which the API server's slices follow; -1: no slices yet."""
        return self.driver.synced_seq if self.driver is not None else -1

    @property
    def records_error(self) -> str:
        """Return why no claim can be recorded, and so none granted; "" if one can."""
        return self.driver.records.error if self.driver is not None else ""

    async def withdrawn(self, names: Collection[str]) -> frozenset[str]:
        """Ask the API server now; return those of ``names`` that it shows in no slice. Raises ClusterError."""
        return await self._running().withdrawn(names)

    async def release_if_deallocated(self, claim: ClaimRef) -> bool:
        """Ask the API server about a claim, and tell the ledger. Raises ClusterError."""
        return await self._running().deallocations.release_if_deallocated(claim)

    def _running(self) -> DraDriver:
        if self.driver is None:
            raise ClusterError("claims are not served")
        return self.driver

    async def recorded_uids(self) -> frozenset[str]:
        """List the UIDs of claims on record, read from the disk now."""
        return await self._state_worker.promptly(self._demand.recorded_uids)

    def wake(self) -> None:
        """Inventory, ledger or desired lanes changed: look again. Cheap, never blocks."""
        if self.driver is not None:
            self.driver.publish()
        elif not self._serving:
            self._look.set()

    def renew_files(self) -> None:
        """Write missing files of prepared claims. A driver that starts later writes them anyway."""
        if self.driver is not None:
            self.driver.renew_files()

    async def retry_records(self) -> None:
        """Test whether the disk works again, while no claim can be recorded."""
        driver = self.driver
        if driver is not None and self.records_error and await self._state_worker.promptly(driver.records.probe):
            log.info("claims can be recorded again")
            driver.publish()

    def reconfigure(self, config: Config) -> None:
        """Take a changed configuration.

        If the section ``dra`` has changed, a new driver starts, which finds the slices as they were.
        """
        if self.driver is not None and config.dra == self._settings:
            self.driver.reconfigure(config)
        elif self._serving:
            self._again.set()
        else:
            self._look.set()

    async def run(self) -> None:
        """Serve until cancelled. Waits while there is nothing to serve, or no API server."""
        while True:
            cluster = self._api_server.cluster
            if cluster is None or not self._demand.needed:
                self._log_stranded()
                await self._look.wait()
                continue
            self._serving, self._stranded_logged = True, False
            serving = asyncio.create_task(self._serve(cluster))
            waiting = asyncio.create_task(self._again.wait())
            try:
                await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
                self.error = ""
                if serving.done():
                    serving.result()
            except Exception as error:  # shown as the reason until a new try succeeds
                self.error = str(_first_cause(error))
                raise
            finally:
                await end(serving, waiting)
                self._serving = False
                self._demand.read_records()

    def _log_stranded(self) -> None:
        """Log once that claims are stranded; /readyz has the present numbers."""
        stranded = self._demand.stranded
        if stranded and not self._stranded_logged:
            log.error("claims are not served", extra={"reason": stranded})
        self._stranded_logged = bool(stranded)

    async def _serve(self, cluster: Cluster) -> None:
        await self._wait_for_kubelet()
        self._settings = self._config().dra
        self.driver = self._new_driver(cluster)
        try:
            await self.driver.run()
        finally:
            self.driver = None

    async def _wait_for_kubelet(self) -> None:
        """Wait for kubelet: if it ran before us, it may still give out devices of the DRA lane, by an older list."""
        logged = False
        while not await self._acknowledged(ACKNOWLEDGED_SECONDS):
            if not logged:
                log.info("claims wait until kubelet has taken the lists of devices")
            logged = True
            await asyncio.sleep(ACKNOWLEDGED_POLL_SECONDS)


def _first_cause(error: BaseException) -> BaseException:
    """Return the first error of a group, however deep."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
