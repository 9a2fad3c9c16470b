"""Lines of JSON that carry a checksum of their own bytes.

A checksum of re-serialised values breaks with every field that is added (NVIDIA/k8s-dra-driver-gpu#1080).
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import msgspec

Json = dict[str, Any]

_CRC_DIGITS = 8


class UnreadableLedger(Exception):
    """Something on the disk is not what was written, or not for us; the message says what."""


def encode(value: Json) -> bytes:
    """The line of a record: CRC-32 in hexadecimal, a blank, compact JSON, a newline."""
    body = msgspec.json.encode(value)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> Json:
    """The record of a line. :exc:`UnreadableLedger` if its bytes are not those that were written."""
    body = line[_CRC_DIGITS + 1 :]
    if line[_CRC_DIGITS : _CRC_DIGITS + 1] != b" " or line[:_CRC_DIGITS] != b"%08x" % zlib.crc32(body):
        raise UnreadableLedger("its checksum does not match")
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableLedger(f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise UnreadableLedger("it is not a JSON object")
    return value
