"""A udev device tree in memory, for tests of matching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drabridge.inventory.udev_device import UdevDevice


def udev_device(
    sysname: str = "dev0",
    subsystem: str = "",
    devtype: str = "",
    driver: str = "",
    devnode: str = "",
    devlinks: Sequence[str] = (),
    tags: Sequence[str] = (),
    attrs: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    above: UdevDevice | None = None,
) -> UdevDevice:
    """One device below ``above``, in the words of ``udevadm info -a``."""
    return UdevDevice(
        syspath=f"{above.syspath if above else '/sys/devices'}/{sysname}",
        sysname=sysname,
        subsystem=subsystem,
        devtype=devtype,
        driver=driver,
        devnode=devnode,
        devlinks=tuple(devlinks),
        tags=tuple(tags),
        properties=properties or {},
        attributes=attrs or {},
        links=links or {},
        above=above,
    )


def usb_device(vendor: str, product: str, *, serial: str = "", port: str = "1-2", **more: str) -> UdevDevice:
    """A USB device below a controller on PCI."""
    controller = udev_device(
        "0000:00:14.0", "pci", driver="xhci_hcd", attrs={"vendor": "0x8086\n", "class": "0x0c0330\n"}
    )
    root_hub = {
        "idVendor": "1d6b\n",
        "idProduct": "0002\n",
        "serial": "0000:00:14.0\n",
        "devpath": "0\n",
    }  # as in the lab
    hub = udev_device("usb1", "usb", "usb_device", "usb", attrs=root_hub, above=controller)
    attrs = {"idVendor": f"{vendor}\n", "idProduct": f"{product}\n", "devpath": f"{port[2:]}\n", **more}
    properties = {"ID_PATH": f"pci-0000:00:14.0-usb-0:{port[2:]}"}
    if serial:
        attrs["serial"] = f"{serial}\n"
        properties["ID_SERIAL_SHORT"] = serial
    node = f"/dev/bus/usb/001/{port[2:]:0>3}"
    return udev_device(port, "usb", "usb_device", "usb", node, attrs=attrs, properties=properties, above=hub)


def usb_tty(vendor: str, product: str, *, serial: str = "", number: int = 0, port: str = "1-2") -> UdevDevice:
    """A serial adapter's tty: tty -> usb-serial port -> interface -> USB device."""
    device = usb_device(vendor, product, serial=serial, port=port)
    interface = udev_device(
        f"{port}:1.0", "usb", "usb_interface", "ftdi_sio", attrs={"bInterfaceNumber": "00\n"}, above=device
    )
    serial_port = udev_device(
        f"ttyUSB{number}", "usb-serial", driver="ftdi_sio", attrs={"port_number": "0\n"}, above=interface
    )
    properties = {**device.properties, "ID_USB_INTERFACE_NUM": "00", "ID_BUS": "usb"}
    return udev_device(
        f"ttyUSB{number}", "tty", "", "", f"/dev/ttyUSB{number}", properties=properties, above=serial_port
    )


def pci(address: str, vendor: str, device: str, cls: str, driver: str = "", **links: str) -> UdevDevice:
    """A PCI function below a root port."""
    port = udev_device("0000:3a:00.0", "pci", driver="pcieport", attrs={"vendor": "0x8086\n", "class": "0x060400\n"})
    attrs = {"vendor": f"{vendor}\n", "device": f"{device}\n", "class": f"{cls}\n"}
    return udev_device(
        address, "pci", "", driver, attrs=attrs, links=links, properties={"ID_PATH": f"pci-{address}"}, above=port
    )
