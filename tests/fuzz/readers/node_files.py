"""Files on the node: kubelet's, other programs', the kernel's, and the agent's own state after a bad disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from drabridge.coexistence import other_agents
from drabridge.config.names import is_cdi_kind, is_cdi_name
from drabridge.config.nvidia import Nvidia
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.metadata import DeviceFacts, MetadataFiles
from drabridge.dra.records import RecordStore
from drabridge.errors import HostError
from drabridge.evidence import checkpoint
from drabridge.inventory import nvidia, nvidia_files, nvml_report
from drabridge.inventory.builder import DeviceBuilder
from drabridge.inventory.cdi_file import SpecError, read_spec
from drabridge.inventory.identity_store import FILE_NAME, IdentityStore
from drabridge.inventory.suggest import suggest
from drabridge.inventory.udev_device import UdevDevice, clean
from drabridge.lanes.desired import DesiredLanes
from drabridge.ledger.entries import ClaimRef
from drabridge.ledger.store import FILE as LEDGER
from drabridge.ledger.store import Store, read_completely, read_if_possible
from drabridge.system.io_thread import IoThread
from podresources.resolve.cdi import CdiFiles
from podresources.resolve.checkpoints import CLAIMS, DEVICES, Checkpoints
from podresources.resolve.files import UnreadableFileError
from podresources.resolve.metadata import _devices as metadata_devices
from tests.fuzz.reader import Form, Read, Reader
from tests.support import nvidia_h100
from tests.support.dra_node import DRIVER
from tests.support.hardware import MemoryHost, config

UID = "1c0099f8-be3c-4241-9812-2e22864df819"  # of the claim in what 0.2.0 left
MEMORY = config({"name": "example.com/mem", "match": [{"subsystem": "mem"}], "id": ["{sysname}"]})
CARDS = config(
    {
        "name": "example.com/card",
        "match": [{"subsystem": "usb", "attr": {"idVendor": "0bda"}}, {"property": {"ID_MODEL": "regex:.*"}}],
        "id": ["{attr:serial}", "{property:ID_SERIAL}", "{sysname}"],
        "nodes": [{"from": "devnode", "as": "/dev/card-{name}"}],
        "env": {"SERIAL": "{attr:serial}", "PRODUCT": "{property:ID_MODEL}"},
        "attributes": {"speed": {"from": "attr:speed", "type": "int"}, "model": {"from": "property:ID_MODEL"}},
    }
)


@contextmanager
def checkpoints(root: Path) -> Iterator[Read]:
    """Two readers of one file: the agent's and that of ``podresources``."""
    theirs = Checkpoints(root)

    def read(data: bytes) -> None:
        (root / "device-plugins").mkdir(exist_ok=True)
        for name in (checkpoint.FILE_NAME, DEVICES, CLAIMS):
            (root / name).write_bytes(data)
        checkpoint.read(root)
        theirs.refresh()

    yield read


@contextmanager
def cdi(root: Path) -> Iterator[Read]:
    """Other programs' files, read for their names; and for what ``podresources`` tells of devices."""
    folder = root / "var/run/cdi"
    folder.mkdir(parents=True)
    ours = CdiStore(folder, DRIVER)
    theirs = CdiFiles(root)

    def read(data: bytes) -> None:
        with suppress(SpecError):
            found = read_spec(data)
            assert found.names
            assert is_cdi_kind(found.kind)
            assert all(map(is_cdi_name, found.names))
        for name in ("vendor.json", "vendor.yaml", f"{DRIVER}-device-claim-{UID}.json"):
            (folder / name).write_bytes(data)
        theirs.refresh()
        theirs.edits("nvidia.com/gpu=0")
        theirs.of_vendor("GPU-4a1f6e0c-1111-2222-3333-444455556666")
        ours.claims()
        ours.regenerate(Family.CLAIM, [], keep={UID})
        assert (folder / "vendor.json").read_bytes() == data

    yield read


@contextmanager
def udev(root: Path) -> Iterator[Read]:
    """What libudev says of one device, as JSON: properties and attributes are text that firmware chose."""

    def read(data: bytes) -> None:
        try:
            found = json.loads(data)
            rows = [_device(number, row) for number, row in enumerate(found["devices"])]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        by_path = {one.syspath: one for one in rows}
        built = DeviceBuilder(CARDS, MemoryHost()).build(by_path, nvidia.NOTHING, known_ids={}, held=lambda name: False)
        names = [device.name for device in built.devices]
        assert len(set(names)) == len(names)
        assert all(name.isascii() and len(name) <= 63 for name in names)
        for one in rows[:4]:
            suggest(one, rows)

    yield read


def _device(number: int, row: dict[str, Any]) -> UdevDevice:
    def text(value: object) -> str:
        return clean(str(value).encode("utf-8", "surrogateescape" if str(value).isascii() else "replace"))

    sysname = text(row["sysname"]).replace("/", "!") or "x"
    return UdevDevice(
        syspath=f"/sys/devices/pci0000:00/{number}/{sysname}",
        sysname=sysname,
        subsystem=text(row["subsystem"]),
        devtype=text(row.get("devtype", "")),
        driver=text(row.get("driver", "")),
        devnode=text(row.get("devnode", "")),
        properties={text(key): text(value) for key, value in row["properties"].items()},
        attributes={text(key): text(value) for key, value in row["attributes"].items()},
    )


@contextmanager
def nvidia_proc(root: Path) -> Iterator[Read]:
    """``/proc/driver/nvidia``: a driver's text."""
    (root / "gpus/0000:3b:00.0").mkdir(parents=True)

    def read(data: bytes) -> None:
        (root / "version").write_bytes(data)
        (root / "gpus/0000:3b:00.0/information").write_bytes(data)
        found = nvidia.read(root)
        nvidia.uuid_hint(found.of("0000:3b:00.0"))

    yield read


@contextmanager
def linker_cache(root: Path) -> Iterator[Read]:
    """``ld.so.cache`` of the host, or of a driver's root, which anybody may have made."""
    paths = nvidia_h100.host_paths(root)
    settings = Nvidia(host_root=str(root / "host"))
    nvidia_h100.libraries(root / "host", "/usr/lib64")

    def read(data: bytes) -> None:
        with suppress(ValueError):
            assert all(path.startswith("/") for _, path in nvidia_files.cached_libraries(data, nvidia_files.MACHINE))
        nvidia_h100.put(root / "host", "/etc/ld.so.cache", data)
        found = nvidia_files.find(settings, paths)
        assert found.problem == "", "what the cache says hides no library"
        assert all(".." not in Path(mount.host_path).parts for mount in found.mounts)

    yield read


@contextmanager
def nvml(root: Path) -> Iterator[Read]:
    """A line of the process that asks NVML. It may be killed within one."""

    def read(data: bytes) -> None:
        with suppress(ValueError, RecursionError):  # as the reader of the pipe does
            message = nvml_report.decode(data)
            if isinstance(message, nvml_report.State):
                nvml_report.merged(nvidia.NOTHING, message, nvml_report.Xids())
                list(nvml_report.notes(nvidia.NOTHING, message))

    yield read


@contextmanager
def ledger(root: Path) -> Iterator[Read]:
    """The ledger: whatever is on the disk, there is a result. What cannot be read is never a new start."""
    number = 0

    def read(data: bytes) -> None:
        nonlocal number
        number += 1
        folder = root / str(number)
        folder.mkdir()
        (folder / LEDGER).write_bytes(data)
        read_if_possible(folder, node="node-a")
        with suppress(HostError):
            read_completely(folder, node="node-a")
        store = Store(folder, node="node-a")
        found = store.load()
        store.rewrite(found.ledger)
        store.close()
        again = read_completely(folder, node="node-a")
        assert again is not None
        assert dict(again.entries.items()) == dict(found.ledger.entries.items())
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()

    yield read


@contextmanager
def identities(root: Path) -> Iterator[Read]:
    store = IdentityStore(root)

    def read(data: bytes) -> None:
        (root / FILE_NAME).write_bytes(data)
        store.save(store.load(MEMORY))

    yield read


@contextmanager
def lanes(root: Path) -> Iterator[Read]:
    """The operator's and the Node's lanes, as files, and the mark of a drain."""

    def read(data: bytes) -> None:
        for name in ("lanes.json", "lanes.node.json", "drained.json"):
            (root / name).write_bytes(data)
        followed: Any = SimpleNamespace(cluster=True, claims_off=None)
        found = DesiredLanes(root, lambda: MEMORY, lambda: None, followed, IoThread("lanes"))
        found.annotate(data.decode("utf-8", "replace"))
        for resource in MEMORY.resources:
            found.lanes(resource)
            found.describe(resource)
        found.notes()

    yield read


@contextmanager
def records(root: Path) -> Iterator[Read]:
    """A claim's record: understood, or put aside."""

    def read(data: bytes) -> None:
        store = RecordStore(root)
        (root / f"{UID}.json").write_bytes(data)
        found = store.load(UID)
        assert found is None or found.claim.uid == UID
        store.all()
        store.unlisted([])
        for path in root.iterdir():
            path.unlink()

    yield read


@contextmanager
def metadata(root: Path) -> Iterator[Read]:
    """A claim's device metadata: drivers of others write such files, too."""
    cdi = CdiStore(root / "cdi", DRIVER)
    claim = ClaimRef(UID, "default", "claim")
    facts = [DeviceFacts("r", "node-a", "gpu-0", {"a": {"string": "x"}})]
    MetadataFiles(root / "own", cdi, DRIVER).write(claim, "", facts)
    own = next((root / "own").glob("*/*/*/metadata.json")).resolve()

    def read(data: bytes) -> None:
        own.write_bytes(data)
        ours = MetadataFiles(root / "own", cdi, DRIVER)
        ours.write(claim, "", facts)
        other = root / "metadata.json"
        other.write_bytes(data)
        with suppress(UnreadableFileError):
            list(metadata_devices(other))

    yield read


@contextmanager
def hardware(root: Path) -> Iterator[Read]:
    """What another driver's agent says it has."""

    def read(data: bytes) -> None:
        (root / "hardware.json").write_bytes(data)
        with suppress(OSError, ValueError, RecursionError):
            found = other_agents._read_file(root / "hardware.json")
            msgspec.json.encode(found)

    yield read


_LEFT = "tests/agent/releases/*/state"
READERS = (
    Reader("checkpoint", Form.JSON, "kubelet's checkpoints", checkpoints),
    Reader("cdi", Form.JSON, "CDI files of other programs, as JSON", cdi, (f"{_LEFT[:-5]}cdi/*.json",)),
    Reader("cdi-yaml", Form.YAML, "CDI files of other programs, as YAML", cdi),
    Reader("udev", Form.JSON, "udev's properties and attributes", udev),
    Reader("nvidia", Form.YAML, "files of NVIDIA's driver", nvidia_proc),
    Reader("ld-cache", Form.JSON, "the dynamic linker's cache", linker_cache),
    Reader("nvml", Form.JSON, "answers of the process that asks NVML", nvml),
    Reader("ledger", Form.LEDGER, "the ledger", ledger, (f"{_LEFT}/ledger.jsonl",)),
    Reader("identities", Form.JSON, "identities.json", identities, (f"{_LEFT}/identities.json",)),
    Reader(
        "lanes", Form.JSON, "lanes.json, the annotation's copy, the mark of a drain", lanes, (f"{_LEFT}/lanes.json",)
    ),
    Reader("records", Form.JSON, "records of claims", records, (f"{_LEFT}/claims/*.json",)),
    Reader("metadata", Form.LINES, "device metadata of claims", metadata, (f"{_LEFT}/*/*/*/metadata.json",)),
    Reader("hardware", Form.JSON, "what other agents of the node have", hardware),
)
