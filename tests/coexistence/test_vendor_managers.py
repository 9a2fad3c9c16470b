"""The signs of vendors' managers on a Node, and whose devices they pause."""

from __future__ import annotations

import pytest

from drabridge.coexistence.vendor_managers import AMD, NVIDIA, VendorManagers, signs
from drabridge.inventory.udev_device import UdevDevice
from drabridge.kube.node_labels import LabelsSeen, labels_of


def seen(labels: dict[str, str] | None = None, *taints: str) -> LabelsSeen:
    spec = {"taints": [{"key": key} for key in taints]}
    return labels_of({"metadata": {"uid": "u", "labels": labels or {}}, "spec": spec if taints else None})


@pytest.mark.parametrize(
    ("labels", "vendor"),
    [
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}, NVIDIA),
        ({"nvidia.com/gpu.deploy.dcgm": "custom_paused-for-mig-change"}, NVIDIA),
        ({"nvidia.com/mig.config.state": "pending"}, NVIDIA),
        ({"nvidia.com/mig.config.state": "rebooting"}, NVIDIA),
        ({"nvidia.com/vgpu.config.state": "pending"}, NVIDIA),
        ({"nvidia.com/gpu.deploy.device-plugin": "true", "nvidia.com/mig.config.state": "success"}, None),
        ({"nvidia.com/mig.config.state": "failed", "nvidia.com/mig.config": "pending"}, None),
        ({"example.com/gpu.deploy.x": "paused-for-driver-upgrade"}, None),
    ],
)
def test_a_label_pauses_nvidias_devices(labels: dict[str, str], vendor: str | None) -> None:
    found = dict(signs(seen(labels)))
    assert set(found) == ({vendor} if vendor else set())
    assert all(name in sign for name in labels for sign in found.values())


def test_amds_manager_taints_the_node() -> None:
    assert dict(signs(seen(None, "amd-dcm", "other"))) == {AMD: "the Node's taint amd-dcm"}
    assert dict(signs(seen(None, "other"))) == {}


def function(pci_id: str = "", vendor: str = "") -> UdevDevice:
    return UdevDevice("/sys/x", "0000:3b:00.0", "pci", properties={"PCI_ID": pci_id}, attributes={"vendor": vendor})


def test_devices_of_that_vendor_are_paused_whatever_they_hang_on() -> None:
    changes: list[int] = []
    managers = VendorManagers(lambda: changes.append(1))
    devices = {
        "gpu": function("10DE:2330"),
        "instance": UdevDevice("/sys/x/mig", "mig", above=function(vendor="0x10de")),
        "amd": function("1002:74A2"),
        "usb": UdevDevice("/sys/y", "1-1", "usb"),
    }
    assert managers.paused(devices, devices.get) == {}
    managers.take(seen({"nvidia.com/mig.config.state": "pending"}))
    assert set(managers.paused([*devices, "gone"], devices.get)) == {"gpu", "instance"}
    assert "mig.config.state=pending" in managers.notes[0]
    managers.take(seen({"nvidia.com/mig.config.state": "pending", "other": "label"}))
    assert changes == [1]
    managers.take(None)
    assert (managers.paused(devices, devices.get), managers.notes, changes) == ({}, [], [1, 1])
