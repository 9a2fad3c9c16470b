"""A client of its own process that calls several servers in turns: ``python -m tests.bench.peers.turns < CALLS``.

Standard input is JSON: ``{probe, pause, servers: {NAME: [SOCKET, METHOD]}, warm, rounds: [[[NAME, MESSAGE], ...]]}``,
messages in hexadecimal; ``warm`` names another method for the first call. Prints ``{NAME: [[seconds, answer], ...]}``.
Before each call a small append to the file ``probe`` is made durable, as kubelet's checkpoint is between two of its
calls, and ``pause`` seconds pass.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tests.bench.allocate_client import Wire


def main(asked: dict[str, Any]) -> dict[str, list[tuple[float, str]]]:
    probe = os.open(asked["probe"], os.O_RDWR | os.O_CREAT | os.O_APPEND)
    methods = {name: method for name, (_, method) in asked["servers"].items()}
    wires = {name: Wire(socket) for name, (socket, _) in asked["servers"].items()}
    for name, wire in wires.items():  # not the first call: that one wakes everything
        wire.call(asked["warm"].get(name) or methods[name], b"")
    times: dict[str, list[tuple[float, str]]] = {name: [] for name in wires}
    for number, calls in enumerate(asked["rounds"]):
        first = number % len(calls)  # nobody is always called after the same one
        for name, message in calls[first:] + calls[:first]:
            os.write(probe, b"x" * 300)
            os.fsync(probe)
            time.sleep(asked["pause"])
            started = time.perf_counter()
            answer = wires[name].call(methods[name], bytes.fromhex(message))
            times[name].append((time.perf_counter() - started, answer.hex()))
    for wire in wires.values():
        wire.close()
    os.close(probe)
    return times


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
