"""The DRA side within the agent: its API server, when it starts, what the ledger learns from its records.

An API server that can be talked to is followed, for the Node's annotation; the driver itself starts once there is
something for it to serve, however that came: from the configuration, an override of the lanes, or an earlier life.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from drabridge.agent.runtime import Options, Runtime
from drabridge.config.schema import Config
from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, Listing, UnreachableError, resource_claims, resource_versions
from drabridge.kube.json_reader import ClaimFields, Json, PlacedClaimFields, View
from drabridge.lanes.desired import Wishes
from drabridge.ledger.events import ClaimDevices
from drabridge.ledger.model import ClaimRef, Lane, Ledger
from drabridge.system.paths import claim_records
from drabridge.system.supervise import WakeUp

if TYPE_CHECKING:
    from drabridge.dra.driver import DraDriver, DraState

T = TypeVar("T")
log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DELIVERED_SECONDS = 5.0  # of one wait for kubelet's acknowledgement
DELIVERED_POLL_SECONDS = 0.05  # registration takes about as long; while kubelet is away, a wait ends at once


def connect(options: Options, config: Config) -> Cluster | None:
    """The API server to talk to, or None: DRA is off, or there is none. Imports the client only when it is needed."""
    if config.dra.enabled is False:
        return None
    # Every pod has the variable; without a token it says something only to who expects claims to be served.
    in_pod = SERVICE_ACCOUNT.exists() or (config.wants_dra and "KUBERNETES_SERVICE_HOST" in os.environ)
    if options.kubeconfig is None and not in_pod:
        if config.wants_dra:
            log.warning(
                "no API server: not in a pod and no --kubeconfig; the DevicePlugin side works, claims are not served",
                extra={"driver": config.driver},
            )
        return None
    from drabridge.kube.client import KubernetesCluster  # 0.4 s and 20 MiB: never where there is nobody to talk to

    if options.kubeconfig is not None:
        return KubernetesCluster.from_kubeconfig(options.kubeconfig)
    return KubernetesCluster.in_cluster()


def names_in(directory: Path) -> frozenset[str]:
    """Of records of claims, damaged ones too: kubelet may still ask to unprepare what they were about."""
    try:
        return frozenset(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError:
        return frozenset()


def recorded(state: Path, boot_id: str, ledger: Ledger) -> tuple[tuple[ClaimDevices, ...], frozenset[str]]:
    """Claims that were prepared on this node in this boot: they hold their devices, whoever else says what.

    And the UIDs of those that were before the node was rebooted: no container of theirs is running. A claim that was
    only begun to be prepared holds nothing that the ledger does not know of: it was refused, or never asked for.
    """
    directory = claim_records(state)
    if not directory.exists():  # DRA was never on here
        return (), frozenset()
    from drabridge.dra.records import RecordStore, State

    prepared, earlier = [], set()
    for record in RecordStore(directory).all():
        uses = record.uses
        if record.boot_id != boot_id:
            earlier.add(record.claim.uid)
            continue
        if record.state is State.STARTED and ledger.node.whole:
            theirs = ledger.by_claim.get(record.claim.uid, ())
            uses = tuple(use for use in uses if use.device in theirs)
        if uses:
            prepared.append(ClaimDevices(record.claim, uses))
    return tuple(prepared), frozenset(earlier)


def with_pool_in_use(config: Config, state: Path, node: str, ledger: Ledger) -> Config:
    """``config`` with the pool that claims have devices in, which it may call otherwise: under the other name the
    scheduler would take those for free. A reload takes the other name, once no claim has a device.

    A record may outlive its claim, where kubelet forgot that one.
    """
    if not names_in(claim_records(state)):  # DRA was never on here, or nobody can say; then the merge says so
        return config
    from drabridge.dra.records import RecordStore

    found = RecordStore(claim_records(state)).all()
    records = [record for record in found if record.claim.uid in ledger.by_claim or not ledger.node.whole]
    pools = {device.pool for record in records for device in record.devices if not device.admin}
    if not pools or (config.dra.pool or node) in pools:
        return config
    return _with_pool(config, min(pools))


def _with_pool(config: Config, pool: str | None) -> Config:
    return config.model_copy(update={"dra": config.dra.model_copy(update={"pool": pool})})


async def _version(cluster: Cluster) -> str:
    """The version of the API to speak where no driver runs, which would know it; "" if claims are not served at all.

    Raises ClusterError.
    """
    from drabridge.kube.versions import choose_version

    served = await resource_versions(cluster)
    version = choose_version(served)
    if served and version is None:
        raise UnreachableError("the API server serves no version of resource.k8s.io that is known")
    return version or ""


def _first(error: BaseException) -> BaseException:
    """What a group of errors began with."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class ClaimSide:
    """Starts the DRA driver once kubelet has taken the DevicePlugin lists, and keeps it at hand.

    Once started it stays: claims come back more often than they go for good. A restart, or a reload that changes
    ``dra``, looks again.
    """

    def __init__(self, runtime: Runtime, wishes: Wishes) -> None:
        self._runtime = runtime
        self._wishes = wishes
        self._again = WakeUp()  # the running driver is to be made anew
        self._look = WakeUp()  # there may be something to serve now
        self._settings = runtime.config.dra
        self._serving = False  # the driver runs, or waits for kubelet
        self._said = False
        self._directory = runtime.paths.claim_records
        self._recorded = names_in(self._directory)  # only a driver changes them
        self.driver: DraDriver | None = None
        self.error = ""  # why the driver could not serve when it was last started

    @property
    def wanted(self) -> bool:
        """Whether claims are served, or are to be."""
        return self._runtime.cluster is not None and (self._serving or self.needed)

    @property
    def needed(self) -> bool:
        """Whether anything on this node is, or is to be, for claims."""
        runtime = self._runtime
        return (
            runtime.config.wants_dra
            or bool(self._recorded or runtime.ledger_service.ledger.by_claim)
            or any(entry.lane is not Lane.LEGACY for entry in runtime.ledger_service.ledger.entries.values())
            or any(self._wishes.lanes(resource).uses_dra for resource in runtime.config.resources)
        )

    @property
    def stranded(self) -> str:
        """What waits for the DRA side while that is off, and what to do, in words; empty when nothing does."""
        off = self._runtime.off
        if off is None:
            return ""
        ledger = self._runtime.ledger_service.ledger
        devices = sum(entry.lane is not Lane.LEGACY for entry in ledger.entries.values())
        claims = len({*ledger.by_claim, *(name[:-5] for name in self._recorded if name.endswith(".json"))})
        left = [
            *([f"{devices} device{'s' * (devices > 1)} in the dra lane"] if devices else ()),
            *([f"{claims} claim{'s' * (claims > 1)} held"] if claims else ()),
        ]
        if not left and any(self._wishes.lanes(resource).uses_dra for resource in self._runtime.config.resources):
            return f"the configuration has devices for claims, and all are left to pods: {off.why}; {off.remedy}"
        if not left:
            return ""
        return (
            f"{' and '.join(left)}, and the DRA side is off: {off.why}. Nobody can have these devices, pods with these "
            f"claims cannot end: {off.remedy}, at least until all are back in the legacy lane"
        )

    def pool(self, config: Config | None = None) -> str:
        """What the configuration, or another one, calls this node's pool."""
        return (config or self._runtime.config).dra.pool or self._runtime.options.node_name

    def refusal(self, config: Config) -> str:
        """Why a running agent does not take this configuration; "" if it does."""
        ours, other, ledger = self.pool(), self.pool(config), self._runtime.ledger_service.ledger
        held = [entry.name for entry in ledger.entries.values() if entry.holders]
        if ours == other or (ledger.node.merged and not held):
            return ""
        if not held:
            return f"dra.pool: found {other}, and it is not known yet which devices claims have in the pool {ours}"
        return (
            f"dra.pool: found {other}, and claims have {', '.join(held)} in the pool {ours}: the scheduler would take "
            f"them for other devices, and free. The pool stays {ours} until no claim has a device: delete the pods "
            f"that use these claims, or change dra.pool back{self._all_else(config)}"
        )

    def _all_else(self, config: Config) -> str:
        """An agent that is started with another pool takes all but that."""
        ours = self._runtime.config
        return ". All else in the file is in force" if _with_pool(config, ours.dra.pool) == ours else ""

    @property
    def state(self) -> DraState | None:
        return self.driver.state if self.driver else None

    @property
    def published(self) -> bool:
        """Whether the API server has our slices, as far as is known: a device given to claims now is offered."""
        return self.driver is not None and self.driver.state.publisher.published

    def wake(self) -> None:
        """Inventory, ledger or wishes changed."""
        if self.driver is not None:
            self.driver.publish()
        elif not self._serving:
            self._look.set()

    def renew_files(self) -> None:
        """Files of prepared claims may be missing. A driver that starts later writes them anyway."""
        if self.driver is not None:
            self.driver.renew_files()

    @property
    def records_error(self) -> str:
        """Why no claim can be recorded, so that none can be granted."""
        return self.driver.records.error if self.driver is not None else ""

    async def try_records(self) -> None:
        """Look whether they can be written again."""
        driver = self.driver
        if driver is not None and self.records_error and await self._runtime.disk.promptly(driver.records.probe):
            log.info("claims can be recorded again")
            driver.publish()

    def reconfigure(self, config: Config) -> None:
        """Take a changed configuration; what a running driver cannot change makes a new one, with the same slices."""
        if self.driver is not None and config.dra == self._settings:
            self.driver.reconfigure(config)
        elif self._serving:
            self._again.set()
        else:
            self._look.set()

    async def allocated(self) -> tuple[ClaimDevices, ...] | None:
        """The claims that the API server shows allocated with devices of this node. None: it cannot be asked."""
        from drabridge.dra.allocation import allocation_here

        driver, pool = self._runtime.config.driver, self.driver.pool if self.driver is not None else self.pool()
        try:
            listed = await self._listed(View(lambda claim: allocation_here(claim, driver, pool), ClaimFields))
            if listed.unreadable:  # one that is allocated, by no rule of the API: it may have any device
                raise UnreachableError(f"what claim {listed.unreadable[0]} is allocated cannot be read")
        except ClusterError as error:
            log.warning("who has devices by claims is not known", extra={"reason": str(error)})
            return None
        return tuple(allocation for allocation in listed.items if allocation is not None)

    async def of_driver(self, driver: str) -> frozenset[str] | None:
        """Devices of a driver on this node, of another one's too, that the API server shows allocated. None: it cannot
        be asked.
        """
        from drabridge.dra.allocation import devices_on

        node = self._runtime.options.node_name
        try:
            listed = await self._listed(View(lambda claim: devices_on(claim, driver, node), PlacedClaimFields))
        except ClusterError:
            return None
        return None if listed.unreadable else frozenset(name for names in listed.items for name in names)

    async def find(self, uid: str) -> ClaimRef | None:
        """The claim with this UID, of which nobody here knows the name; None where the API server shows none that is
        allocated. Raises ClusterError when it cannot be asked.
        """
        from drabridge.dra.allocation import is_allocated

        def found(claim: Json) -> ClaimRef | None:
            metadata = claim.get("metadata") or {}
            if not is_allocated(ClaimRef(uid), claim):
                return None
            return ClaimRef(uid, str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))

        listed = await self._listed(View(found, ClaimFields))
        return next((claim for claim in listed.items if claim is not None), None)

    async def _listed(self, view: View[T]) -> Listing[T]:
        """Every claim of the cluster; none where it has no DRA. Raises ClusterError when nobody can be asked."""
        cluster = self._runtime.cluster
        if cluster is None:
            raise UnreachableError("there is no API server to talk to")
        version = self.driver.state.api_version if self.driver is not None else ""
        version = version or await _version(cluster)
        return await cluster.list(resource_claims(version), view=view) if version else Listing((), "")

    async def run(self) -> None:
        """Until cancelled. Waits while there is nothing to serve, or nobody to serve it with."""
        while True:
            cluster = self._runtime.cluster
            if cluster is None or not self.needed:
                self._say()
                await self._look.wait()
                continue
            self._serving, self._said = True, False
            serving = asyncio.create_task(self._serve(cluster))
            waiting = asyncio.create_task(self._again.wait())
            try:
                await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
                self.error = ""
                if serving.done():
                    serving.result()
            except Exception as error:  # it is tried again; until that has gone well, this is why
                self.error = str(_first(error))
                raise
            finally:
                for task in (serving, waiting):
                    task.cancel()
                await asyncio.gather(serving, waiting, return_exceptions=True)
                self._serving = False
                self._recorded = names_in(self._directory)

    def _say(self) -> None:
        """In the log, once; /readyz has the numbers as they are now."""
        stranded = self.stranded
        if stranded and not self._said:
            log.error("claims are not served", extra={"reason": stranded})
        self._said = bool(stranded)

    async def _serve(self, cluster: Cluster) -> None:
        runtime = self._runtime
        await self._acknowledged()
        from drabridge.dra.driver import DraDriver, DraPaths
        from drabridge.dra.planning import device_lookup

        self._settings = runtime.config.dra
        self.driver = DraDriver(
            config=runtime.config,
            inventory=lambda: runtime.snapshot,
            ledger_service=runtime.ledger_service,
            cluster=cluster,
            cdi=runtime.cdi,
            paths=DraPaths(kubelet=runtime.paths.kubelet, state=runtime.paths.state, boot_id=runtime.options.boot_id),
            node_name=runtime.options.node_name,
            observer=runtime.sinks.dra,
            policy=lambda: runtime.ledger_service.policy,
            lookup=lambda device: runtime.inventory.lookup(device.name) or device_lookup(device),
            on_synced=runtime.changed.set,
            in_use=runtime.other_evidence.in_use,
            pods=lambda: runtime.other_evidence.pods,
            unwell=lambda: runtime.ledger_service.health.error or runtime.cdi.error,
            clock=runtime.now,
            files=runtime.disk,
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
