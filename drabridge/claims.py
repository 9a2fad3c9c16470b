"""The DRA side within the agent: its API server, when it starts, what the ledger learns from its records."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from drabridge.clusterapi import Cluster
from drabridge.config.schema import Config
from drabridge.ledger import Allocation
from drabridge.runtime import Options, Runtime
from drabridge.tasks import Signal

if TYPE_CHECKING:
    from drabridge.dra.driver import DraDriver, DraState

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DELIVERED_SECONDS = 5.0  # of one wait for kubelet's acknowledgement
DELIVERED_POLL_SECONDS = 0.05  # registration takes about as long; while kubelet is away, a wait ends at once


def connect(options: Options, config: Config) -> Cluster | None:
    """The API server to talk to, or None: DRA is off, or there is none. Imports the client only when it is needed."""
    if not config.wants_dra:
        return None
    from drabridge.cluster import KubernetesCluster  # 0.4 s and 20 MiB: never for the DevicePlugin side alone

    if options.kubeconfig is not None:
        return KubernetesCluster.from_kubeconfig(options.kubeconfig)
    if SERVICE_ACCOUNT.exists() or "KUBERNETES_SERVICE_HOST" in os.environ:
        return KubernetesCluster.in_cluster()
    log.warning(
        "no API server: not in a pod and no --kubeconfig; the DevicePlugin side works, claims are not served",
        extra={"driver": config.driver},
    )
    return None


def prepared(state: Path, boot_id: str) -> tuple[Allocation, ...]:
    """Claims that were prepared on this node in this boot: they hold their devices, whoever else says what."""
    directory = state / "claims"
    if not directory.exists():  # DRA was never on here
        return ()
    from drabridge.dra.records import RecordStore, allocations

    return allocations(record for record in RecordStore(directory).all() if record.boot_id == boot_id)


class ClaimSide:
    """Starts the DRA driver once kubelet has taken the DevicePlugin lists, and keeps it at hand."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._again = Signal()  # the driver is to be made, or made anew
        self._settings = runtime.config.dra
        self.driver: DraDriver | None = None

    @property
    def wanted(self) -> bool:
        return self._runtime.cluster is not None

    @property
    def state(self) -> DraState | None:
        return self.driver.state if self.driver else None

    def wake(self) -> None:
        """Inventory or ledger changed."""
        if self.driver is not None:
            self.driver.publish()

    def renew_files(self) -> None:
        """Files of prepared claims may be missing. A driver that starts later writes them anyway."""
        if self.driver is not None:
            self.driver.renew_files()

    def reconfigure(self, config: Config) -> None:
        """Take a changed configuration; what a running driver cannot change makes a new one, with the same slices."""
        if self.driver is not None and config.dra == self._settings:
            self.driver.reconfigure(config)
        else:
            self._again.set()

    async def run(self) -> None:
        """Until cancelled. Waits where DRA is off, until a reload turns it on."""
        while True:
            if self._runtime.cluster is None:
                await self._again.wait()
                continue
            serving = asyncio.create_task(self._serve(self._runtime.cluster))
            waiting = asyncio.create_task(self._again.wait())
            try:
                await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
            finally:
                for task in (serving, waiting):
                    task.cancel()
                await asyncio.gather(serving, waiting, return_exceptions=True)

    async def _serve(self, cluster: Cluster) -> None:
        runtime = self._runtime
        await self._acknowledged()
        from drabridge.dra.driver import DraDriver, DraPaths
        from drabridge.dra.planning import device_lookup

        self._settings = runtime.config.dra
        self.driver = DraDriver(
            config=runtime.config,
            inventory=lambda: runtime.inventory.current,
            keeper=runtime.keeper,
            cluster=cluster,
            cdi=runtime.cdi,
            paths=DraPaths(kubelet=runtime.paths.kubelet, state=runtime.paths.state, boot_id=runtime.options.boot_id),
            node_name=runtime.options.node_name,
            observer=runtime.sinks.dra,
            policy=lambda: runtime.keeper.policy,
            lookup=lambda device: runtime.inventory.lookup(device.name) or device_lookup(device),
            on_synced=runtime.changed.set,
            in_use=runtime.others.in_use,
            clock=runtime.now,
        )
        try:
            await self.driver.run()
        finally:
            self.driver = None

    async def _acknowledged(self) -> None:
        """A kubelet that ran before us may still believe that devices of the DRA lane are its own to give."""
        names = [resource.name for resource in self._runtime.config.resources]
        said = False
        while not await self._runtime.legacy.delivered(names, DELIVERED_SECONDS):
            if not said:
                log.info("claims wait until kubelet has taken the lists of devices")
            said = True
            await asyncio.sleep(DELIVERED_POLL_SECONDS)
