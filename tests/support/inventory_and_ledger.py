"""An inventory in memory with the ledger behind it, as the agent has them; kubelet and the API server are not there."""

from __future__ import annotations

from collections.abc import Mapping

from drabridge.config.schema import Config
from drabridge.inventory.builder import DeviceBuilder
from drabridge.inventory.devices import Device, NvidiaFiles
from drabridge.inventory.identity import name_of
from drabridge.inventory.mig import with_instances
from drabridge.inventory.named_resources import NamedResources
from drabridge.inventory.nvidia import NOTHING
from drabridge.inventory.snapshots import DeviceTracker
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.vfio import with_twins
from drabridge.ledger.apply_event import step
from drabridge.ledger.codec import entry_from_json, entry_to_json
from drabridge.ledger.eligibility import dra_schedulable, legacy_healthy
from drabridge.ledger.entries import ClaimRef, Lane, Ledger, LedgerDevice, Owner
from drabridge.ledger.events import (
    AgentStarted,
    Allocate,
    CheckpointRead,
    DeviceUse,
    Discovered,
    Event,
    NodeBooted,
    Observed,
    Prepare,
    SetLane,
    WithdrawnFromKubelet,
)
from drabridge.ledger.policy import LedgerPolicy
from tests.support.hardware import MemoryHost


class Machine:
    """The inventory of one configuration and the ledger behind it. ``here`` is what udev shows."""

    def __init__(self, config: Config, nodes: dict[str, tuple[int, int]]) -> None:
        self.names = NamedResources(config)
        self.nvidia = NOTHING
        self.host = MemoryHost(nodes)
        self.ledger = Ledger()
        self.policy = LedgerPolicy()
        self.now = 1000.0
        self.start()
        self.do(NodeBooted("boot", self.now))

    def start(self) -> None:
        """Another process: what is known of before is in the ledger, as it is on disk."""
        entries = [entry_from_json(entry_to_json(entry)) for entry in self.ledger.entries.values()]
        self.ledger = Ledger.of(entries, self.ledger.node, self.ledger.seq)
        self.builder = DeviceBuilder(self.names.config, self.host, file=self.names.file)
        self.tracker = DeviceTracker(self.held)

    def reconfigure(self, config: Config) -> None:
        """Use another configuration from the next look on, as the inventory does."""
        self.names = NamedResources(config, self.names.values)
        named_by = {i: by for i, by in self.builder.named_by.items() if self.held(name_of(i))}
        self.builder = DeviceBuilder(self.names.config, self.host, named_by, self.names.file)

    def held(self, name: str) -> bool:
        entry = self.ledger.entries.get(name)
        return entry is not None and entry.owner is not Owner.NONE

    def do(self, event: Event) -> bool:
        """Whether it was accepted; ``said`` is what was said."""
        done = step(self.ledger, event, self.policy)
        self.ledger, self.said = done.applied_to(self.ledger), str(done.decision)
        return done.decision.accepted

    def see(self, *here: UdevDevice, lanes: Mapping[str, Lane] | None = None) -> dict[str, Device]:
        """What is there now, as the ledger hears of it: only where the list differs from the last one."""
        self.now += 1
        found = with_instances({each.syspath: each for each in here}, self.nvidia)
        records = with_twins(found, (self.names.config,))
        if self.names.update(records.values()):
            self.builder = DeviceBuilder(self.names.config, self.host, self.builder.named_by, self.names.file)
        self.builder.driver = NvidiaFiles()  # looked for, and nothing is to be said of them
        built = self.builder.build(records, self.nvidia, known_ids=self.tracker.known_ids(), held=self.held)
        names = [resource.name for resource in self.names.config.resources]
        self.collisions = (*built.collisions, *self.names.collisions)
        if snapshot := self.tracker.update(built.devices, self.collisions, names, self.now, built.away):
            self.do(Discovered(tuple(map(LedgerDevice.of, snapshot.devices)), self.now, lanes or {}))
        self.do(AgentStarted(self.now))
        return {device.name: device for device in built.devices}

    def allocate(self, *names: str) -> bool:
        return self.do(Allocate({name: self.ledger.entries[name].device.units for name in names}, self.now))

    def prepare(self, claim: ClaimRef, *names: str) -> bool:
        return self.do(Prepare(claim, tuple(map(DeviceUse, names)), self.now))

    def offered(self, name: str) -> bool:
        entry = self.ledger.entries[name]
        return legacy_healthy(self.ledger, entry) or dra_schedulable(self.ledger, entry)

    def let_go(self) -> None:
        """Kubelet shows no pod any more."""
        for _ in range(2):
            self.now += 200
            self.do(Observed(self.now, self.ledger.seq, {}, CheckpointRead({}), {}))

    def to_claims(self, name: str) -> None:
        self.do(SetLane(name, Lane.DRA, self.now))
        self.do(WithdrawnFromKubelet(name, self.ledger.seq, self.now))
