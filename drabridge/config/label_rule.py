"""What one label of the Node is made of: the form in which configuration and GFD's labels come to ``offers``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from drabridge.config.template import Template

Count = Literal["devices", "replicas"]


def unchanged(text: str) -> str:
    """Return the text."""
    return text


class LabelRule(Struct, frozen=True):
    """How one label is made of the devices of ``resources``.

    ``convert`` gets the value that most of them have; "" leaves the label out.
    """

    name: str
    resources: tuple[str, ...]
    value: Template | None = None
    count: Count | None = None
    convert: Callable[[str], str] = unchanged


def part_of(number: int) -> Callable[[str], str]:
    """Return a function from ``9.0`` to its part of that number, from 1; "" where there is none."""

    def convert(text: str) -> str:
        parts = text.split(".")
        return parts[number - 1] if number <= len(parts) else ""

    return convert
