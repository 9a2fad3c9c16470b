"""Values of templates that come from a device's ancestors."""

from __future__ import annotations

import pytest

from drabridge.config.template import Field
from drabridge.inventory.template_values import MatchedDevice
from drabridge.inventory.udev_device import UdevDevice
from tests.support.hardware import MemoryHost
from tests.support.udev_tree import usb_device, usb_tty


def of_parent(device: UdevDevice, name: str) -> str | None:
    value = MatchedDevice(device).lookup(MemoryHost())(Field("attr", name, of_parent=True))
    return value and value.strip()


@pytest.mark.parametrize("device", [usb_tty("0403", "6001"), usb_device("0403", "6001")])
def test_the_serial_of_a_hub_is_not_the_serial_of_what_is_plugged_into_it(device: UdevDevice) -> None:
    assert of_parent(device, "serial") is None


def test_an_ancestors_value_is_the_nearest_that_is_no_hubs() -> None:
    assert of_parent(usb_tty("0403", "6001", serial="A5"), "serial") == "A5"
    assert of_parent(usb_tty("0403", "6001", port="1-4"), "devpath") == "4"
    assert of_parent(usb_tty("0403", "6001"), "vendor") == "0x8086", "of its controller, on PCI"
