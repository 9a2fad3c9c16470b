"""Run in the guest what the host asks for: JSON lines on a virtio-serial port, any number of commands at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

PORT = Path("/dev/virtio-ports/lab.command")
ENVIRONMENT = {"PYTHONPATH": "/opt/drabridge", "PYTHONDONTWRITEBYTECODE": "1"}
_writing = threading.Lock()


def _run(request: dict[str, Any]) -> dict[str, Any]:
    try:
        process = subprocess.Popen(
            request["command"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT, **request["env"]},
            start_new_session=True,
        )
    except OSError as error:
        return {"rc": 127, "out": str(error)}
    try:
        out, _ = process.communicate(request["stdin"].encode(), request["seconds"])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return {"rc": 124, "out": out.decode(errors="replace") + f"\nkilled after {request['seconds']} s"}
    return {"rc": process.returncode, "out": out.decode(errors="replace")}


def _answer(port: int, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode() + b"\n"
    with _writing:
        while data:
            data = data[os.write(port, data) :]


def _serve(port: int, request: dict[str, Any]) -> None:
    _answer(port, {"number": request["number"], **_run(request)})


def main() -> None:
    port = os.open(PORT, os.O_RDWR | os.O_CLOEXEC)
    _answer(port, {"number": 0})
    with open(port, "rb", closefd=False) as lines:
        for line in lines:
            threading.Thread(target=_serve, args=(port, json.loads(line)), daemon=True).start()


if __name__ == "__main__":
    main()
