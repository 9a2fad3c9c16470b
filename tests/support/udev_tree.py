"""A udev device tree in memory, for tests of matching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class View:
    """One device; ``above`` is its parent. Written with the words of ``udevadm info -a``."""

    sysname: str = "dev0"
    subsystem: str = ""
    devtype: str = ""
    driver: str = ""
    devnode: str = ""
    devlinks: Sequence[str] = ()
    tags: Sequence[str] = ()
    attrs: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    above: View | None = None

    @property
    def devpath(self) -> str:
        return (self.above.devpath if self.above else "/devices") + "/" + self.sysname

    def attr(self, name: str) -> str | None:
        return self.attrs.get(name)

    def property(self, name: str) -> str | None:
        return self.properties.get(name)

    def link(self, name: str) -> str | None:
        return self.links.get(name)

    def parent(self) -> View | None:
        return self.above


def usb_device(vendor: str, product: str, *, serial: str = "", port: str = "1-2", **more: str) -> View:
    """A USB device below a controller on PCI."""
    controller = View("0000:00:14.0", "pci", driver="xhci_hcd", attrs={"vendor": "0x8086\n", "class": "0x0c0330\n"})
    hub = View(
        "usb1", "usb", "usb_device", "usb", attrs={"idVendor": "1d6b\n", "idProduct": "0002\n"}, above=controller
    )
    attrs = {"idVendor": f"{vendor}\n", "idProduct": f"{product}\n", **more}
    properties = {"ID_PATH": f"pci-0000:00:14.0-usb-0:{port[2:]}"}
    if serial:
        attrs["serial"] = f"{serial}\n"
        properties["ID_SERIAL_SHORT"] = serial
    node = f"/dev/bus/usb/001/{port[2:]:0>3}"
    return View(port, "usb", "usb_device", "usb", node, attrs=attrs, properties=properties, above=hub)


def usb_tty(vendor: str, product: str, *, serial: str = "", number: int = 0, port: str = "1-2") -> View:
    """A serial adapter's tty: tty -> usb-serial port -> interface -> USB device."""
    device = usb_device(vendor, product, serial=serial, port=port)
    interface = View(
        f"{port}:1.0", "usb", "usb_interface", "ftdi_sio", attrs={"bInterfaceNumber": "00\n"}, above=device
    )
    serial_port = View(
        f"ttyUSB{number}", "usb-serial", driver="ftdi_sio", attrs={"port_number": "0\n"}, above=interface
    )
    properties = {**device.properties, "ID_USB_INTERFACE_NUM": "00", "ID_BUS": "usb"}
    return View(f"ttyUSB{number}", "tty", "", "", f"/dev/ttyUSB{number}", properties=properties, above=serial_port)


def pci(address: str, vendor: str, device: str, cls: str, driver: str = "", **links: str) -> View:
    """A PCI function below a root port."""
    port = View("0000:3a:00.0", "pci", driver="pcieport", attrs={"vendor": "0x8086\n", "class": "0x060400\n"})
    attrs = {"vendor": f"{vendor}\n", "device": f"{device}\n", "class": f"{cls}\n"}
    return View(
        address, "pci", "", driver, attrs=attrs, links=links, properties={"ID_PATH": f"pci-{address}"}, above=port
    )
