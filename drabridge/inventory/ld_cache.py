"""Read which libraries the dynamic linker knows: ld.so.cache in glibc's new format. No I/O.

The format: glibc, sysdeps/generic/dl-cache.h (``cache_file_new``). It may follow a table in the old format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

BYTES_MAX = 8 << 20  # ldconfig makes 60 to 500 KiB
_OLD, _NEW = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_NEW_HEADER, _ENTRY = 48, struct.Struct("<iIIIQ")  # flags, soname, path, kernel, hardware
_TEXT_MAX = 4096
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}  # an ELF library of libc6, for 64 bits


def libraries(data: bytes, machine: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of each 64-bit library for a machine (``x86_64``), in the linker's order.

    Raises ValueError for what is no such file; entries that lead out of it are left out.
    """
    if data.startswith(_OLD):
        if len(data) < _OLD_HEADER:
            raise ValueError("it ends in its header")
        end = _OLD_HEADER + int.from_bytes(data[12:16], "little") * _OLD_ENTRY
        data = data[-(-end // 8) * 8 :]
    if not data.startswith(_NEW) or len(data) < _NEW_HEADER:
        raise ValueError("it is no ld.so.cache of glibc 2.2 or later")
    count = int.from_bytes(data[20:24], "little")
    if count > (len(data) - _NEW_HEADER) // _ENTRY.size:
        raise ValueError("it ends in its table")
    wanted = _FLAGS.get(machine)
    for number in range(count):
        flags, name, path, _, _ = _ENTRY.unpack_from(data, _NEW_HEADER + number * _ENTRY.size)
        if flags == wanted and (key := _text(data, name)) and (value := _text(data, path)).startswith("/"):
            yield key, value


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start, start + _TEXT_MAX)
    return data[start:end].decode("utf-8", "surrogateescape") if end > start else ""
