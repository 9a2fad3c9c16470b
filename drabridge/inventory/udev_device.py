"""A udev device, copied out at once: the rest of the inventory reads this instead of sysfs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct, field

from podresources.table import printable

VALUE_LIMIT_CHARS = 1024  # a serial has some 20; a thousand devices whose firmware says 4,096 cost 9 MiB
"""Longest value that is kept whole. A sysfs attribute is one page; anything longer is not an identity or a name."""

_EMPTY: Mapping[str, str] = MappingProxyType({})


def clean(value: bytes | str | None) -> str:
    """Make one printable line of any value of udev or sysfs: the same bytes always give the same text.

    Bytes that are not UTF-8 and control characters (newline included) become ``\\xNN``. Surrounding blanks and the
    trailing newline of a sysfs file are removed. A value beyond ``VALUE_LIMIT_CHARS`` is cut and ends in a digest of
    the whole, so that two different long values stay different.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    whole = value
    if len(value) > VALUE_LIMIT_CHARS:
        value = value[: VALUE_LIMIT_CHARS - 64]
    text = value.decode("utf-8", "backslashreplace").strip(" \t\r\n\0")
    text = printable(text)
    if len(whole) > VALUE_LIMIT_CHARS:
        text = f"{text[: VALUE_LIMIT_CHARS - 64]}...sha256:{hashlib.sha256(whole).hexdigest()[:16]}"
    return text


class UdevDevice(Struct, frozen=True):
    """A udev device as it was when it was read. Absent strings are ``""``, as in ``udevadm info``.

    ``attributes``: only the sysfs attributes of the ``UdevScope``: reading all of them is slow, and some reads have
    side effects. ``links``: the scope's symbolic links, resolved to absolute paths.
    """

    syspath: str
    sysname: str
    subsystem: str = ""
    devtype: str = ""
    driver: str = ""
    devnode: str = ""
    devnum: tuple[int, int] | None = None
    devlinks: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    attributes: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    links: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    initialized: bool = True  # udevd has written its database entry, or there is no database to wait for
    above: UdevDevice | None = None  # the next device up the tree
    seen_at: str = ""  # a path that exists as long as the device does; empty: its syspath

    def ancestors(self) -> Iterator[UdevDevice]:
        """Yield the parents, nearest first; the device itself is not among them."""
        node = self.above
        while node is not None:
            yield node
            node = node.above

    def lineage(self) -> Iterator[UdevDevice]:
        """Yield the device, then its ancestors, nearest first."""
        yield self
        yield from self.ancestors()

    @property
    def devpath(self) -> str:
        """The path below /sys: ``/devices/pci0000:00/...``."""
        return self.syspath.removeprefix("/sys")
