"""Ask the host, from inside the guest, to plug devices of the shelf in and out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import Any

PORT = "/dev/virtio-ports/lab.plug"


class PlugError(Exception):
    """QEMU refused; the text has its words."""


def plug(name: str, **options: Any) -> None:
    """Plug a device of ``tests/lab/shelf.py`` in; options replace its own."""
    _ask({"do": "plug", "name": name, "options": options})


def unplug(name: str) -> None:
    """Pull it out; returns when it is gone from the machine. udev may hear of it later."""
    _ask({"do": "unplug", "name": name})


def put_back(*names: str) -> None:
    """Plug devices in where the shelf has them, wherever they are now."""
    for name in names:
        with contextlib.suppress(PlugError):  # it is out already
            unplug(name)
        plug(name)


def take_out(name: str) -> None:
    """Pull a device out, if it is in."""
    with contextlib.suppress(PlugError):
        unplug(name)


def note(text: str) -> None:
    """Tell the host something that must survive this machine; returns when it has it."""
    _ask({"do": "note", "text": text})


def _ask(request: dict[str, Any]) -> None:
    port = os.open(PORT, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(port, fcntl.LOCK_EX)
        os.write(port, json.dumps(request).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += os.read(port, 65536)
    finally:
        os.close(port)
    if error := json.loads(answer).get("error"):
        raise PlugError(error)
