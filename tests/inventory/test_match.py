"""Match rules with udev's semantics, on the cases that other tools get wrong."""

from __future__ import annotations

import pytest

from drabridge.inventory.match import explain, matches
from drabridge.inventory.udev_device import UdevDevice
from tests.support.configurations import matchers, rule
from tests.support.udev_tree import pci, udev_device, usb_device, usb_tty

FTDI = usb_tty("0403", "6001", serial="A50285BI")
LINKED = udev_device("ttyUSB0", devlinks=("/dev/serial/by-id/a", "/dev/serial/by-path/b"), tags=("systemd", "uaccess"))


@pytest.mark.parametrize(
    ("view", "match", "expected"),
    [
        # AND inside a matcher, OR across matchers, OR inside a list
        (FTDI, "[{subsystem: tty, sysname: ttyUSB0}]", True),
        (FTDI, "[{subsystem: tty, sysname: ttyUSB1}]", False),
        (FTDI, "[{subsystem: net}, {subsystem: tty}]", True),
        (FTDI, "{sysname: [ttyS0, 'ttyUSB*']}", True),
        # several properties must all hold: libudev's own enumerate ORs them
        (FTDI, "{property: {ID_BUS: usb, ID_SERIAL_SHORT: nope}}", False),
        (FTDI, "{property: {ID_BUS: usb, ID_SERIAL_SHORT: A50285BI}}", True),
        # raw text: no quotes needed for what YAML would turn into numbers and booleans
        (FTDI, "{parent: {attr: {idVendor: 0403}}}", True),
        (usb_device("0bda", "2838"), "{attr: {idProduct: 2838}}", True),
        (usb_device("1e10", "4000"), "{attr: {idVendor: 1e10}}", True),
        (pci("0000:01:00.0", "0x10de", "0x2330", "0x030200"), "{attr: {vendor: 0x10de}}", True),
        (pci("0000:01:00.0", "0x10de", "0x2330", "0x030200"), "{attr: {vendor: 10DE, class: 0302*}}", True),
        (udev_device(properties={"A": "on"}), "{property: {A: on}}", True),
        (udev_device(properties={"A": "0123"}), "{property: {A: 0123}}", True),
        (udev_device(properties={"A": "12:30"}), "{property: {A: 12:30}}", True),
        # case matters in everything that is not an id
        (udev_device(attrs={"serial": "ABC"}), "{attr: {serial: abc}}", False),
        (udev_device(attrs={"serial": "0xAB"}), "{attr: {serial: ab}}", False),
        # a parent is one single ancestor
        (FTDI, "{parent: {attr: {idVendor: 0403, idProduct: 6001}}}", True),
        (FTDI, "{parent: {attr: {idVendor: 0403, idProduct: '0002'}}}", False),  # the hub has 0002
        (FTDI, "{parent: {attr: {idVendor: 0403}, parent: {driver: xhci_hcd}}}", True),
        (FTDI, "{parent: {driver: xhci_hcd, parent: {attr: {idVendor: 0403}}}}", False),
        (FTDI, "{parent: [{driver: nope}, {driver: ftdi_sio}]}", True),
        (FTDI, "{parent: {subsystem: tty}}", False),  # the device is not its own parent
        # not
        (FTDI, "{subsystem: tty, not: {sysname: ttyUSB0}}", False),
        (FTDI, "{subsystem: tty, not: {sysname: ttyUSB1}}", True),
        (FTDI, "{subsystem: tty, not: [{sysname: x}, {sysname: 'tty*'}]}", False),
        (FTDI, "{not: {not: {subsystem: tty}}}", True),
        (FTDI, "{not: {parent: {attr: {idVendor: 10c4}}}}", True),
        # exists, and what is missing
        (FTDI, "{exists: ['property:ID_BUS', devnode]}", True),
        (FTDI, "{exists: ['attr:nope']}", False),
        (FTDI, "{property: {NOPE: '*'}}", False),
        (FTDI, "{property: {NOPE: ''}}", True),
        (FTDI, "{attr: {NOPE: '?*|'}}", True),
        (udev_device(attrs={"empty": "\n"}), "{attr: {empty: ''}}", True),
        (udev_device(attrs={"empty": "\n"}), "{exists: ['attr:empty']}", True),
        (udev_device(attrs={"empty": ""}), "{exists: ['attr:empty']}", True),
        (udev_device(attrs={"empty": ""}), "{attr: {empty: '*'}}", True),
        (udev_device(), "{attr: {empty: '*'}}", False),
        (pci("0000:3b:00.2", "0x15b3", "0x101e", "0x020000", "mlx5_core", physfn="0000:3b:00.0"),
         "{exists: ['link:physfn'], link: {physfn: '0000:3b:*'}}", True),
        # any link, any tag
        (LINKED, "{devlink: /dev/serial/by-path/*}", True),
        (LINKED, "{tag: uaccess}", True),
        (LINKED, "{not: {tag: uaccess}}", False),
        (LINKED, "{tag: [seat, power]}", False),
        # regular expressions match the whole value and see it exactly
        (FTDI, "{sysname: {regex: 'ttyUSB[0-9]+'}}", True),
        (FTDI, "{sysname: {regex: 'tty'}}", False),
        (FTDI, "{sysname: [{regex: 'x'}, 'ttyUSB?']}", True),
        # trailing white space of sysfs counts only when the pattern has it
        (udev_device(attrs={"model": "Disk    \n"}), "{attr: {model: Disk}}", True),
        (udev_device(attrs={"model": "Disk    \n"}), "{attr: {model: 'Disk  *'}}", True),
        (udev_device(attrs={"model": "Disk\n"}), "{attr: {model: 'Disk '}}", False),
        (udev_device(properties={"P": "Disk "}), "{property: {P: Disk}}", False),
    ],
)  # fmt: skip
def test_structured(view: UdevDevice, match: str, expected: bool) -> None:
    assert matches(view, matchers(match)) is expected
    assert explain(view, matchers(match)).ok is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('SUBSYSTEM=="tty", ATTRS{idVendor}=="0403"', True),
        ('SUBSYSTEM=="tty", ATTRS{idVendor}=="0403", ATTRS{idProduct}=="6001",', True),
        ('ATTRS{idVendor}=="0403", ATTRS{idProduct}=="0002"', False),  # two different ancestors
        ('SUBSYSTEMS=="usb", DRIVERS=="ftdi_sio"', True),  # the interface
        ('SUBSYSTEMS=="usb", DRIVERS=="xhci_hcd"', False),  # a PCI device
        ('SUBSYSTEMS=="tty"', True),  # the plural keys start at the device itself
        ('KERNEL!="ttyUSB*"', False),  # a glob in both directions
        ('KERNEL=="ttyACM*|ttyUSB*"', True),
        ('ENV{ID_BUS}=="usb", ENV{ID_SERIAL_SHORT}=="?*"', True),
        ('ENV{NOPE}=="?*"', False),
        ('ENV{NOPE}=="*"', True),  # a missing property is the empty string
        ('ENV{NOPE}!="x"', True),
        ('ENV{NOPE}==""', True),
        ('ATTR{nope}=="*"', False),  # a missing attribute is not
        ('ATTR{nope}!="x"', True),
        ('DRIVER==""', True),
        ('DEVPATH=="*/1-2/*"', True),
        ('KERNEL=="ttyUSB0" , SUBSYSTEM == "tty"', True),
    ],
)
def test_udev_rules(text: str, expected: bool) -> None:
    assert matches(FTDI, rule(text)) is expected
    assert explain(FTDI, rule(text)).ok is expected


def test_rule_on_links_and_tags() -> None:
    assert matches(LINKED, rule('SYMLINK=="serial/by-id/*", TAG=="uaccess", TAG!="seat"'))
    assert not matches(LINKED, rule('SYMLINK=="by-id/*"'))
    assert not matches(LINKED, rule('TAG!="uaccess"'))


def test_explanation_shows_every_predicate() -> None:
    tree = explain(FTDI, matchers("{subsystem: tty, sysname: 'ttyS*', parent: {attr: {idVendor: 0403}}}"))
    text = str(tree)
    assert not tree.ok
    assert '✓ subsystem is "tty", found "tty"' in text
    assert '✗ sysname is "ttyS*", found "ttyUSB0"' in text
    assert '✓ attr.idVendor is "0403", found "0403"' in text
    assert "1-2" in text  # the ancestor that satisfied it


def test_explanation_of_a_missing_parent_lists_those_tried() -> None:
    text = str(explain(FTDI, matchers("{parent: {attr: {idVendor: 10c4}}}")))
    assert "write it under" not in text
    assert text.count("✗ attr.idVendor") == 5
    assert "no ancestor" in str(explain(udev_device(), matchers("{parent: {driver: x}}")))


@pytest.mark.parametrize("value", ["\udcff\udcfe", "a\nb\x00c", "x" * (1 << 20), "\u202egpj.exe", "|*?[", ""])
def test_hostile_values_never_break_anything(value: str) -> None:
    view = udev_device(value, "usb", attrs={"serial": value, "idVendor": value}, properties={"A": value}, tags=(value,))
    rules = matchers("[{attr: {serial: 'a*z', idVendor: 0403}}, {sysname: {regex: '(a|b|.)*z'}}, {tag: q}]")
    tree = explain(view, rules)
    assert not tree.ok
    assert not matches(view, rules)
    for line in str(tree).splitlines():
        assert line.strip().isprintable()
        assert len(line) < 700
        line.encode()


@pytest.mark.parametrize(
    ("match", "advised"),
    [
        ("{attr: {idVendor: 0403}}", True),
        ("{driver: usb}", True),
        ("{attr: {NOPE: x}}", False),  # nobody has it
        ("{property: {ID_VENDOR_FROM_DATABASE: x}}", False),
        ("{attr: {idVendor: '0403|'}}", False),  # it holds
        ("{not: {attr: {idVendor: 0403}}}", False),
        ("{parent: {subsystem: usb-serial, attr: {idVendor: 0403}}}", False),
    ],
)
def test_what_only_an_ancestor_has_is_said_to_go_under_parent(match: str, advised: bool) -> None:
    assert ("above has one: write it under parent:" in str(explain(FTDI, matchers(match)))) is advised
