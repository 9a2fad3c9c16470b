"""Match rules: udev's vocabulary as YAML, compiled to a predicate when the file is loaded.

A new key also needs a member of ``Source`` (``predicate.py``) and its value of a device (``inventory/match.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

from msgspec import Struct, field

from drabridge.config import udev_rule
from drabridge.config.declaration import Model, OneOrMany, Parse
from drabridge.config.field_types import PatternsText, text_of
from drabridge.config.pattern import Patterns, check_id_width
from drabridge.config.predicate import All, Ancestor, Exists, Not, Predicate, Source, Test
from drabridge.config.predicate import Any as AnyOf
from drabridge.config.problems import Problem, did_you_mean, problems_of, unmet

# Keys with one value. DEVPATH is no key of ours: it is for udev rules (``udev_rule.py``).
_PLAIN_SOURCES = (Source.SUBSYSTEM, Source.DEVTYPE, Source.SYSNAME, Source.DRIVER, Source.DEVNODE, Source.DEVLINK,
                  Source.TAG)  # fmt: skip
_KEYED_SOURCES = (Source.ATTR, Source.PROPERTY, Source.LINK)


def _exists(value: Any) -> Exists:
    if isinstance(value, Exists):
        return value
    word, colon, key = text_of(value, "attr:NAME, property:NAME, link:NAME, driver, devnode or devtype").partition(":")
    plain = {Source.DRIVER, Source.DEVNODE, Source.DEVTYPE}
    if colon and key and word in _KEYED_SOURCES:
        _inside_sysfs(Source(word), key)
        return Exists(Source(word), key)
    if not colon and word in plain:
        return Exists(Source(word))
    raise unmet(
        "attr:NAME, property:NAME, link:NAME, driver, devnode or devtype", did_you_mean(word, (*plain, *_KEYED_SOURCES))
    )


def _inside_sysfs(source: Source, key: str) -> None:
    if source is not Source.PROPERTY and (key.startswith("/") or ".." in key.split("/")):
        raise unmet("a name inside the device's own sysfs directory", "use parent: for what an ancestor has", found=key)


def _rule(value: Any) -> UdevRule:
    if isinstance(value, UdevRule):
        return value
    text = text_of(value, "a udev rule")
    return UdevRule(text, udev_rule.parse(text))


class UdevRule(Struct, frozen=True):
    """A udev rule as it was pasted, and the predicate that it means."""

    text: str
    predicate: Predicate

    def to_data(self) -> str:
        """Return the rule as the file writes it."""
        return self.text


_EXISTS = {"type": "string", "pattern": "^((attr|property|link):.+|driver|devnode|devtype)$"}
_RULE = {"type": "string", "minLength": 1, "maxLength": udev_rule.RULE_MAX}
ExistsText = Annotated[Exists, Parse(_exists, _EXISTS)]
RuleText = Annotated[UdevRule, Parse(_rule, _RULE)]


class Matcher(Model, frozen=True):
    """Conditions on one udev device, in the words of `udevadm info -a`. All of them must hold.

    A value is a glob (`*`, `?`, `[a-z]`, alternatives with `|`), `{regex: "..."}` for a regular expression on the whole
    value, or a list of which one must match. A missing value matches nothing except an empty pattern `""`.
    """

    schema_rules: ClassVar[Mapping[str, Any]] = {"minProperties": 1}
    raw_keys = frozenset({"match"})  # udev's text: 0403, 1e10, on and 0x10de stay what the operator wrote

    subsystem: PatternsText | None = None
    """Subsystem: usb, pci, tty, block, net, misc."""
    devtype: PatternsText | None = None
    """Device type: usb_device, usb_interface, disk, partition."""
    sysname: PatternsText | None = None
    """Kernel name: ttyUSB0, 0000:3b:00.0 (KERNEL in udev rules)."""
    driver: PatternsText | None = None
    """Kernel driver that is bound to this very device."""
    devnode: PatternsText | None = None
    """The device's node: /dev/ttyUSB0."""
    devlink: PatternsText | None = None
    """One of the symbolic links that udev made: /dev/serial/by-id/..."""
    tag: PatternsText | None = None
    """One of the tags that udev rules gave."""
    attrs: Mapping[str, PatternsText] = field(default={}, name="attr")
    """sysfs attributes. Ids such as idVendor, vendor, class are compared without case and 0x."""
    properties: Mapping[str, PatternsText] = field(default={}, name="property")
    """udev properties (ENV in udev rules)."""
    links: Mapping[str, PatternsText] = field(default={}, name="link")
    """Symbolic links in the device's sysfs directory, by the last part of their target: driver, physfn, iommu_group."""
    exists: tuple[ExistsText, ...] = ()
    """Values that must be there, whatever they are: attr:NAME, property:NAME, link:NAME, driver, devnode, devtype."""
    parents: Annotated[tuple[Matcher, ...], OneOrMany()] = field(default=(), name="parent")
    """One single ancestor must satisfy this whole matcher; of a list, one matcher is enough."""
    nots: Annotated[tuple[Matcher, ...], OneOrMany()] = field(default=(), name="not")
    """None of these matchers may hold."""
    rule: RuleText | None = None
    """A udev rule's conditions as pasted, with udev's meaning: SUBSYSTEM=="usb", ATTRS{idVendor}=="0403"."""

    def _problems(self) -> Iterator[Problem]:
        if not self.predicate().parts:
            yield Problem("at least one condition", "an empty matcher would match every device of the node")
        for source, patterns in (
            (Source.ATTR, self.attrs),
            (Source.PROPERTY, self.properties),
            (Source.LINK, self.links),
        ):
            for key, value in patterns.items():
                if not key:
                    yield Problem("a name", path=(str(source), key))
                yield from problems_of(partial(_inside_sysfs, source), key, str(source), key)
                for item in value.items:
                    yield from problems_of(partial(check_id_width, key), item, str(source), key)

    def predicate(self) -> All:
        """Return the conditions as one conjunction, in the order of the documentation: cheap ones first."""
        tests: list[tuple[Source, str, Patterns]] = [
            (source, "", patterns) for source in _PLAIN_SOURCES if (patterns := getattr(self, str(source))) is not None
        ]
        for source, values in zip(_KEYED_SOURCES, (self.attrs, self.properties, self.links), strict=True):
            tests += [(source, key, patterns) for key, patterns in values.items()]
        parts: list[Predicate] = [Test(source, patterns, key) for source, key, patterns in tests]
        parts += self.exists
        if self.rule is not None:
            parts += self.rule.predicate.parts if isinstance(self.rule.predicate, All) else (self.rule.predicate,)
        if self.parents:
            parts.append(Ancestor(any_of(self.parents)))
        parts += [Not(matcher.predicate()) for matcher in self.nots]
        return All(tuple(parts))


def any_of(matchers: tuple[Matcher, ...]) -> Predicate:
    """Return the predicate of a list of matchers: one that holds is enough."""
    parts = tuple(matcher.predicate() for matcher in matchers)
    return parts[0] if len(parts) == 1 else AnyOf(parts)


Match = Annotated[tuple[Matcher, ...], OneOrMany()]
