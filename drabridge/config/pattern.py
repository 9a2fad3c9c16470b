"""Patterns for udev's strings: shell globs with udev's rules, or an explicit regular expression."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from typing import Any

from drabridge.config.problems import unmet
from drabridge.config.regex import Regex

GLOB_MAX = 1024  # characters; udevd's own limit for a whole rule line is 16 KiB, no single value needs more than this

WHITESPACE = " \t\r\n"  # systemd's, not Python's, which knows many more

# Ids that the kernel and hwdb write in hexadecimal, some with 0x and some without, in either case.
HEX_ATTRIBUTES = frozenset({
    "idVendor", "idProduct", "bcdDevice", "bDeviceClass", "bDeviceSubClass", "bDeviceProtocol",
    "bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol",
    "vendor", "device", "subsystem_vendor", "subsystem_device", "class", "revision",
})  # fmt: skip
HEX_PROPERTIES = frozenset({
    "ID_VENDOR_ID", "ID_MODEL_ID", "ID_USB_VENDOR_ID", "ID_USB_MODEL_ID", "PCI_ID", "PCI_SUBSYS_ID", "PCI_CLASS",
})  # fmt: skip
_FOUR_DIGITS = frozenset({"idVendor", "idProduct", "ID_VENDOR_ID", "ID_MODEL_ID", "ID_USB_VENDOR_ID",
                          "ID_USB_MODEL_ID"})  # fmt: skip
_HEX_PREFIX = re.compile(r"^0[xX]")
_HEX = re.compile(r"[0-9a-fA-F]+")
_UNCLEAR_BRACKET = re.compile(r"\[[!^]?\]?[^\]]*\|[^\]]*\]|\[[^\]]*\[[.:=]")  # [a|b], [[:digit:]], [[.x.]]
_MAGIC = re.compile(r"[*?\[\\|]")
_PIECE = re.compile(r"\\.|\[[!^]?+\]?+[^\]]*\]|.", re.DOTALL)  # a quoted character, a bracket, a star or any character
_RANGE = re.compile(r"(.)-(.)", re.DOTALL)


def is_hex_id(kind: str, key: str) -> bool:
    """Whether values of this attribute or property are hexadecimal ids, compared without case and 0x."""
    return key in (HEX_ATTRIBUTES if kind == "attr" else HEX_PROPERTIES if kind == "property" else ())


def _canonical_hex(text: str) -> str:
    return _HEX_PREFIX.sub("", text.rstrip(WHITESPACE)).lower()


@dataclass(frozen=True)
class Glob:
    """``*``, ``?``, ``[a-z]``, ``[!a-z]``, backslash quotes, ``|`` separates alternatives; the whole value must match.

    As in udevd (udev-rules.c token_match_string, fnmatch(3) without flags), ``*`` also matches slashes and leading
    dots. ``|`` and POSIX classes inside brackets are refused, and brackets that never close: udevd silently reads
    them differently from what is meant.
    """

    text: str
    _alternatives: tuple[re.Pattern[str], ...] = field(repr=False, compare=False)
    _hex_alternatives: tuple[re.Pattern[str], ...] = field(repr=False, compare=False)

    @classmethod
    def compile(cls, text: str) -> Glob:
        """Compile a glob. Raises Problems for one that udevd would understand differently from its author."""
        if len(text) > GLOB_MAX:
            raise unmet(f"a pattern of at most {GLOB_MAX} characters", found=f"{len(text)} characters")
        alternatives = _split(text)
        return cls(
            text, tuple(map(_translate, alternatives)), tuple(_translate(_canonical_hex(a)) for a in alternatives)
        )

    @property
    def accepts_missing(self) -> bool:
        """Whether an alternative is empty: it matches a missing value as well as an empty one."""
        return "" in self.text.split("|")

    def matches(self, value: str, *, hex_id: bool = False) -> bool:
        """Whether one alternative matches the whole value."""
        if hex_id:
            value = _canonical_hex(value)
        return any(pattern.fullmatch(value) for pattern in (self._hex_alternatives if hex_id else self._alternatives))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Patterns:
    """One or more patterns; one that matches is enough."""

    items: tuple[Glob | Regex, ...]

    @classmethod
    def of(cls, *globs: str) -> Patterns:
        """Return patterns from globs. Raises Problems."""
        return cls(tuple(map(Glob.compile, globs)))

    @property
    def accepts_missing(self) -> bool:
        """Whether a missing value matches: only an explicit empty pattern matches it."""
        return any(isinstance(item, Glob) and item.accepts_missing for item in self.items)

    def matches(self, value: str, *, hex_id: bool = False) -> bool:
        """Whether any pattern matches the whole value. Regular expressions see the value exactly as it is."""
        return any(
            item.matches(value, hex_id=hex_id) if isinstance(item, Glob) else item.matches(value) for item in self.items
        )

    def to_data(self) -> Any:
        """Return the patterns as the file writes them."""
        data = [item.text if isinstance(item, Glob) else {"regex": item.text} for item in self.items]
        return data[0] if len(data) == 1 else data

    def __str__(self) -> str:
        return " or ".join(f'"{item}"' if isinstance(item, Glob) else str(item) for item in self.items)


def check_id_width(key: str, pattern: Glob | Regex) -> None:
    """Refuse a USB id that is not four hex digits: it could never match. Raises Problems."""
    if key not in _FOUR_DIGITS or isinstance(pattern, Regex):
        return
    for alternative in pattern.text.split("|"):
        digits = _canonical_hex(alternative)
        if _MAGIC.search(alternative) or not digits:
            continue
        if not _HEX.fullmatch(digits) or len(digits) != 4:
            raise unmet(
                "four hexadecimal digits",
                "where another tool rewrites this file, quote the id: YAML reads 0403 as the number 259",
                found=alternative,
            )


def _split(text: str) -> list[str]:
    if found := _UNCLEAR_BRACKET.search(text):
        raise unmet("brackets with single characters and ranges", "use {regex: ...} for more", found=found.group())
    if "\\|" in text:
        raise unmet("no escaped |", "| always separates alternatives; use {regex: ...} to match one", found=text)
    return text.split("|")


def _translate(glob: str) -> re.Pattern[str]:
    """Compile one alternative by Python's fnmatch, whose stars do not backtrack; it lacks backslashes and ``[^``."""
    pieces: list[str] = []
    for found in _PIECE.finditer(glob):
        piece = found.group()
        if piece == "[":
            raise unmet("a bracket that closes", "write \\[ for a bracket that is meant literally", found=glob)
        if piece == "\\":
            raise unmet("a character after the backslash", found=glob)
        if piece.startswith("\\"):
            pieces.append(f"[{piece[1]}]" if piece[1] in "*?[" else piece[1])
        elif len(piece) > 1:
            pieces.append(_bracket(piece))
        else:
            pieces.append(piece)
    return re.compile(fnmatch.translate("".join(pieces)))


def _bracket(text: str) -> str:
    """Return a bracket as fnmatch reads it."""
    if "\\" in text:
        raise unmet("no backslash inside brackets", "use {regex: ...}", found=text)
    negated = text[1] in "!^"
    members = text[2 if negated else 1 : -1]
    for low, high in _RANGE.findall(members):
        if low > high:
            raise unmet("a range from low to high", found=text)
    return f"[{'!' if negated else ''}{members}]"
