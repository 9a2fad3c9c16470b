"""Tell names and values of the kernel's device classes apart from what a bus says. Pure.

The kernel numbers the devices of a class in the order of their arrival: ttyUSB0, nvme0n1, sdb, can0. A device of a
class (tty, video4linux, net) has no ids of its own either, nor a driver: the USB device or PCI function above has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from drabridge.config.matcher import Matcher
from drabridge.config.pattern import Glob
from drabridge.config.predicate import All, Predicate, Source, Test

NUMBERED = {
    "tty": r"tty(USB|ACM|XRUSB|MXUSB|HS|R)\d",  # ttyS0 and ttyAMA0 are at fixed places of a board
    "video4linux": r"(video|vbi|radio|swradio|v4l-subdev|v4l-touch)\d",
    "nvme": r"nvme\d",
    "block": r"(nvme\d|sr\d|(sd|vd|xvd)[a-z])",
    "net": r"(eth|wlan|wwan|can|ib|usb)\d",
    "sound": r"(card|controlC|pcmC|midiC|hwC)\d",
    "hidraw": r"hidraw\d",
    "input": r"(input|event|js|mouse)\d",
    "drm": r"(card|renderD)\d",
    "scsi_generic": r"sg\d",
    "usbmisc": r"(lp|hiddev|cdc-wdm|usbtmc)\d",
    "media": r"media\d",
    "dvb": r"dvb\d",
    "ptp": r"ptp\d",
}
"""subsystem -> names with a number, or letter, that the next device to arrive may have after the next boot."""

_CLASSES = frozenset(NUMBERED) - {"media"} | {"misc", "infiniband", "infiniband_verbs", "infiniband_mad", "bsg", "rtc"}
_OF_A_BUS = {
    **dict.fromkeys(("idVendor", "idProduct", "bcdDevice", "manufacturer"), "USB device"),
    **dict.fromkeys(("bInterfaceNumber", "bInterfaceClass", "bInterfaceProtocol"), "USB interface"),
    **dict.fromkeys(("vendor", "device", "class", "subsystem_vendor", "subsystem_device"), "PCI function"),
}
_MAGIC = re.compile(r"[*?\[\\|]")


def subsystems(matcher: Matcher) -> frozenset[str]:
    """The subsystems that a matcher names; empty when it names none, or by a pattern."""
    texts = _globs(matcher.predicate(), Source.SUBSYSTEM)
    words = [word for text in texts for word in text.split("|")]
    return frozenset() if any(map(_MAGIC.search, words)) else frozenset(words)


def numbered_names(matcher: Matcher) -> tuple[str, ...]:
    """The patterns for kernel names in which a number stands that the kernel chose."""
    return tuple(name for name in _globs(matcher.predicate(), Source.SYSNAME) if _is_numbered(matcher, _head(name)))


def names_are_numbered(matcher: Matcher) -> bool:
    """Whether the names of devices that a matcher finds have such a number, whatever its patterns leave open."""
    heads = [_head(name) for name in _globs(matcher.predicate(), Source.SYSNAME)] or [""]
    if not any(heads):
        return bool(subsystems(matcher) & NUMBERED.keys())
    return any(_is_numbered(matcher, head + end) for head in heads for end in ("", "0", "a"))


def above(matcher: Matcher) -> tuple[tuple[str, str], ...]:
    """What a matcher asks a device of a class for that only a device above it has: the key, and what that device is."""
    found = subsystems(matcher)
    if not found or not found <= _CLASSES:
        return ()
    tests = [test for test in _tests(matcher.predicate()) if not test.patterns.accepts_missing]
    keyed = [
        (test.label, _OF_A_BUS[test.key]) for test in tests if test.source is Source.ATTR and test.key in _OF_A_BUS
    ]
    return (*keyed, *((test.label, "device") for test in tests if test.source is Source.DRIVER))


def _is_numbered(matcher: Matcher, text: str) -> bool:
    return any(re.match(NUMBERED[name], text) for name in subsystems(matcher) & NUMBERED.keys())


def _head(glob: str) -> str:
    """The literal beginning of a pattern."""
    return _MAGIC.split(glob)[0]


def _globs(predicate: Predicate, source: Source) -> list[str]:
    return [
        item.text
        for test in _tests(predicate)
        if test.source is source
        for item in test.patterns.items
        if isinstance(item, Glob)
    ]


def _tests(predicate: Predicate) -> Iterable[Test]:
    """What the device itself must have: not its ancestors, and nothing that is excluded."""
    parts = predicate.parts if isinstance(predicate, All) else ()
    return [part for part in parts if isinstance(part, Test)]
