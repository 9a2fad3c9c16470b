"""Run the DRA side of a node: real sockets and files, the simulated API server over HTTP, a ledger on disk."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from msgspec.structs import replace

from drabridge.config.loader import load
from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.driver import DraDriver, DriverNode
from drabridge.dra.observer import ClaimHandled, Fact
from drabridge.dra.planning import device_lookup
from drabridge.dra.ports import DraPorts
from drabridge.inventory.devices import Device, DeviceNode, Presence, Snapshot
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.features import FeatureState
from drabridge.ledger.effects import Effect, Notify, Refused
from drabridge.ledger.entries import Lane, Ledger, LedgerDevice, Owner
from drabridge.ledger.events import AgentStarted, Discovered, NodeBooted, WithdrawnFromKubelet
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from drabridge.offers.slices import OFF_BY_DEFAULT
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.apiserver.status import ApiError
from drabridge.wire import dra_v1_pb2, dra_v1_pb2_grpc
from tests.support.waiting import short_directory, until

DRIVER = "dra.example.com"
NODE = "node-a"
RESOURCE = "example.com/gpu"
CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources:
- name: {RESOURCE}
  match: [{{subsystem: mem}}]
  lanes: {{legacy: 0, dra: "*"}}
  claimConfig:
    env: [MODE]
    profiles:
      fast: {{env: {{PROFILE: "fast-{{name}}"}}}}
- name: example.com/shared
  match: [{{subsystem: mem}}]
  lanes: {{legacy: 0, dra: "*"}}
  sharing: {{allowMultipleAllocations: true}}
  capacity:
    memory: {{value: 8Gi, requestPolicy: {{default: 1Gi, validRange: {{min: 1Gi}}}}}}
"""


async def _none_open(devices: set[str]) -> dict[str, str]:
    return {}


async def _done(what: Any) -> None:
    pass


ALONE: dict[str, Any] = {  # what the rest of an agent says where there is none
    "lookup": device_lookup,
    "in_use": _none_open,
    "confirm_cdi": _done,
    "bind": _done,
    "pods": lambda: None,
    "unwell": str,
    "on_synced": lambda: None,
    "kept": lambda entry: False,
    "paused": dict,
    "clock": time.time,
}


def with_profile(hooks: str) -> str:
    """The configuration with a profile ``hooked`` that every claim gets; ``hooks`` are its YAML lines."""
    profile = f"    defaultProfile: hooked\n    profiles:\n      hooked: {{{hooks}}}\n"
    return CONFIG.replace("    profiles:\n", profile)


def gpu(index: int, **changes: Any) -> Device:
    """A device whose node is a real one of every machine."""
    node = DeviceNode("/dev/null", f"/dev/gpu{index}", "rw", "c", 1, 3)
    device = Device(f"gpu-{index}", f"GPU-{index}", RESOURCE, nodes=(node,), env={"GPU": str(index)})
    return replace(device, **changes)


class Claims:
    """Claims as a scheduler leaves them, in the simulated API server."""

    def __init__(self, api: SimApiServer) -> None:
        self._objects = api.objects

    def add(
        self,
        name: str,
        *devices: str | Mapping[str, Any],
        config: tuple[Mapping[str, Any], ...] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> dra_v1_pb2.Claim:
        """An allocated claim; a device is its name, or a whole allocation result (``request`` defaults to gpu)."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
        }
        created = self._objects.create(body, namespace="default")
        self.allocate(name, *devices, config=config)
        return dra_v1_pb2.Claim(namespace="default", name=name, uid=created["metadata"]["uid"])

    def allocate(
        self, name: str, *devices: str | Mapping[str, Any], config: tuple[Mapping[str, Any], ...] = ()
    ) -> None:
        results = [
            {"request": "gpu", "driver": DRIVER, "pool": NODE, **({"device": d} if isinstance(d, str) else d)}
            for d in devices
        ]
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
        obj = self._objects.get("resourceclaims", name, "default")
        obj["status"] = {
            "allocation": {
                "devices": {"results": results, "config": list(config)},
                "nodeSelector": {"nodeSelectorTerms": [term]},
            }
        }
        self._store(obj)

    def reserve(self, name: str, pod: str, uid: str) -> None:
        obj = self._objects.get("resourceclaims", name, "default")
        users = [*obj["status"].get("reservedFor", ()), {"resource": "pods", "name": pod, "uid": uid}]
        obj["status"]["reservedFor"] = users
        self._store(obj)

    def deallocate(self, name: str) -> None:
        obj = self._objects.get("resourceclaims", name, "default")
        obj["status"] = {}
        self._store(obj)

    def delete(self, name: str) -> None:
        with contextlib.suppress(ApiError):
            self._objects.delete("resourceclaims", name, "default")

    def get(self, name: str) -> dict[str, Any]:
        obj: dict[str, Any] = self._objects.get("resourceclaims", name, "default")
        return obj

    def _store(self, obj: dict[str, Any]) -> None:
        self._objects.update(obj, namespace="default", subresource="status")


class DraNode:
    """One node's directories and parts; :meth:`start` and :meth:`stop` may be called again and again."""

    def __init__(
        self, root: Path, api: Any, config: str = CONFIG, devices: tuple[Device, ...] = (), *, name: str = NODE
    ) -> None:
        """``api`` is a SimApiServer; None in a process of its own, which is given a ``cluster`` at start."""
        self.root = root
        self.name = name
        self.api = api
        self.facts: list[Fact] = []
        self.told: list[Effect] = []  # what people hear of refusals
        (root / "plugins_registry").mkdir(exist_ok=True)
        (root / "config.yaml").write_text(config)
        if not (root / "boot_id").exists():
            (root / "boot_id").write_text(str(uuid.uuid4()))
        self.config: Config = load(root / "config.yaml")
        self.snapshot = Snapshot(1, devices or tuple(map(gpu, range(4))))
        self.cdi = CdiStore(root / "cdi", self.config.driver)
        self.state = root / "plugins" / self.config.driver
        self._task: asyncio.Task[None] | None = None
        self._failed: DraDriver | None = None

    @property
    def claims(self) -> Claims:
        return Claims(self.api)

    async def start(self, *, cluster: Any = None, **options: Any) -> None:
        self.ledger_service = LedgerService(Store(self.state, node=self.name))
        await self.discover()
        await self.ledger_service.apply(NodeBooted(self.boot_id, time.time()))
        await self.ledger_service.apply(AgentStarted(time.time()))
        self.cluster = cluster or KubernetesCluster.from_kubeconfig(self.api.kubeconfig(self.root / "kubeconfig"))
        node = DriverNode(self.name, self.root, self.state, self.root / "boot_id")
        ports = DraPorts(**{**ALONE, "inventory": lambda: self.snapshot, "observer": self.facts.append, **options})
        self.driver = DraDriver(self.config, node, self.ledger_service, self.cluster, self.cdi, ports)
        self._unsubscribe = self.ledger_service.subscribe(self._ledger_changed)
        service = self.service = self.driver._server.sockets.service
        self._channel = grpc.aio.insecure_channel(f"unix://{service}", [("grpc.default_authority", "localhost")])
        self.stub = dra_v1_pb2_grpc.DRAPluginStub(self._channel)
        task = self._task = asyncio.create_task(self.driver.run())
        await until(lambda: self.driver.state.serving or task.done(), why="the sockets")
        if task.done():
            self._failed = self.driver  # said here
            task.result()

    def _ledger_changed(self, ledger: Ledger, effects: tuple[Effect, ...]) -> None:
        del ledger
        self.told += [effect for effect in effects if isinstance(effect, Refused | Notify)]
        self.driver.publish()

    async def stop(self) -> None:
        if self._task is None:
            return
        task, self._task = self._task, None
        died = task.done() and self.driver is not self._failed
        await self._channel.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._unsubscribe()
        await self.ledger_service.close()
        self.cluster.close()
        if died:
            task.result()  # it ends only when it is told to

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def reboot(self) -> None:
        """Everything that a reboot takes: the CDI directory, and the boot id's value."""
        await self.stop()
        shutil.rmtree(self.root / "cdi", ignore_errors=True)
        (self.root / "boot_id").write_text(str(uuid.uuid4()))
        await self.start()

    @property
    def boot_id(self) -> str:
        return (self.root / "boot_id").read_text().strip()

    async def discover(self) -> None:
        """Bring the snapshot to the ledger, as the agent does."""
        shareable = {r.name: r.sharing.allow_multiple_allocations for r in self.config.resources}
        facts = tuple(LedgerDevice.of(device, shareable=shareable[device.resource]) for device in self.snapshot.devices)
        lanes = {device.name: Lane.DRA for device in self.snapshot.devices}
        await self.ledger_service.apply(Discovered(facts, time.time(), lanes))
        for name, entry in self.ledger_service.ledger.entries.items():
            if entry.lane is Lane.LEGACY_TO_DRA:  # new after the start: there is no kubelet here to show a pod on it
                await self.ledger_service.apply(WithdrawnFromKubelet(name, self.ledger_service.ledger.seq, time.time()))

    async def change(self, **presence: tuple[Presence, str]) -> None:
        """New presence of devices, by name with ``_`` for ``-``."""
        devices = []
        for device in self.snapshot.devices:
            state = presence.get(device.name.replace("-", "_"))
            devices.append(replace(device, presence=state[0], reason=state[1]) if state else device)
        await self.set_devices(*devices)

    async def set_devices(self, *devices: Device) -> None:
        self.snapshot = Snapshot(self.snapshot.version + 1, devices)
        await self.discover()
        self.driver.publish()

    # --- what kubelet does

    async def prepare(self, *claims: dra_v1_pb2.Claim, timeout: float = 45.0) -> dict[str, Any]:
        """Claim UID -> answer."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=claims)
        response = await self.stub.NodePrepareResources(request, timeout=timeout)
        assert set(response.claims) == {claim.uid for claim in claims}
        return dict(response.claims)

    async def prepared(self, claim: dra_v1_pb2.Claim) -> list[Any]:
        """The devices of one claim; fails the test on an error."""
        answer = (await self.prepare(claim))[claim.uid]
        assert not answer.error, answer.error
        return list(answer.devices)

    async def refused(self, claim: dra_v1_pb2.Claim) -> str:
        """The error of one claim; fails the test if there is none."""
        answer = (await self.prepare(claim))[claim.uid]
        assert answer.error
        assert not answer.devices
        return str(answer.error)

    async def unprepare(self, *claims: dra_v1_pb2.Claim) -> dict[str, str]:
        """Claim UID -> error."""
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=claims)
        response = await self.stub.NodeUnprepareResources(request, timeout=45.0)
        assert set(response.claims) == {claim.uid for claim in claims}
        return {uid: answer.error for uid, answer in response.claims.items()}

    # --- what a test looks at

    def owner(self, device: str) -> Owner:
        return self.ledger_service.ledger.entries[device].owner

    def holders(self, device: str) -> list[str]:
        return [held.claim.name for held in self.ledger_service.ledger.entries[device].holders]

    def cdi_files(self) -> list[str]:
        return sorted(path.name for path in (self.root / "cdi").glob("*")) if (self.root / "cdi").exists() else []

    def records(self) -> list[str]:
        return sorted(path.name for path in (self.state / "claims").glob("*"))

    def handled(self, method: str) -> list[ClaimHandled]:
        return [fact for fact in self.facts if isinstance(fact, ClaimHandled) and fact.method == method]

    def slices(self) -> list[dict[str, Any]]:
        return sorted(
            (dict(item) for item in self.api.objects.list("resourceslices")), key=lambda s: str(s["metadata"]["name"])
        )

    def published(self) -> list[str]:
        return [device["name"] for slice_ in self.slices() for device in slice_["spec"].get("devices", ())]

    async def until_published(self, names: list[str]) -> None:
        await until(
            lambda: self.published() == names and self.driver.state.publisher.published, why=f"slices with {names}"
        )

    def tainted(self) -> list[str]:
        return [d["name"] for slice_ in self.slices() for d in slice_["spec"].get("devices", ()) if d.get("taints")]

    def missing(self) -> tuple[str, ...]:
        """The features that the agent has found missing, by the names of their gates, which are on by default."""
        states = self.driver.features.items()
        return tuple(
            sorted(str(name) for name, state in states if state is FeatureState.MISSING and name not in OFF_BY_DEFAULT)
        )

    def writes(self) -> int:
        """Writes of slices that the API server has seen, dry runs aside."""
        return sum(r.is_write and r.resource == "resourceslices" and "dryRun" not in r.query for r in self.api.requests)


def add_node(api: SimApiServer, name: str = NODE) -> str:
    """The Node object; returns its UID."""
    node = api.objects.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    return str(node["metadata"]["uid"])


@contextlib.asynccontextmanager
async def a_node(
    config: str = CONFIG, devices: tuple[Device, ...] = (), *, start: bool = True, **api_options: Any
) -> AsyncIterator[DraNode]:
    """A node with the DRA side running beside a simulated API server."""
    with short_directory() as root:
        async with SimApiServer(**api_options) as api:
            add_node(api)
            node = DraNode(root, api, config, devices)
            try:
                if start:
                    await node.start()
                yield node
            finally:
                await node.stop()


def text_of(node: DraNode, claim: dra_v1_pb2.Claim) -> str:
    return (node.root / "cdi" / f"{DRIVER}-device-claim-{claim.uid}.json").read_text()
