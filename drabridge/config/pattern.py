"""Patterns for udev's strings: shell globs with udev's rules, or an explicit regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    something else than what is written.
    """

    text: str
    _alternatives: tuple[re.Pattern[str], ...] = field(repr=False, compare=False)
    _hex_alternatives: tuple[re.Pattern[str], ...] = field(repr=False, compare=False)

    @classmethod
    def compile(cls, text: str) -> Glob:
        """Compile a glob. Raises Problems for one that udevd would read otherwise than its author."""
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
        """Patterns from globs. Raises Problems."""
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
        """Return them as the file has them."""
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
    """A regular expression without backtracking between stars: each ``*`` takes the nearest fit, atomically.

    The nearest fit of one literal run never excludes a match of the rest. So atomic groups lose no match, and the cost
    is linear in the value for every star.
    """
    runs: list[str] = [""]
    for piece in _pieces(glob):
        if piece == "*":
            if len(runs) == 1 or runs[-1]:
                runs.append("")
        else:
            runs[-1] += piece
    first, *rest = runs
    if not rest:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{run})" for run in rest[:-1])
    return re.compile(f"{first}{middle}.*{rest[-1]}", re.DOTALL)


def _pieces(glob: str) -> Iterator[str]:
    """``*`` for a star, else a regular expression for one character."""
    at = 0
    while at < len(glob):
        char = glob[at]
        if char == "*":
            yield "*"
        elif char == "?":
            yield "."
        elif char == "\\" and at + 1 < len(glob):
            at += 1
            yield re.escape(glob[at])
        elif char == "[":
            end = _bracket_end(glob, at)
            yield _bracket(glob[at + 1 : end])
            at = end
        elif char == "\\":
            raise unmet("a character after the backslash", found=glob)
        else:
            yield re.escape(char)
        at += 1


def _bracket_end(glob: str, at: int) -> int:
    """Where the bracket that opens at ``at`` closes; a ``]`` in first place is a member."""
    first = at + 2 if glob[at + 1 : at + 2] in {"!", "^"} else at + 1
    end = glob.find("]", first + 1)
    if end == -1:
        raise unmet("a bracket that closes", "write \\[ for a bracket that is meant literally", found=glob)
    return end


def _bracket(members: str) -> str:
    negated = members[0] in "!^"
    if negated:
        members = members[1:]
    out: list[str] = []
    at = 0
    while at < len(members):
        low = members[at]
        if low == "\\":
            raise unmet("no backslash inside brackets", "use {regex: ...}", found=f"[{members}]")
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            high = members[at + 2]
            if low > high:
                raise unmet("a range from low to high", found=f"[{members}]")
            out.append(f"{re.escape(low)}-{re.escape(high)}")
            at += 3
        else:
            out.append(re.escape(low))
            at += 1
    return f"[{'^' if negated else ''}{''.join(out)}]"
