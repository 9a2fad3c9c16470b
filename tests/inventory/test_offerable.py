"""What ``drabridge suggest --all`` lists: a machine's shelf, and not its furniture."""

from __future__ import annotations

import pytest

from drabridge.config import load
from drabridge.inventory.match import matches
from drabridge.inventory.offerable import offerable, row
from drabridge.inventory.suggest import suggest
from drabridge.inventory.udev_device import UdevDevice
from tests.support.configurations import HEAD
from tests.support.udev_tree import pci, udev_device

XHCI = pci("0000:00:14.0", "0x8086", "0xa36d", "0x0c0330", "xhci_hcd")
VIRTUAL = udev_device("virtual")


def usb(name: str, product: str = "", serial: str = "", above: UdevDevice = XHCI) -> UdevDevice:
    attrs = {"idVendor": "1234", "idProduct": name[-1] * 4, "product": product, "serial": serial, "devpath": name[2:]}
    return udev_device(name, "usb", "usb_device", "usb", f"/dev/bus/usb/{name}", attrs=attrs, above=above)


HUB = usb("1-1", "Hub")
EMPTY = usb("1-2", "Hub")
RADIO = usb("1-1.2", "Radio", "R1", HUB)
SERIAL = usb("1-1.3", "Quad UART", "Q7", HUB)
PORTS = [udev_device(f"ttyUSB{n}", "tty", devnode=f"/dev/ttyUSB{n}", above=SERIAL) for n in range(2)]
CAMERA = usb("1-1.4", "Camera", "", HUB)
FILMS = [
    udev_device(f"video{n}", "video4linux", devnode=f"/dev/video{n}", attrs={"index": f"{n}"}, above=CAMERA)
    for n in range(2)
]
DISK = udev_device("sda", "block", "disk", devnode="/dev/sda", attrs={"wwid": "naa.5000"}, above=XHCI)
MACHINE = [
    *(EMPTY, udev_device("1-2:1.0", "usb", "usb_interface", "hub", above=EMPTY)),
    *(
        XHCI,
        HUB,
        udev_device("1-1:1.0", "usb", "usb_interface", "hub", above=HUB),
        RADIO,
        SERIAL,
        *PORTS,
        CAMERA,
        *FILMS,
    ),
    *(DISK, udev_device("sda1", "block", "partition", devnode="/dev/sda1", above=DISK)),
    udev_device("event3", "input", devnode="/dev/input/event3", above=RADIO),
    udev_device("loop0", "block", "disk", devnode="/dev/loop0", above=VIRTUAL),
    udev_device("null", "mem", devnode="/dev/null", above=VIRTUAL),
    udev_device("kvm", "misc", devnode="/dev/kvm", above=VIRTUAL),
    udev_device("can0", "net", attrs={"type": "280"}, above=usb("2-1", "CAN", "C1")),
    pci("0000:3b:00.2", "0x15b3", "0x101e", "0x020000", "vfio-pci"),
    udev_device("card0", "sound", above=XHCI),
    udev_device("controlC0", "sound", devnode="/dev/snd/controlC0", above=udev_device("card0", "sound", above=XHCI)),
]
DEVICES = {device.syspath: device for device in MACHINE}


def test_hardware_is_listed_once_and_what_a_host_needs_for_itself_is_not() -> None:
    listed = {device.devnode or device.sysname for device in offerable(DEVICES)}
    assert listed == {
        *("/dev/bus/usb/1-1.2", "/dev/ttyUSB0", "/dev/ttyUSB1", "/dev/video0", "/dev/sda", "/dev/kvm"),
        *("can0", "0000:3b:00.2", "card0"),
    }


@pytest.mark.parametrize("device", offerable(DEVICES), ids=lambda device: device.sysname)
def test_each_of_them_has_an_entry_that_matches_it(device: UdevDevice) -> None:
    (resource,) = load(f"{HEAD}resources:\n{suggest(device, DEVICES.values())}").resources
    assert matches(device, resource.match)
    assert row(device, DEVICES.values())["resource"] == resource.name


@pytest.mark.parametrize(
    ("sysname", "how"),
    [("sda", "wwid"), ("1-1.2", "serial"), ("kvm", "name"), ("video0", "kind"), ("ttyUSB0", "kernel's name")],
)
def test_it_says_what_an_entry_rests_on(sysname: str, how: str) -> None:
    (device,) = (one for one in MACHINE if one.sysname == sysname)
    assert row(device, DEVICES.values())["matched_by"] == how
