"""What an operator reads when the configuration cannot be meant as it stands: every fault, each with its place."""

from __future__ import annotations

from msgspec import Struct

from drabridge.errors import ConfigError

SHOWN_MAX = 120  # characters of a value that a message quotes


class Fault(Struct, frozen=True, order=True):
    """One fault of a configuration file; sorts by place."""

    file: str
    line: int  # from 1; 0 when the file could not be read at all
    column: int
    path: str  # resources[1].match[0].attr.idVendor
    found: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        what = f"found {self.found}, expected {self.expected}"
        return ": ".join(filter(None, (where, self.path, what))) + (f". {self.hint}" if self.hint else "")


class ConfigErrors(ConfigError):
    """Every fault of a configuration at once."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def path_text(path: tuple[str | int, ...]) -> str:
    """``("resources", 1, "match")`` -> ``resources[1].match``; keys that are no words are quoted."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            word = part if part.replace("_", "a").isalnum() else f'"{shorten(part)}"'
            out += f".{word}" if out else word
    return out


def printable(text: str) -> str:
    """In one line that a terminal shows as it is."""
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode("ascii")


def shorten(text: str) -> str:
    """Hostile or long text in one printable line of bounded length."""
    shown = printable(text[: SHOWN_MAX + 1])
    return shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}… ({len(text)} characters)"
