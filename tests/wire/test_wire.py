"""The protocols are kubelet's: names, numbers and bytes written by hand, so that a slip in proto/ is noticed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from deviceplugin.wire import v1beta1_pb2 as dp
from drabridge.wire import dra_v1_pb2 as dra
from drabridge.wire import dra_v1beta1_pb2 as drabeta
from drabridge.wire import health_v1_pb2 as health
from drabridge.wire import health_v1alpha1_pb2 as healthalpha
from drabridge.wire import pluginregistration_pb2 as registration
from podresources.wire import v1_pb2 as podresources
from tests.support.waiting import HANG_SECONDS

SERVICES = {
    dp: {
        "v1beta1.Registration": ["Register"],
        "v1beta1.DevicePlugin": [
            "GetDevicePluginOptions",
            "ListAndWatch",
            "GetPreferredAllocation",
            "Allocate",
            "PreStartContainer",
        ],
    },
    registration: {"pluginregistration.Registration": ["GetInfo", "NotifyRegistrationStatus"]},
    dra: {"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": ["NodePrepareResources", "NodeUnprepareResources"]},
    drabeta: {"k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin": ["NodePrepareResources", "NodeUnprepareResources"]},
    health: {"v1.DRAResourceHealth": ["NodeWatchResources"]},
    healthalpha: {"v1alpha1.DRAResourceHealth": ["NodeWatchResources"]},
    podresources: {"v1.PodResourcesLister": ["List", "GetAllocatableResources", "Get"]},
}

# message -> {field: number}; map entries and empty messages are left to the golden bytes below
_DRA_FIELDS = {
    "Claim": {"namespace": 1, "uid": 2, "name": 3},
    "NodePrepareResourcesRequest": {"claims": 1},
    "NodePrepareResourcesResponse": {"claims": 1},
    "NodePrepareResourceResponse": {"devices": 1, "error": 2},
    "NodeUnprepareResourcesRequest": {"claims": 1},
    "NodeUnprepareResourcesResponse": {"claims": 1},
    "NodeUnprepareResourceResponse": {"error": 1},
}
_DEVICE = {"request_names": 1, "pool_name": 2, "device_name": 3, "cdi_device_ids": 4}
_HEALTH_FIELDS = {
    "NodeWatchResourcesRequest": {},
    "NodeWatchResourcesResponse": {"devices": 1},
    "DeviceIdentifier": {"pool_name": 1, "device_name": 2},
    "DeviceHealth": {
        "device": 1,
        "health": 2,
        "last_updated_time": 3,
        "health_check_timeout_seconds": 4,
        "message": 5,
    },
}
FIELDS: dict[Any, dict[str, dict[str, int]]] = {
    dp: {
        "Empty": {},
        "DevicePluginOptions": {"pre_start_required": 1, "get_preferred_allocation_available": 2},
        "RegisterRequest": {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4},
        "ListAndWatchResponse": {"devices": 1},
        "Device": {"ID": 1, "health": 2, "topology": 3},
        "TopologyInfo": {"nodes": 1},
        "NUMANode": {"ID": 1},
        "PreferredAllocationRequest": {"container_requests": 1},
        "ContainerPreferredAllocationRequest": {
            "available_deviceIDs": 1,
            "must_include_deviceIDs": 2,
            "allocation_size": 3,
        },
        "PreferredAllocationResponse": {"container_responses": 1},
        "ContainerPreferredAllocationResponse": {"deviceIDs": 1},
        "AllocateRequest": {"container_requests": 1},
        "ContainerAllocateRequest": {"devices_ids": 1},
        "AllocateResponse": {"container_responses": 1},
        "ContainerAllocateResponse": {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
        "Mount": {"container_path": 1, "host_path": 2, "read_only": 3},
        "DeviceSpec": {"container_path": 1, "host_path": 2, "permissions": 3},
        "CDIDevice": {"name": 1},
        "PreStartContainerRequest": {"devices_ids": 1},
        "PreStartContainerResponse": {},
    },
    registration: {
        "InfoRequest": {},
        "PluginInfo": {"type": 1, "name": 2, "endpoint": 3, "supported_versions": 4},
        "RegistrationStatus": {"plugin_registered": 1, "error": 2},
        "RegistrationStatusResponse": {},
    },
    dra: {**_DRA_FIELDS, "Device": {**_DEVICE, "share_id": 5}},
    drabeta: {**_DRA_FIELDS, "Device": _DEVICE},
    health: _HEALTH_FIELDS,
    healthalpha: _HEALTH_FIELDS,
    podresources: {
        "ListPodResourcesRequest": {},
        "ListPodResourcesResponse": {"pod_resources": 1},
        "AllocatableResourcesRequest": {},
        "AllocatableResourcesResponse": {"devices": 1, "cpu_ids": 2, "memory": 3},
        "GetPodResourcesRequest": {"pod_name": 1, "pod_namespace": 2},
        "GetPodResourcesResponse": {"pod_resources": 1},
        "PodResources": {"name": 1, "namespace": 2, "containers": 3, "cpu_ids": 4, "memory": 5},
        "ContainerResources": {"name": 1, "devices": 2, "cpu_ids": 3, "memory": 4, "dynamic_resources": 5},
        "ContainerDevices": {"resource_name": 1, "device_ids": 2, "topology": 3},
        "ContainerMemory": {"memory_type": 1, "size": 2, "topology": 3},
        "TopologyInfo": {"nodes": 1},
        "NUMANode": {"ID": 1},
        "DynamicResource": {"claim_name": 2, "claim_namespace": 3, "claim_resources": 4},
        "ClaimResource": {"cdi_devices": 1, "driver_name": 2, "pool_name": 3, "device_name": 4, "share_id": 5},
        "CDIDevice": {"name": 1},
    },
}


@pytest.mark.parametrize("module", SERVICES, ids=lambda module: module.DESCRIPTOR.name)
def test_services_and_methods(module: Any) -> None:
    services = module.DESCRIPTOR.services_by_name.values()
    assert {s.full_name: [m.name for m in s.methods] for s in services} == SERVICES[module]
    streaming = {m.name for s in services for m in s.methods if m.server_streaming}
    assert streaming <= {"ListAndWatch", "NodeWatchResources"}


@pytest.mark.parametrize("module", FIELDS, ids=lambda module: module.DESCRIPTOR.name)
def test_field_numbers(module: Any) -> None:
    messages = module.DESCRIPTOR.message_types_by_name
    assert {name: {f.name: f.number for f in m.fields} for name, m in messages.items()} == FIELDS[module]


def test_health_enum() -> None:
    for module in (health, healthalpha):
        assert dict(module.HealthStatus.items()) == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}


def test_share_id_and_class_name_keep_their_places() -> None:
    device = dra.DESCRIPTOR.message_types_by_name["Device"].fields_by_name["share_id"]
    claim_resource = podresources.DESCRIPTOR.message_types_by_name["ClaimResource"].fields_by_name["share_id"]
    assert device.has_presence
    assert claim_resource.has_presence
    assert not dra.Device().HasField("share_id")


GOLDEN = [
    (
        dp.RegisterRequest(
            version="v1beta1",
            endpoint="a.sock",
            resource_name="x.io/g",
            options=dp.DevicePluginOptions(get_preferred_allocation_available=True),
        ),
        "0a 07 76 31 62 65 74 61 31  12 06 61 2e 73 6f 63 6b  1a 06 78 2e 69 6f 2f 67  22 02 10 01",
    ),
    (
        dp.ListAndWatchResponse(
            devices=[
                dp.Device(ID="d", health="Healthy", topology=dp.TopologyInfo(nodes=[dp.NUMANode(ID=1)])),
                dp.Device(ID="e", health="Unhealthy"),
            ]
        ),
        "0a 12 0a 01 64 12 07 48 65 61 6c 74 68 79 1a 04 0a 02 08 01  0a 0e 0a 01 65 12 09 55 6e 68 65 61 6c 74 68 79",
    ),
    # the trap: present, but without nodes, is two bytes on the wire and hides the device from GetAllocatableResources
    (dp.Device(ID="d", topology=dp.TopologyInfo()), "0a 01 64 1a 00"),
    (
        dp.ContainerAllocateResponse(
            envs={"A": "b"},
            mounts=[dp.Mount(container_path="/c", host_path="/h", read_only=True)],
            devices=[dp.DeviceSpec(container_path="/c", host_path="/h", permissions="rw")],
            annotations={"k": "v"},
            cdi_devices=[dp.CDIDevice(name="v/c=n")],
        ),
        "0a 06 0a 01 41 12 01 62  12 0a 0a 02 2f 63 12 02 2f 68 18 01  1a 0c 0a 02 2f 63 12 02 2f 68 1a 02 72 77"
        " 22 06 0a 01 6b 12 01 76  2a 07 0a 05 76 2f 63 3d 6e",
    ),
    (
        registration.PluginInfo(
            type="DRAPlugin", name="d.io", endpoint="/s", supported_versions=["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        ),
        "0a 09 44 52 41 50 6c 75 67 69 6e  12 04 64 2e 69 6f  1a 02 2f 73  22 0c 76 31 2e 44 52 41 50 6c 75 67 69 6e"
        " 22 11 76 31 62 65 74 61 31 2e 44 52 41 50 6c 75 67 69 6e",
    ),
    (dra.Claim(namespace="n", uid="u", name="m"), "0a 01 6e 12 01 75 1a 01 6d"),
    (
        dra.NodePrepareResourcesResponse(
            claims={
                "u": dra.NodePrepareResourceResponse(
                    devices=[
                        dra.Device(
                            request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s"
                        )
                    ]
                )
            }
        ),
        "0a 16 0a 01 75 12 11 0a 0f 0a 01 72 12 01 70 1a 01 64 22 01 63 2a 01 73",
    ),
    (dra.NodeUnprepareResourcesResponse(claims={"u": dra.NodeUnprepareResourceResponse()}), "0a 05 0a 01 75 12 00"),
    (
        health.DeviceHealth(
            device=health.DeviceIdentifier(pool_name="p", device_name="d"),
            health=health.UNHEALTHY,
            last_updated_time=1,
            health_check_timeout_seconds=30,
            message="m",
        ),
        "0a 06 0a 01 70 12 01 64 10 02 18 01 20 1e 2a 01 6d",
    ),
    (
        podresources.DynamicResource(
            claim_name="c",
            claim_namespace="n",
            claim_resources=[podresources.ClaimResource(driver_name="d", pool_name="p", device_name="x", share_id="")],
        ),
        "12 01 63 1a 01 6e 22 0b 12 01 64 1a 01 70 22 01 78 2a 00",
    ),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(message: Any, golden: str) -> None:
    encoded = message.SerializeToString(deterministic=True)
    assert encoded.hex(" ") == bytes.fromhex(golden).hex(" ")
    assert type(message).FromString(bytes.fromhex(golden)) == message


def test_a_newer_kubelet_may_send_more() -> None:
    """Unknown fields are kept, not refused: field 15 of a Claim, then the known ones."""
    claim = dra.Claim.FromString(bytes.fromhex("7a 01 7a 0a 01 6e 12 01 75"))
    assert (claim.namespace, claim.uid) == ("n", "u")
    assert bytes.fromhex("7a 01 7a") in claim.SerializeToString()


def test_all_contracts_live_in_one_process_without_warnings() -> None:
    modules = (
        "deviceplugin.wire.v1beta1_pb2_grpc",
        "drabridge.wire.dra_v1_pb2_grpc",
        "drabridge.wire.dra_v1beta1_pb2_grpc",
        "drabridge.wire.health_v1_pb2_grpc",
        "drabridge.wire.health_v1alpha1_pb2_grpc",
        "drabridge.wire.pluginregistration_pb2_grpc",
        "podresources.wire.v1_pb2_grpc",
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {', '.join(modules)}"],
        capture_output=True,
        text=True,
        timeout=5 * HANG_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
