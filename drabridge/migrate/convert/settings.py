"""What the caller of a conversion decides, and what the conversion has to say."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from drabridge.migrate.convert.labels import Published


class Device(Struct, frozen=True):
    """How devices of an extended resource are claimed: the DeviceClass, and what selectors can ask for.

    ``shares``: how many of the resource one device counts as. ``claims_share``: several claims may hold one device.
    ``selectors``: CEL that each of its claims has.
    """

    device_class: str
    published: Published | None = None  # None: node selectors stay as they are
    shares: int = 1
    claims_share: bool = False
    selectors: tuple[str, ...] = ()


class Settings(Struct, frozen=True):
    """Which resources are converted, and which kinds have pod templates beyond those that are known."""

    devices: Mapping[str, Device]
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Level(Enum):
    """How much a finding matters."""

    NOTE = "note"  # converted, or no matter for it: read it
    LEFT = "left"  # stays on limits: do what the hint says
    ERROR = "error"  # the file could not be read


class Finding(Struct, frozen=True):
    """One thing that a person must know, with its place: ``hint`` says what to do next."""

    level: Level
    line: int  # from 1; 0: the whole file
    subject: str
    message: str
    hint: str = ""
    file: str = ""

    def __str__(self) -> str:
        where = ":".join(part for part in (self.file, str(self.line or "")) if part)
        said = f"{self.level.value}: {where}: " if where else f"{self.level.value}: "
        said += f"{self.subject}: {self.message}" if self.subject else self.message
        return f"{said}. {self.hint[:1].upper()}{self.hint[1:]}" if self.hint else said
