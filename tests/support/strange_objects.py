"""Fuzz every reader of foreign objects: one object of several is strange, the others must be served.

Objects are those that each reader meets, changed at random places into what JSON, text and files can hold: other types,
missing and repeated keys, text that is no name, no text or much text, numbers without end, nesting without end. The
seed says it all: what failed once fails again. ``python -m tests.bench fuzz`` runs more of it than the suite.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drabridge.config.loader import load
from drabridge.config.names import is_cdi_kind, is_cdi_name
from drabridge.containers.cdi_spec import CdiDevice, ContainerEdits, claim_device_name
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra import publisher
from drabridge.dra.allocation import allocation_here, allocation_of
from drabridge.dra.metadata import DeviceFacts, MetadataFiles
from drabridge.dra.planning import Planner, cdi_devices, device_lookup
from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordState, RecordStore
from drabridge.errors import DrabridgeError
from drabridge.evidence import checkpoint
from drabridge.evidence.kubelet import claim_users_of, claims_of, pods_of, users_of
from drabridge.evidence.pod_objects import watched_pod
from drabridge.inventory.builder import DeviceBuilder
from drabridge.inventory.cdi_file import SpecError, read_spec
from drabridge.inventory.devices import Snapshot
from drabridge.inventory.nvidia import NOTHING
from drabridge.inventory.udev_device import clean
from drabridge.kube.access import Access
from drabridge.kube.allocated_claims import in_use
from drabridge.kube.api import NODES, PODS, resource_claims, resource_slices
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.json_reader import ClaimFields, Json, ObjectView, PodFields, decode
from drabridge.kube.node_annotation import NodeAnnotationWatch
from drabridge.kube.response import read_event
from drabridge.ledger.entries import ClaimRef
from drabridge.system.untrusted import Unreadable
from podresources.errors import PodResourcesError
from podresources.model import SocketIdentity
from podresources.normalise import snapshot
from podresources.transport import Rpc
from podresources.transport import decode as decode_answer
from podresources.wire import v1_pb2 as wire
from tests.support.dra_node import CONFIG, DRIVER, NODE, RESOURCE, gpu
from tests.support.hardware import MemoryHost, config, record

UID = "01234567-89ab-cdef-0123-456789abcdef"
TEXTS = (
    "", " ", "\0", "\n", "a\0b", "../../etc", "/", ".", "..", "-a", "A" * 64, "a" * 254, "x" * 100_000, "\u202e", "nan",
    "1e999", "-1", "9" * 5_000, "\ud800", "null", "{}", "[" * 2_000, "<script>", "%s%n", "${HOME}", "kubernetes.io/x",
)  # fmt: skip
RAW = (
    b"null", b"true", b"-0", b"1e400", b"9" * 4_000, b"0.1", b"[]", b"{}", b"[[]]", b"[null]", b'{"":{}}', b"[7]",
    b'{"a":1,"a":2}', b"[" * 3_000 + b"]" * 3_000, b'{"a":' * 3_000 + b"1" + b"}" * 3_000, b'"\\ud800"',
    b'"\xff\xfe"', b'"\\u0000"',
    b"[" + b"[]," * 3_000 + b"{}]", *(json.dumps(text).encode() for text in TEXTS),
)  # fmt: skip


class Strange:
    """Makes things strange, by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.told: list[DrabridgeError] = []

    def json(self, sound: Any) -> bytes:
        """JSON of an object that was like ``sound``, with one to three changes anywhere in it."""
        changed = copy.deepcopy(sound)
        stand_ins: dict[bytes, bytes] = {}
        for n in range(self.rng.randint(1, 3)):
            holder, key = self.rng.choice(list(_places(changed)))
            stand_in = f"@@{n}@@"
            how = self.rng.randrange(6)
            if how == 0:
                del holder[key]
            elif how == 1 and isinstance(holder, dict):
                holder[self.rng.choice(TEXTS[:-3])] = holder.pop(key)
            elif how == 2 and isinstance(holder, list):
                holder.extend([holder[key]] * self.rng.choice((1, 300)))
            elif how == 3 and isinstance(holder, dict):  # the same key again
                holder[f"{stand_in}{key}"] = 0
                stand_ins[json.dumps(f"{stand_in}{key}").encode() + b": 0"] = (
                    json.dumps(key).encode() + b": " + self.rng.choice(RAW)
                )
            else:
                holder[key] = stand_in
                stand_ins[json.dumps(stand_in).encode()] = self.rng.choice(RAW)
            if not changed:
                break
        data = json.dumps(changed).encode()
        for name, what in stand_ins.items():
            data = data.replace(name, what)
        return data

    def file(self, sound: Any) -> bytes:
        """What may be in a file instead of that: strange JSON, torn, or with other bytes in it."""
        data = self.json(sound)
        how = self.rng.randrange(4)
        if how == 0:
            return data[: self.rng.randrange(len(data) + 1)]
        if how == 1:
            return self.bytes(data)
        return data

    def bytes(self, sound: bytes) -> bytes:
        """The same with some bytes changed."""
        data = bytearray(sound)
        for _ in range(self.rng.randint(1, 8) if data else 0):
            data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        return bytes(data)

    def text(self) -> str:
        return self.rng.choice(TEXTS[:-1]).replace("\ud800", "?")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in it: what holds it, and where."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in list(inner):
        yield value, key
        yield from _places(one)


# --- what is read, as it is when it is sound

CONTAINERS: list[Json] = [{"name": "m", "resources": {"limits": {RESOURCE: "1", "cpu": "2"}}}, {"name": "s"}]
POD: Json = {
    "metadata": {
        "name": "p",
        "namespace": "default",
        "uid": UID,
        "annotations": {"kubernetes.io/config.mirror": "abc"},
    },
    "spec": {
        "nodeName": NODE,
        "containers": CONTAINERS,
        "initContainers": [{"restartPolicy": "Always", **CONTAINERS[0]}],
    },
    "status": {"phase": "Running", "extendedResourceClaimStatus": {"requestMappings": [{"resourceName": "a/b"}]}},
}
PARAMETERS = {"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig", "profile": "fast", "env": {"MODE": "1"}}
CLAIM: Json = {
    "metadata": {
        "name": "c",
        "namespace": "default",
        "uid": UID,
        "annotations": {"resource.kubernetes.io/pod-claim-name": "tpl"},
    },
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "x"}}]}},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "gpu-0", "shareID": UID,
                     "consumedCapacity": {"memory": "1Gi"}, "bindingConditions": ["a"], "adminAccess": False},
                    {"request": "other", "driver": "other.example.com", "pool": "x", "device": "y"},
                ],
                "config": [{"source": "FromClaim", "requests": ["gpu"],
                            "opaque": {"driver": DRIVER, "parameters": PARAMETERS}}],
            }
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": UID}],
        "devices": [{"driver": DRIVER, "pool": NODE, "device": "gpu-0", "conditions": [{"type": "Ready"}]}],
    },
}  # fmt: skip
NODE_OBJECT: Json = {"metadata": {"name": NODE, "uid": UID, "annotations": {f"{DRIVER}/lanes": "{}"}}, "status": {}}
SLICE: Json = {
    "metadata": {"name": "s", "uid": UID, "resourceVersion": "1"},
    "spec": {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"a": {"string": "x"}}, "capacity": {"memory": {"value": "1Gi"}}}],
    },
}
CDI_FILE: Json = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "GPU-4a1f6e0c-1111-2222-3333-444455556666", "containerEdits": {"env": ["A=1"]}},
    ],
}

CHECKPOINT: Json = {
    "Data": {
        "PodDeviceEntries": [
            {
                "PodUID": UID,
                "ContainerName": "m",
                "ResourceName": RESOURCE,
                "DeviceIDs": {"-1": ["g0"]},
                "AllocResp": "",
            }
        ],
        "RegisteredDevices": {RESOURCE: ["g0"]},
    },
    "Checksum": 1,
}
RECORD = ClaimRecord(
    ClaimRef(UID, "default", "c"),
    RecordState.COMPLETED,
    "boot",
    (PreparedDevice("gpu", NODE, "gpu-0", UID, False, "fast", {"MODE": "1"}, ("a=b",), {"command": ["x"]}),),
)


def named(sound: Json, name: str) -> Json:
    return {**sound, "metadata": {**sound["metadata"], "name": name, "uid": f"uid-{name}"}}


# --- the readers: each is given something strange among what is sound, and says whether the sound was served


class Readers:
    """Every reader, over files below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cluster = KubernetesCluster(lambda: Access(""))
        self._planner = Planner(load(CONFIG), NODE, device_lookup)
        self._snapshot = Snapshot(1, tuple(map(gpu, range(2))))
        self._hardware = config({"name": "example.com/card", "match": [{"subsystem": "usb"}], "id": ["{attr:serial}"]})
        self._kinds: list[tuple[Any, Json, ObjectView[Any]]] = [
            (PODS, POD, ObjectView(watched_pod, PodFields)),
            (resource_claims("v1"), CLAIM, ObjectView(lambda one: allocation_here(one, DRIVER, NODE), ClaimFields)),
            (resource_claims("v1"), CLAIM, ObjectView(lambda one: in_use(one, DRIVER, {}), ClaimFields)),
            (NODES, NODE_OBJECT, NodeAnnotationWatch(self._cluster, NODE, DRIVER, lambda value: None).view),
            (resource_slices("v1"), SLICE, publisher.slice_view("v1")),
        ]

    def each(self) -> dict[str, Callable[[Strange], None]]:
        return {
            name.removeprefix("read_"): getattr(self, name) for name in sorted(dir(self)) if name.startswith("read_")
        }

    def read_list(self, strange: Strange) -> None:
        """A LIST: the others come, in order, and the strange one comes, or is told of."""
        kind, sound, view = strange.rng.choice(self._kinds)
        items = [json.dumps(named(sound, name)).encode() for name in ("a", "b")]
        items.insert(1, strange.json(named(sound, "odd")))
        body = b'{"metadata":{"resourceVersion":"7"},"items":[' + b",".join(items) + b"]}"
        self._cluster._body = lambda *_: body  # type: ignore[method-assign]
        page = self._cluster._page(kind, "/x", {"limit": 3}, view)
        assert page.items[0] == view(items[0])
        assert page.items[-1] == view(items[2])
        assert len(page.items) + len(page.unreadable) == 3

    def read_watch(self, strange: Strange) -> None:
        """An event of a watch: understood, told of, or an error that makes the watch begin again."""
        kind, sound, view = strange.rng.choice(self._kinds)
        line = b'{"type":"MODIFIED","object":' + strange.json(named(sound, "odd")) + b"}"
        try:
            event = read_event("/x", view, Unreadable(kind.plural), line)
        except (DrabridgeError, ValueError):
            return
        assert event.object is not None or event.identity.uid

    def read_claim(self, strange: Strange) -> None:
        """The GET of a claim that is to be prepared: a plan for what it is allocated, or one error, in words."""
        try:
            claim = decode(strange.json(CLAIM))
            if isinstance(claim, dict):
                plans = self._planner.plan(allocation_of(ClaimRef(UID, "default", "c"), claim, DRIVER), self._snapshot)
                cdi = CdiStore(self._root / "prepared", DRIVER)
                cdi.write(cdi.claim_spec(UID, cdi_devices(plans)))
        except DrabridgeError:
            return

    def read_parameters(self, strange: Strange) -> None:
        """Parameters of a claim: the same, where only they are strange."""
        claim = copy.deepcopy(CLAIM)
        claim["status"]["allocation"]["devices"]["config"][0]["opaque"]["parameters"] = "@@"
        data = json.dumps(claim).encode().replace(b'"@@"', strange.json(PARAMETERS))
        try:
            allocation = allocation_of(ClaimRef(UID, "default", "c"), decode(data), DRIVER)
            self._planner.plan(allocation, self._snapshot)
        except DrabridgeError:
            return

    def read_cdi_file(self, strange: Strange) -> None:
        """Another program's CDI file: names that can be names, or one error."""
        try:
            found = read_spec(strange.file(CDI_FILE))
        except SpecError:
            return
        assert found.names
        assert all(is_cdi_kind(found.kind) and is_cdi_name(name) for name in found.names)

    def read_checkpoint(self, strange: Strange) -> None:
        """Kubelet's checkpoint is understood, or is not."""
        (self._root / checkpoint.FILE_NAME).write_bytes(strange.file(CHECKPOINT))
        checkpoint.read(self._root)

    def read_records(self, strange: Strange) -> None:
        """Records of prepared claims: the sound one is there."""
        store = RecordStore(self._root / "claims")
        for old in store.directory.glob("*") if store.directory.is_dir() else ():
            old.unlink()
        store.save(RECORD)
        other = UID.replace("0", "f")
        (store.directory / f"{other}.json").write_bytes(strange.file(json.loads(RECORD.encode())))
        (store.directory / f"{strange.text()[:200].replace('/', '_')}x.json".replace("\0", "")).write_bytes(b"{")
        assert RECORD in store.all()
        assert UID not in store.unlisted([RECORD])

    def read_cdi(self, strange: Strange) -> None:
        """Files beside ours in the CDI directory, with our names even: ours are written, and told of."""
        cdi = CdiStore(self._root / "cdi", DRIVER)
        devices = [CdiDevice(claim_device_name(UID, "gpu", "gpu-0"), ContainerEdits.of(gpu(0)))]
        spec = cdi.claim_spec(UID, devices)
        cdi.write(spec)
        sound = json.loads((cdi.directory / spec.file_name).read_bytes())
        for name in (f"{DRIVER}-device-claim-odd.json", f"{DRIVER}-device-claim-{'x' * 200}.json", "vendor.json"):
            (cdi.directory / name).write_bytes(strange.file(sound))
        assert cdi.claims()[UID]
        cdi.regenerate(Family.CLAIM, [spec], keep={strange.text(), "odd"})
        assert cdi.has(spec)
        assert (cdi.directory / "vendor.json").exists()

    def read_metadata(self, strange: Strange) -> None:
        """A claim's metadata on disk, its names and attributes: written, or an error of this claim."""
        files = MetadataFiles(self._root / "plugin", CdiStore(self._root / "cdi", DRIVER), DRIVER)
        claim = ClaimRef(
            UID, strange.rng.choice(("default", strange.text())), strange.rng.choice(("c", strange.text()))
        )
        facts = [DeviceFacts(strange.rng.choice(("gpu", strange.text())), NODE, "gpu-0", {"a": {"string": "x"}})]
        honest = ClaimRef(UID.replace("0", "a"), "default", "honest")
        try:
            files.write(claim, strange.text(), facts)
            for path in (self._root / "plugin").glob("*/*/*/metadata.json"):
                path.write_bytes(strange.file({"metadata": {"uid": UID, "generation": 1}, "podClaimName": "x"}))
            files.write(claim, "", facts)
        except DrabridgeError as error:
            strange.told.append(error)
        assert files.write(honest, "", [DeviceFacts("gpu", NODE, "gpu-1", {})])
        for one in (claim, honest):
            with contextlib.suppress(*[DrabridgeError] * (one is claim)):
                files.remove(one)

    def read_podresources(self, strange: Strange) -> None:
        """Kubelet's answer to List: a pod that is sound is seen, whatever the others are; or it is no answer at all."""

        def name() -> str:
            return strange.text() or "x"  # without any it would be no kubelet

        sound = wire.PodResources(name="p", namespace="default")
        container = sound.containers.add(name="m")
        container.devices.add(resource_name=RESOURCE, device_ids=["g0"])
        device = wire.ClaimResource(driver_name=DRIVER, pool_name=NODE, device_name="gpu-0")
        device.cdi_devices.add(name=f"{DRIVER}/device=claim-{UID}-gpu-gpu-0")
        container.dynamic_resources.add(claim_name="c", claim_namespace="default", claim_resources=[device])
        odd = wire.PodResources(name=name(), namespace=name())
        one = odd.containers.add(name=name())
        one.devices.add(resource_name=name(), device_ids=[name()] * 3)
        device = wire.ClaimResource(driver_name=name(), pool_name=name(), device_name=name())
        device.cdi_devices.add(name=name())
        one.dynamic_resources.add(claim_name=name(), claim_resources=[device, device])
        data = wire.ListPodResourcesResponse(pod_resources=[odd, sound, odd]).SerializeToString()
        for answer in (data, strange.bytes(data)):
            try:
                found = snapshot(
                    decode_answer(Rpc.LIST, wire.ListPodResourcesResponse, answer), SocketIdentity(1, 2, 3)
                )
            except PodResourcesError:
                assert answer is not data
                continue
            pods, claims = pods_of(found), claims_of(found, DRIVER)
            users_of(found, ClaimRef(UID, "default", "c"), DRIVER, "gpu-0")
            claim_users_of(found, DRIVER)
            if answer is data:
                assert any(ref.name == "p" for ref in pods[RESOURCE, "g0"])
                assert any(allocation.claim.uid == UID for allocation in claims)

    def read_udev(self, strange: Strange) -> None:
        """What udev says of a device that somebody made: the one beside it is found."""
        strange_text = clean(strange.text().encode(errors="surrogateescape"))
        odd = record(
            f"/sys/devices/{strange_text.replace('/', '_')[:50]}odd",
            properties={"ID_SERIAL": strange_text, "DEVNAME": strange_text},
            attributes={"serial": strange_text, "idVendor": strange_text},
        )
        sound = record("/sys/devices/sound", attributes={"serial": "sound"})
        built = DeviceBuilder(self._hardware, MemoryHost()).build(
            {one.syspath: one for one in (odd, sound)}, NOTHING, known_ids={}, held=lambda name: False
        )
        assert any("sound" in device.id for device in built.devices)


def run(seed: int, examples: int, root: Path) -> int:
    """So many strange things for each reader; returns how many that were. Raises AssertionError with the seed."""
    readers = Readers(root).each()
    for number in range(examples):
        for name, read in readers.items():
            own = f"{seed}/{number}/{name}"
            try:
                read(Strange(_seed(own)))
            except Exception as error:
                raise AssertionError(f"{own}: {type(error).__name__}: {str(error)[:500]}") from error
    return examples * len(readers)


def _seed(text: str) -> int:
    return int.from_bytes(text.encode(), "big")
