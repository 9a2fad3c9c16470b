"""Random configurations, udev values and kubelet answers, through the code that trusts them least.

Whatever comes in, the outcome is one of those that the design names; no other exception, and nothing that is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config.loader import load
from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.errors import ConfigError
from drabridge.evidence.kubelet import KubeletEvidence, pods_of
from drabridge.inventory.builder import DeviceBuilder
from drabridge.inventory.devices import Snapshot
from drabridge.inventory.identity_store import FILE_NAME, IdentityStore
from drabridge.inventory.nvidia import NOTHING
from drabridge.inventory.udev_device import UdevDevice, clean
from drabridge.ledger.entries import Entry, Ledger, LedgerDevice
from drabridge.ledger.policy import LedgerPolicy
from drabridge.offers.device_list import legacy_list
from drabridge.status import page
from drabridge.status.document import AgentInfo, Findings, NodeDevices, document
from drabridge.telemetry.metrics import Metrics
from podresources import Client
from podresources.errors import PodResourcesError
from podresources.model import SocketIdentity
from podresources.normalise import snapshot
from podresources.wire import v1_pb2 as wire
from tests.support.hardware import MemoryHost, config, record
from tests.support.podresources_server import kubelet, says
from tests.support.waiting import HANG_SECONDS, short_directory

SOCKET = SocketIdentity(1, 2, 3)
SMALL = config({"name": "r.example/x", "match": [{"subsystem": "mem"}]})

# What udev, sysfs and USB descriptors really hold, and what nobody should: controls, bytes that are no text, markup.
ODD = st.sampled_from(
    ["", " ", "\0", "\n", "../..", "a/b", "A" * 300, "ünïcode", "\udcff\udc80", "<script>", "{attr:x}", "0403", "1-4",
     "\u202edlrow", "-", "--help", "%s%n", "${HOME}", "::1", "a=b", "0000:3b:00.0", "nan", "-1", "1e9", "9" * 40]
)  # fmt: skip
TEXT = (ODD | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)).map(
    lambda text: clean(text.encode(errors="surrogateescape"))
)

RESOURCE: dict[str, Any] = {
    "name": "example.com/card",
    "match": [{"subsystem": "usb"}],
    "id": ["{attr:serial}", "{property:ID_SERIAL}", "{sysname}"],
    "nodes": [{"from": "devnode", "as": "/dev/card-{name}"}],
    "env": {"SERIAL": "{attr:serial}", "PRODUCT": "{property:ID_MODEL}"},
    "attributes": {"speed": {"from": "attr:speed", "type": "int"}, "model": {"from": "property:ID_MODEL"}},
}


def _values(*names: str) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(names), TEXT)


ONE = st.tuples(TEXT, TEXT, _values("serial", "speed", "numa_node"), _values("ID_SERIAL", "ID_MODEL"))


def records() -> st.SearchStrategy[list[UdevDevice]]:
    """A few devices of one bus with hostile values, some of them of one identity."""
    return st.lists(ONE, min_size=1, max_size=4).map(lambda found: [_record(n, *one) for n, one in enumerate(found)])


def _record(
    number: int, devtype: str, driver: str, attributes: dict[str, str], properties: dict[str, str]
) -> UdevDevice:
    return record(
        f"/sys/devices/pci0000:00/0000:00:14.0/{number}-1",
        "usb",
        devtype=devtype,
        devnode=f"/dev/bus/usb/001/00{number}",
        devnum=(189, number),
        driver=driver,
        attributes=attributes,
        properties=properties,
    )


@given(records())
def test_random_udev_values_never_break_the_builder(found: list[UdevDevice]) -> None:
    """From records to everything that is made of them: lists, CDI files, status, the page, metrics."""
    configuration = config(RESOURCE)
    host = MemoryHost({item.devnode: item.devnum for item in found if item.devnum})
    built = DeviceBuilder(configuration, host).build(
        {item.syspath: item for item in found}, NOTHING, known_ids={}, held=lambda name: False
    )
    assert len(built.devices) + sum(len(collision.syspaths) for collision in built.collisions) >= len(found)
    names = [device.name for device in built.devices]
    assert len(set(names)) == len(names)
    ids = [device.id for device in built.devices]
    assert len(set(ids)) == len(ids)
    assert all(name.isascii() and len(name) <= 63 and name == name.lower() for name in names)
    current = Snapshot(1, built.devices, built.collisions)
    ledger = Ledger.of(Entry(LedgerDevice.of(device)) for device in built.devices)
    listed = legacy_list(ledger, current.by_name(), "example.com/card", at=0.0, policy=LedgerPolicy())
    for entry in listed:
        assert entry.id.encode()  # kubelet reads UTF-8 only
    with short_directory() as root:
        store = CdiStore(root, configuration.driver)
        for device in built.devices:
            store.write(store.legacy_spec(device))
        for path in root.iterdir():
            assert path.parent == root
            json.loads(path.read_text())
    text = document(
        AgentInfo("n", configuration.driver, "0", 0.0),
        NodeDevices(ledger, current, LedgerPolicy()),
        Findings(),
        now=0.0,
    )
    json.dumps(text).encode()
    page.render(text)
    metrics = Metrics(lambda: [("device_info", (d.name, d.id, d.resource, d.pci_bus_id, ""), 1) for d in built.devices])
    metrics.exposition()


# --- configuration ---------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["subsystem", "sysname", "attr", "property", "parent", "not", "any", "all", "driver", "devtype", "link", "tag",
     "exists", "regex", "glob", "include_self", "includeSelf", "", "x"]
)  # fmt: skip
MATCHERS = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT | st.sampled_from(["regex:(", "regex:.*", "not:a", "[", "*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXT, inner, max_size=3),
    max_leaves=8,
)


VALID = _values("subsystem", "sysname", "driver", "devtype").map(lambda one: {"subsystem": "usb", **one})


@given(MATCHERS | VALID, records())
def test_any_matcher_is_refused_or_matches(matcher: object, found: list[UdevDevice]) -> None:
    tree = {
        "apiVersion": "drabridge/v1alpha1",
        "kind": "AgentConfig",
        "resources": [{"name": "example.com/card", "match": [matcher], "id": ["{sysname}"]}],
    }
    try:
        text = json.dumps(tree, ensure_ascii=True)
        configuration: Config = load(text)
    except ConfigError:
        return
    builder = DeviceBuilder(configuration, MemoryHost())
    builder.build({item.syspath: item for item in found}, NOTHING, known_ids={}, held=lambda name: False)


# --- kubelet's answers -----------------------------------------------------------------------------------------------

DEVICES = st.builds(
    lambda name, ids: wire.ContainerDevices(resource_name=name, device_ids=ids),
    st.text(max_size=8),
    st.lists(st.text(max_size=8) | st.sampled_from(["zero", "GPU-1::3"]), max_size=4),
)
CONTAINERS = st.builds(
    lambda name, devices: wire.ContainerResources(name=name, devices=devices),
    st.text(max_size=5),
    st.lists(DEVICES, max_size=3),
)
LISTS = st.builds(
    lambda pods: wire.ListPodResourcesResponse(pod_resources=pods),
    st.lists(
        st.builds(
            lambda name, space, containers: wire.PodResources(name=name, namespace=space, containers=containers),
            st.text(max_size=5), st.text(max_size=5), st.lists(CONTAINERS, max_size=3),
        ),
        max_size=3,
    ),
)  # fmt: skip


@given(LISTS)
def test_every_unit_of_a_valid_list_counts_as_held(answer: wire.ListPodResourcesResponse) -> None:
    """A device that is overlooked could be freed; a List that breaks the contract is no List."""
    try:
        held = pods_of(snapshot(answer, SOCKET))
    except PodResourcesError:
        return
    told = {
        (entry.resource_name, unit)
        for pod in answer.pod_resources for container in pod.containers for entry in container.devices
        for unit in entry.device_ids
    }  # fmt: skip
    assert told <= held.keys()


@pytest.mark.parametrize("seed", range(3))
async def test_random_bytes_from_kubelet_are_an_error_not_an_empty_answer(seed: int) -> None:
    """Bytes that are no List must never look like a List without pods: that would free what pods hold."""
    rng = random.Random(seed)
    with short_directory() as root:

        async def resend(resources: object, seconds: float) -> bool:
            return False

        garbage = [rng.randbytes(rng.randrange(1, 200)) for _ in range(15)] + [b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 9]
        for data in garbage:
            with contextlib.suppress(DecodeError):
                wire.ListPodResourcesResponse.FromString(data)
                continue  # it happens to be a message
            async with kubelet({"List": says(data)}) as server:
                client = Client(server.path)
                witness = KubeletEvidence(client, root, resend, lambda: 0.0)
                seen = await asyncio.wait_for(witness.gather(Ledger()), HANG_SECONDS)
                assert seen.listed is None, data
                assert witness.error
                await client.close()


# --- our own files ---------------------------------------------------------------------------------------------------

FILES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"[" * 100_000, b'{"given":' * 50_000, b"\xff\xfe", b"null", b"[]", b'"x"', b'{"given": 3}']),
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["given", "namedBy", "kind", "devices"]), inner)
        ),
        max_leaves=6,
    ).map(lambda value: json.dumps(value).encode()),
)


@given(FILES)
def test_files_with_any_content_do_no_harm(data: bytes) -> None:
    with short_directory() as root:
        (root / FILE_NAME).write_bytes(data)
        assert isinstance(IdentityStore(root).load(SMALL).ids, dict)
        for name in ("other.json", "drabridge-card.json"):
            (root / name).write_bytes(data)
        store = CdiStore(root, "mem.example.com")
        store.regenerate(Family.LEGACY, [])
        assert (root / "other.json").exists()
