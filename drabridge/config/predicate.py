"""The meaning of a match rule as a small tree: matchers and pasted udev rules both become one."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from drabridge.config.pattern import Patterns


class Source(StrEnum):
    """Where a tested value comes from, in the words of the configuration."""

    SUBSYSTEM = "subsystem"
    DEVTYPE = "devtype"
    SYSNAME = "sysname"
    DRIVER = "driver"
    DEVPATH = "devpath"
    DEVNODE = "devnode"
    DEVLINK = "devlink"  # one of several
    TAG = "tag"  # one of several
    ATTR = "attr"
    PROPERTY = "property"
    LINK = "link"


class Test(Struct, frozen=True):
    """Compares one value of a device with patterns. ``missing_is_empty``: a missing value is "", as in udev rules."""

    __test__ = False  # not pytest's

    source: Source
    patterns: Patterns
    key: str = ""  # name of the attribute, property or link
    missing_is_empty: bool = False

    @property
    def label(self) -> str:
        """The value's name, as the configuration writes it: ``attr.idVendor``."""
        return f"{self.source}.{self.key}" if self.key else str(self.source)


class Exists(Struct, frozen=True):
    """The value is there, empty or not."""

    source: Source
    key: str = ""

    @property
    def label(self) -> str:
        return f"{self.source}:{self.key}" if self.key else str(self.source)

    def to_data(self) -> str:
        """Return the condition as the file writes it."""
        return self.label


class All(Struct, frozen=True):
    """Every part holds; true when there is none."""

    parts: tuple[Predicate, ...]


class Any(Struct, frozen=True):
    """One part holds; false when there is none."""

    parts: tuple[Predicate, ...]


class Not(Struct, frozen=True):
    """The part does not hold."""

    part: Predicate


class Ancestor(Struct, frozen=True):
    """One device further up the tree satisfies the whole part. ``include_self``: the device itself may, too (ATTRS)."""

    part: Predicate
    include_self: bool = False


Predicate = Test | Exists | All | Any | Not | Ancestor
