"""The parts of one running agent that its pages, its slow tick and its lanes read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct, field

from drabridge.coexistence.withheld import Guard
from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.evidence.loop import EvidenceLoop
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.model import Device, Snapshot
from drabridge.kube.api import Cluster
from drabridge.ledger.model import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.legacy.manager import LegacyManager
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import BOOT_ID, Paths
from drabridge.system.supervise import WakeUp
from drabridge.telemetry.metrics import Metrics
from drabridge.telemetry.sinks import Sinks
from podresources import Client


class Options(Struct, frozen=True):
    """What the command line says; everything else is in the configuration file."""

    config: Path
    node_name: str
    kubelet: Path = Path("/var/lib/kubelet")
    device_plugins: Path | None = None
    state: Path | None = None
    cdi: Path = Path("/var/run/cdi")
    listen: str = "127.0.0.1:9400"  # empty: none
    page: str = "local"  # who gets the page for people on the port: "local" (loopback only), "all", or "off" (nobody)
    kubeconfig: Path | None = None
    boot_id: Path = BOOT_ID


class Off(Struct, frozen=True):
    """Why claims cannot be served on this node, and what would change that."""

    why: str
    remedy: str


class Runtime(Struct):
    """Built once by the agent. ``config`` and ``devices`` are replaced as a whole when they change."""

    options: Options
    paths: Paths
    config: Config
    ledger_service: LedgerService
    inventory: Inventory
    cdi: CdiStore
    files: LegacyCdiFiles
    legacy: LegacyManager
    podresources: Client
    kubelet_evidence: KubeletEvidence
    evidence: EvidenceLoop
    other_evidence: OtherEvidence
    guard: Guard
    metrics: Metrics
    sinks: Sinks
    now: Callable[[], float]
    started_at: float
    disk: IoThread  # waits for the state directory's disk, the ledger aside
    cluster: Cluster | None = None  # None: DRA is switched off, or there is no API server
    changed: WakeUp = field(default_factory=WakeUp)  # ledger, inventory or wishes: lanes are looked at again
    devices: Mapping[str, Device] = field(default_factory=dict)
    config_error: str = ""  # why the file on disk is not the one in use
    devices_error: str = ""  # why the newest devices could not be taken into the ledger, or compared with others' word
    rivals: dict[str, str] = field(default_factory=dict)  # resource -> in words, that another plugin serves it as well
    beat: float = 0.0  # the slow tick's last time on the loop's clock

    @property
    def snapshot(self) -> Snapshot:
        """The inventory's, without what other agents have."""
        return self.guard.shown(self.inventory.current)

    @property
    def cdi_error(self) -> str:
        """Why CDI files cannot be written; empty where nothing enters a container by them."""
        needed = self.cluster is not None or "cdi" in {
            resource.inject or self.config.legacy.inject for resource in self.config.resources
        }
        return self.cdi.error if needed else ""

    @property
    def off(self) -> Off | None:
        """None: claims can be served, as far as this agent's own settings go."""
        if self.config.dra.enabled is False:
            return Off("dra.enabled is false", "set dra.enabled: auto, or leave it out")
        if self.cluster is None:
            return Off("there is no API server", "give --kubeconfig, or run the agent in a pod with a service account")
        return None

    def resource_of(self, device: str) -> str:
        """The resource of a device that the ledger knows; empty for another."""
        entry = self.ledger_service.ledger.entries.get(device)
        return entry.device.resource if entry else ""


def policy_of(config: Config) -> LedgerPolicy:
    """The ledger's rules as the configuration has them."""
    return LedgerPolicy(**config.safety.model_dump())


def probed(configs: Iterable[Config]) -> frozenset[str]:
    """Resources whose device nodes are looked at before a device counts as let go."""
    return frozenset(resource.name for config in configs for resource in config.resources if resource.probe_open)
