"""Every reader of bytes that others wrote, by name."""

from __future__ import annotations

from tests.fuzz.reader import Reader
from tests.fuzz.readers import answers, desk_files, node_files, objects, sockets

READERS: dict[str, Reader] = {
    one.name: one
    for module in (node_files, objects, answers, desk_files, sockets)
    for one in module.READERS
}  # fmt: skip
