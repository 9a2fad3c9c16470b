"""Change a good input at a few places, so that most of what follows it is still read."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Sequence

from tests.fuzz.reader import Form
from tests.support.strange_objects import RAW, TEXTS, Strange

WORDS = (
    *(text.encode(errors="replace") for text in TEXTS), b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"*", b"&a", b"*a",
    b"!!python/name:os.system", b"!!binary x", b"? [1]", b"{{ .x }}", b"|", b">-", b"---", b"...", b"%YAML 9.9", b"\t",
    b"<<: *a", b"- ", b"0x1F", b"1_000", b"0o17", b"2001-01-01", b"~", b".inf", b"=", b"'", b'"', b"[", b"}", b"#",
    b"regex:(a+)+$",
)  # fmt: skip


MOST_BYTES = 4 << 20  # no reader is given more


class Mutator:
    """Makes new inputs of ``seeds``; ``rng`` decides all of it."""

    def __init__(self, rng: random.Random, seeds: Sequence[bytes], form: Form) -> None:
        self._rng = rng
        self._seeds = seeds
        self._strange = Strange(0)
        self._strange.rng = rng
        ways: dict[Form, Callable[[bytes], bytes]] = {
            Form.JSON: self._json,
            Form.LINES: lambda data: self._of_lines(data, self._json),
            Form.LEDGER: lambda data: self._of_lines(data, self._signed),
            Form.YAML: self._text,
            Form.MESSAGE: self._call,
            Form.HTTP: self._text,
        }
        self._way = ways[form]

    def one(self, data: bytes) -> bytes:
        """Return an input like this one: mostly a changed one, now and then torn, or with other bytes."""
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            data = self._way(data)
        if self._rng.randrange(8) == 0:
            data = self._bytes(data)
        return data[:MOST_BYTES]

    def _bytes(self, data: bytes) -> bytes:
        at = self._rng.randrange(len(data) + 1)
        how = self._rng.randrange(4)
        if how == 0:
            return data[:at]
        if how == 1:
            return data[:at] + self._rng.choice(WORDS) + data[at:]
        if how == 2:
            return data[:at] + data[at + self._rng.randrange(20) :]
        return data[:at] + bytes([self._rng.randrange(256)]) + data[at + 1 :]

    def _json(self, data: bytes) -> bytes:
        try:
            sound = json.loads(data)
        except (ValueError, RecursionError):
            return self._bytes(data)
        return self._strange.json(sound) if isinstance(sound, dict | list) and sound else self._rng.choice(RAW)

    def _signed(self, line: bytes) -> bytes:
        body = self._json(line[9:])
        return b"%08x %b" % (zlib.crc32(body), body) if self._rng.randrange(8) else self._bytes(line)

    def _of_lines(self, data: bytes, change: Callable[[bytes], bytes]) -> bytes:
        lines = data.split(b"\n")
        at = self._rng.randrange(len(lines))
        how = self._rng.randrange(8)
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(self._rng.randrange(len(lines) + 1), lines[at])
        else:
            lines[at] = change(lines[at]).replace(b"\n", b" ") if lines[at] else lines[at]
        return b"\n".join(lines)

    def _text(self, data: bytes) -> bytes:
        """Lines and their values: left out, said twice, moved, indented otherwise, replaced, or those of another."""
        lines = data.split(b"\n")
        at = self._rng.randrange(len(lines))
        line = lines[at]
        how = self._rng.randrange(9)
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(at, line)
        elif how == 2:
            lines.insert(self._rng.randrange(len(lines) + 1), lines.pop(at))
        elif how == 3:
            spaces = len(line) - len(line.lstrip(b" "))
            lines[at] = b" " * max(0, spaces + self._rng.choice((-4, -2, -1, 1, 2, 4))) + line.lstrip(b" ")
        elif how == 4:
            other = self._rng.choice(self._seeds).split(b"\n")
            begin = self._rng.randrange(len(other))
            lines[at:at] = other[begin : begin + self._rng.randrange(1, 12)]
        elif how == 5:
            lines.insert(at, self._rng.choice(WORDS))
        else:
            key, colon, _ = line.partition(b":")
            word = self._rng.choice(WORDS) if how != 6 else self._rng.choice(RAW)
            lines[at] = key + colon + b" " + word if colon else line + word
        return b"\n".join(lines)

    def _call(self, data: bytes) -> bytes:
        """A method and its message: the message changes, or the method is another's."""
        method, _, body = data.partition(b"\n")
        if self._rng.randrange(12) == 0:
            method = self._rng.choice(self._seeds).partition(b"\n")[0]
        return method + b"\n" + self._message(body)

    def _message(self, data: bytes) -> bytes:
        found = fields(data)
        if not found or self._rng.randrange(10) == 0:
            return self._bytes(data)
        at = self._rng.randrange(len(found))
        number, kind, value = found[at]
        how = self._rng.randrange(8)
        if how == 0:
            del found[at]
        elif how == 1:
            found += [found[at]] * self._rng.choice((1, 3, 300))
        elif how == 2:
            found[at] = (self._rng.randrange(1, 9), kind, value)
        elif isinstance(value, int):
            found[at] = (number, 0, self._rng.choice((0, 1, 2**31 - 1, 2**31, 2**63, 2**64 - 1)))
        elif how < 6 and fields(value):
            found[at] = (number, 2, self._message(value))
        else:
            found[at] = (number, 2, self._rng.choice(WORDS))
        return b"".join(written(one) for one in found)


Field = tuple[int, int, "int | bytes"]


def fields(data: bytes) -> list[Field]:
    """Return the fields of a message: number, wire type (0 or 2), value; [] where it is none of these two types."""
    found: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at) if at >= 0 else (0, -1)
        if at < 0 or not tag >> 3 or tag & 7 not in (0, 2):
            return []
        if tag & 7 == 0:
            found.append((tag >> 3, 0, value))
        elif at + value > len(data):
            return []
        else:
            found.append((tag >> 3, 2, data[at : at + value]))
            at += value
    return found


def written(one: Field) -> bytes:
    """Return the bytes of a field."""
    number, kind, value = one
    if isinstance(value, int):
        return _as_varint(number << 3) + _as_varint(value)
    return _as_varint(number << 3 | 2) + _as_varint(len(value)) + value if kind == 2 else b""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at
    return 0, -1


def _as_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
