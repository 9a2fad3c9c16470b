"""Evaluate match rules on a udev device, and explain every part of the answer. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import Struct

from drabridge.config.matcher import Matcher
from drabridge.config.pattern import WHITESPACE, is_hex_id
from drabridge.config.predicate import All, Ancestor, Any, Exists, Not, Predicate, Source, Test
from drabridge.inventory.udev_device import UdevDevice
from podresources.table import printable

SHOWN_MAX = 80  # characters of a value in an explanation at most


class Explanation(Struct, frozen=True):
    """A node of the tree that ``match --explain`` prints."""

    ok: bool
    label: str  # "attr.idVendor", "not", "parent", "all", "any"
    expected: str = ""
    found: str = ""
    parts: tuple[Explanation, ...] = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield one indented line for each node, with ✓ or ✗ first."""
        text = self.label
        if self.expected:
            text += f" {self.expected}"
        if self.found:
            text += f", found {self.found}"
        yield f"{'  ' * depth}{'✓' if self.ok else '✗'} {text}"
        for part in self.parts:
            yield from part.lines(depth + 1)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def matches(device: UdevDevice, matchers: Sequence[Matcher]) -> bool:
    """Whether one of the matchers holds for the device: the answer of ``explain(...).ok`` without the reasons."""
    return any(holds(matcher.predicate(), device) for matcher in matchers)


def explain(device: UdevDevice, matchers: Sequence[Matcher]) -> Explanation:
    """Explain why the device is matched or not. Every part of every matcher is evaluated."""
    parts = tuple(explain_predicate(matcher.predicate(), device) for matcher in matchers)
    return Explanation(any(part.ok for part in parts), "any", parts=parts)


def holds(predicate: Predicate, device: UdevDevice) -> bool:
    """Evaluate a predicate; stops at the first part that decides."""
    match predicate:
        case Test():
            return _test(predicate, device)
        case Exists(source, key):
            return bool(_values(source, key, device))
        case All(parts):
            return all(holds(part, device) for part in parts)
        case Any(parts):
            return any(holds(part, device) for part in parts)
        case Not(part):
            return not holds(part, device)
        case Ancestor(part, include_self):
            return any(holds(part, node) for node in (device.lineage() if include_self else device.ancestors()))


def explain_predicate(predicate: Predicate, device: UdevDevice, advise: bool = True) -> Explanation:
    """Evaluate a predicate and explain the result. ``advise``: also name the ancestor that has a missing value."""
    match predicate:
        case Test(source, patterns, key):
            values = _values(source, key, device)
            ok, found = _test(predicate, device), _shown(values)
            above = _owner_above(source, key, device) if advise and not (ok or values) else None
            if above is not None:
                found += f"; {above.subsystem or '?'} {_quoted(above.sysname)} above has one: write it under parent:"
            return Explanation(ok, predicate.label, f"is {patterns}", found)
        case Exists(source, key):
            values = _values(source, key, device)
            return Explanation(bool(values), f"exists {predicate.label}", "", _shown(values))
        case All(parts) | Any(parts):
            inner = tuple(explain_predicate(part, device, advise) for part in parts)
            every = isinstance(predicate, All)
            ok = (all if every else any)(part.ok for part in inner)
            return Explanation(ok, "all" if every else "any", parts=inner)
        case Not(part):
            reason = explain_predicate(part, device, False)
            return Explanation(not reason.ok, "not", parts=(reason,))
        case Ancestor(part, include_self):
            return _explain_ancestor(part, device, include_self)


def _owner_above(source: Source, key: str, device: UdevDevice) -> UdevDevice | None:
    """Return the nearest ancestor that has such an attribute or driver; None if none has it, or for other sources."""
    if source not in (Source.ATTR, Source.DRIVER):
        return None
    return next((node for node in device.ancestors() if _values(source, key, node)), None)


def _explain_ancestor(part: Predicate, device: UdevDevice, include_self: bool) -> Explanation:
    label = "the device or one ancestor" if include_self else "one ancestor"
    tried: list[Explanation] = []
    for node in device.lineage() if include_self else device.ancestors():
        reason = explain_predicate(part, node, advise=False)
        named = Explanation(reason.ok, f"{node.subsystem or '?'} {_quoted(node.sysname)}", parts=(reason,))
        if reason.ok:
            return Explanation(True, label, parts=(named,))
        tried.append(named)
    return Explanation(False, label, found="" if tried else "no ancestor", parts=tuple(tried))


def _test(test: Test, device: UdevDevice) -> bool:
    values = _values(test.source, test.key, device)
    if not values:
        return test.patterns.matches("") if test.missing_is_empty else test.patterns.accepts_missing
    hex_id = is_hex_id(test.source, test.key)
    if any(test.patterns.matches(value, hex_id=hex_id) for value in values):
        return True
    # sysfs values end with a newline, some with padding. As in udev, these count only if the pattern has them, too.
    if test.source is not Source.ATTR:
        return False
    return any(test.patterns.matches(value.rstrip(WHITESPACE), hex_id=hex_id) for value in values)


def _values(source: Source, key: str, device: UdevDevice) -> tuple[str, ...]:
    """Return the values that the device has. An empty attribute is a value, an empty name is not."""
    match source:
        case Source.SUBSYSTEM:
            value = device.subsystem or None
        case Source.ATTR:
            value = device.attributes.get(key)
        case Source.PROPERTY:
            value = device.properties.get(key)
        case Source.LINK:
            value = os.path.basename(device.links[key]) if key in device.links else None
        case Source.DEVLINK:
            return device.devlinks
        case Source.TAG:
            return device.tags
        case Source.DEVTYPE:
            value = device.devtype or None
        case Source.SYSNAME:
            value = device.sysname or None
        case Source.DRIVER:
            value = device.driver or None
        case Source.DEVPATH:
            value = device.devpath or None
        case Source.DEVNODE:
            value = device.devnode or None
        case _:
            assert_never(source)
    return () if value is None else (value,)


def _shown(values: tuple[str, ...]) -> str:
    return ", ".join(map(_quoted, values[:8])) + (", …" if len(values) > 8 else "") if values else "nothing"


def _quoted(value: str) -> str:
    """Return a value of hardware, quoted, as one printable line of bounded length."""
    text = value[: SHOWN_MAX + 1].rstrip("\n")
    text = printable(text)
    if len(value) > SHOWN_MAX:
        return f'"{text[:SHOWN_MAX]}…" ({len(value)} characters)'
    return f'"{text}"'
