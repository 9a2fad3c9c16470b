"""Read the match keys of a pasted udev rule, with udev's own meaning (systemd, src/udev/udev-rules.c)."""

from __future__ import annotations

import re
from typing import NamedTuple

from drabridge.config.pattern import Patterns
from drabridge.config.predicate import All, Ancestor, Not, Predicate, Source, Test
from drabridge.config.problems import did_you_mean, unmet

RULE_MAX = 4096

# udev's name -> (what it tests, whether the name takes {…}, whether it searches the device and its ancestors)
_KEYS: dict[str, tuple[Source, bool, bool]] = {
    "KERNEL": (Source.SYSNAME, False, False),
    "KERNELS": (Source.SYSNAME, False, True),
    "SUBSYSTEM": (Source.SUBSYSTEM, False, False),
    "SUBSYSTEMS": (Source.SUBSYSTEM, False, True),
    "DRIVER": (Source.DRIVER, False, False),
    "DRIVERS": (Source.DRIVER, False, True),
    "ATTR": (Source.ATTR, True, False),
    "ATTRS": (Source.ATTR, True, True),
    "TAG": (Source.TAG, False, False),
    "TAGS": (Source.TAG, False, True),
    "ENV": (Source.PROPERTY, True, False),
    "DEVPATH": (Source.DEVPATH, False, False),
    "SYMLINK": (Source.DEVLINK, False, False),
}
_EVENT_KEYS = {
    "ACTION": "a rule here selects devices, not events: leave it out",
    "NAME": "it is decided while udev handles the event: use KERNEL or ENV{...}",
    "TEST": "use exists:, for example exists: [attr:power/control]",
    "PROGRAM": "no program is run to match devices",
    "RESULT": "no program is run to match devices",
    "IMPORT": "match what the import has set: ENV{...}",
    "CONST": "it says nothing about a device",
    "SYSCTL": "it says nothing about a device",
}
_TERM = re.compile(r'\s*([A-Za-z]+)(?:\{([^{}"]*)\})?\s*([=!+:-]?=)\s*(i|e)?"((?:[^"\\]|\\.)*)"\s*')


class _Term(NamedTuple):
    key: str
    argument: str
    operator: str
    value: str


def parse(text: str) -> Predicate:
    """Return the predicate of ``SUBSYSTEM=="usb", ATTRS{idVendor}=="0403"``. Raises Problems for other rules.

    All terms must hold. Terms with plural keys must all hold for one device: the device itself or one ancestor.
    """
    if len(text) > RULE_MAX:
        raise unmet(f"a rule of at most {RULE_MAX} characters", found=f"{len(text)} characters")
    own: list[Predicate] = []
    upward: list[Predicate] = []
    for term in _terms(text):
        test, searches_upward = _predicate(term)
        (upward if searches_upward else own).append(test)
    if upward:
        own.append(Ancestor(All(tuple(upward)), include_self=True))
    return All(tuple(own))


def _terms(text: str) -> list[_Term]:
    terms: list[_Term] = []
    at = 0
    while True:
        found = _TERM.match(text, at)
        if not found:
            raise unmet(
                'terms like KEY=="value", separated by commas',
                "every value needs double quotes",
                found=text[at : at + 60],
            )
        key, argument, operator, prefix, value = found.groups()
        if prefix:
            raise unmet(f'a plain "…" after {key}', f'{prefix}"…" is not supported', found=found.group().strip())
        terms.append(_Term(key, argument or "", operator, value.replace('\\"', '"')))
        at = found.end()
        if at == len(text):
            return terms
        if text[at] == ",":
            at += 1
            if not text[at:].strip():
                return terms


def _predicate(term: _Term) -> tuple[Predicate, bool]:
    shown = f"{term.key}{{{term.argument}}}" if term.argument else term.key
    if term.operator not in {"==", "!="}:
        raise unmet(
            "== or !=", f"{shown}{term.operator} assigns: only conditions belong here", found=f"{shown}{term.operator}"
        )
    if term.key in _EVENT_KEYS:
        raise unmet("a key that describes the device", _EVENT_KEYS[term.key], found=shown)
    if term.key not in _KEYS:
        hint = did_you_mean(term.key, _KEYS) or f"known: {', '.join(_KEYS)}"
        raise unmet("a match key of udev", hint, found=shown)
    source, takes_argument, searches_upward = _KEYS[term.key]
    if takes_argument != bool(term.argument):
        raise unmet(f"{term.key}{{NAME}}" if takes_argument else f"{term.key} without {{}}", found=shown)
    if source is Source.ATTR and (term.argument.startswith(("/", "[")) or ".." in term.argument.split("/")):
        raise unmet("the name of an attribute of the device", "paths into /sys are not followed", found=shown)
    patterns = Patterns.of(_with_dev(term.value) if source is Source.DEVLINK else term.value)
    # A missing attribute fails ==; everything else that is missing is the empty string.
    missing_is_empty = source is not Source.ATTR
    test = Test(source, patterns, term.argument, missing_is_empty)
    return (test if term.operator == "==" else Not(test)), searches_upward


def _with_dev(value: str) -> str:
    """Return the same alternatives as whole paths: udev compares SYMLINK without /dev/."""
    return "|".join(f"/dev/{alternative}" for alternative in value.split("|"))
