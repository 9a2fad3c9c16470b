"""What a match rule means: a small tree that structured matchers and pasted udev rules both become."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drabridge.config.pattern import Patterns


class Source(StrEnum):
    """Where a tested value comes from, in the words of the configuration."""

    SUBSYSTEM = "subsystem"
    DEVTYPE = "devtype"
    SYSNAME = "sysname"
    DRIVER = "driver"
    DEVPATH = "devpath"
    DEVNODE = "devnode"
    DEVLINK = "devlink"  # any of several
    TAG = "tag"  # any of several
    ATTR = "attr"
    PROPERTY = "property"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Test:
    """One value of one device against patterns. ``missing_is_empty``: udev rules test "" where nothing is there."""

    __test__ = False  # not pytest's

    source: Source
    patterns: Patterns
    key: str = ""  # name of the attribute, property or link
    missing_is_empty: bool = False

    @property
    def label(self) -> str:
        """As the configuration writes it: ``attr.idVendor``."""
        return f"{self.source}.{self.key}" if self.key else str(self.source)


@dataclass(frozen=True, slots=True)
class Exists:
    """The value is there, empty or not."""

    source: Source
    key: str = ""

    @property
    def label(self) -> str:
        return f"{self.source}:{self.key}" if self.key else str(self.source)


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds; true when there is none."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """One part holds; false when there is none."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: Predicate


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One single device, further up the tree, satisfies the whole part. udev's plural keys start at the device."""

    part: Predicate
    include_self: bool = False


Predicate = Test | Exists | All | Any | Not | Ancestor
