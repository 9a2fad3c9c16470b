"""Evaluate match rules on a udev device, and explain every part of the answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from drabridge.config.matcher import Matcher
from drabridge.config.pattern import WHITESPACE, is_hex_id
from drabridge.config.predicate import All, Ancestor, Any, Exists, Not, Predicate, Source, Test

SHOWN_MAX = 80  # characters of a value in an explanation
ANCESTORS_MAX = 64  # real trees are at most about 20 deep; a loop among parents must end


class UdevView(Protocol):
    """What matching needs to know of one udev device. Missing text is ``""``; nothing here raises."""

    @property
    def sysname(self) -> str: ...

    @property
    def devpath(self) -> str: ...  # "/devices/pci0000:00/..."

    @property
    def subsystem(self) -> str: ...

    @property
    def devtype(self) -> str: ...

    @property
    def driver(self) -> str: ...

    @property
    def devnode(self) -> str: ...

    @property
    def devlinks(self) -> Iterable[str]: ...

    @property
    def tags(self) -> Iterable[str]: ...

    def attr(self, name: str) -> str | None:
        """A sysfs attribute, as read; None when there is none or it cannot be read."""

    def property(self, name: str) -> str | None:
        """A udev property; None when it is not set."""

    def link(self, name: str) -> str | None:
        """Last part of the target of a symbolic link in the device's sysfs directory; None when there is none."""

    def parent(self) -> UdevView | None:
        """The next device up the tree."""


class Explanation(Struct, frozen=True):
    """A node of the tree that ``match --explain`` prints."""

    ok: bool
    label: str  # "attr.idVendor", "not", "parent", "all", "any"
    expected: str = ""
    found: str = ""
    parts: tuple[Explanation, ...] = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        """One line for each node, indented; ✓ or ✗ first."""
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


def matches(view: UdevView, matchers: Sequence[Matcher]) -> bool:
    """Whether one of the matchers holds for the device: the answer of ``explain(...).ok`` without the reasons."""
    return any(holds(matcher.predicate(), view) for matcher in matchers)


def explain(view: UdevView, matchers: Sequence[Matcher]) -> Explanation:
    """Explain why the device is matched or not. Every part of every matcher is evaluated."""
    parts = tuple(explain_predicate(matcher.predicate(), view) for matcher in matchers)
    return Explanation(any(part.ok for part in parts), "any", parts=parts)


def holds(predicate: Predicate, view: UdevView) -> bool:
    """Evaluate a predicate; stops at the first part that decides."""
    match predicate:
        case Test():
            return _test(predicate, view)
        case Exists(source, key):
            return bool(_values(source, key, view))
        case All(parts):
            return all(holds(part, view) for part in parts)
        case Any(parts):
            return any(holds(part, view) for part in parts)
        case Not(part):
            return not holds(part, view)
        case Ancestor(part, include_self):
            return any(holds(part, device) for device in _upward(view, include_self))


def explain_predicate(predicate: Predicate, view: UdevView) -> Explanation:
    """Evaluate a predicate and say why it holds or not."""
    match predicate:
        case Test(source, patterns, key):
            values = _values(source, key, view)
            return Explanation(_test(predicate, view), predicate.label, f"is {patterns}", _shown(values))
        case Exists(source, key):
            values = _values(source, key, view)
            return Explanation(bool(values), f"exists {predicate.label}", "", _shown(values))
        case All(parts) | Any(parts):
            inner = tuple(explain_predicate(part, view) for part in parts)
            every = isinstance(predicate, All)
            ok = (all if every else any)(part.ok for part in inner)
            return Explanation(ok, "all" if every else "any", parts=inner)
        case Not(part):
            reason = explain_predicate(part, view)
            return Explanation(not reason.ok, "not", parts=(reason,))
        case Ancestor(part, include_self):
            return _explain_ancestor(part, view, include_self)


def _explain_ancestor(part: Predicate, view: UdevView, include_self: bool) -> Explanation:
    label = "the device or one ancestor" if include_self else "one ancestor"
    tried: list[Explanation] = []
    for device in _upward(view, include_self):
        reason = explain_predicate(part, device)
        named = Explanation(reason.ok, f"{device.subsystem or '?'} {_quoted(device.sysname)}", parts=(reason,))
        if reason.ok:
            return Explanation(True, label, parts=(named,))
        tried.append(named)
    return Explanation(False, label, found="" if tried else "no ancestor", parts=tuple(tried))


def _upward(view: UdevView, include_self: bool) -> Iterator[UdevView]:
    device = view if include_self else view.parent()
    for _ in range(ANCESTORS_MAX):
        if device is None:
            return
        yield device
        device = device.parent()


def _test(test: Test, view: UdevView) -> bool:
    values = _values(test.source, test.key, view)
    if not values:
        return test.patterns.matches("") if test.missing_is_empty else test.patterns.accepts_missing
    hex_id = is_hex_id(test.source, test.key)
    if any(test.patterns.matches(value, hex_id=hex_id) for value in values):
        return True
    # sysfs values end with a newline, some with padding; as in udev, it counts only if a pattern has it too
    if test.source is not Source.ATTR:
        return False
    return any(test.patterns.matches(value.rstrip(WHITESPACE), hex_id=hex_id) for value in values)


_PLAIN = {
    Source.SUBSYSTEM: lambda view: view.subsystem,
    Source.DEVTYPE: lambda view: view.devtype,
    Source.SYSNAME: lambda view: view.sysname,
    Source.DRIVER: lambda view: view.driver,
    Source.DEVPATH: lambda view: view.devpath,
    Source.DEVNODE: lambda view: view.devnode,
}
_SEVERAL = {
    Source.DEVLINK: lambda view: view.devlinks,
    Source.TAG: lambda view: view.tags,
}
_KEYED = {
    Source.ATTR: lambda view, key: view.attr(key),
    Source.PROPERTY: lambda view, key: view.property(key),
    Source.LINK: lambda view, key: view.link(key),
}


def _values(source: Source, key: str, view: UdevView) -> tuple[str, ...]:
    """The values that the device has. An empty attribute is a value, an empty name is not."""
    if source in _KEYED:
        value = _KEYED[source](view, key)
        return () if value is None else (value,)
    if source in _SEVERAL:
        return tuple(sorted(_SEVERAL[source](view)))
    value = _PLAIN[source](view)
    return (value,) if value else ()


def _shown(values: tuple[str, ...]) -> str:
    return ", ".join(map(_quoted, values[:8])) + (", …" if len(values) > 8 else "") if values else "nothing"


def _quoted(value: str) -> str:
    """Any value of hardware, as one printable line of bounded length."""
    text = value[: SHOWN_MAX + 1].rstrip("\n")
    if not text.isprintable():
        text = text.encode("unicode_escape", "backslashreplace").decode("ascii")
    if len(value) > SHOWN_MAX:
        return f'"{text[:SHOWN_MAX]}…" ({len(value)} characters)'
    return f'"{text}"'
