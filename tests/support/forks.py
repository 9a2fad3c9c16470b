"""Start Python programs of the tests by a fork of a process that has imported what they need.

Python and the agent's imports take a second of a processor at each start, of which a run of all tests has a thousand; a
fork takes a hundredth of it. The program is a process of its own all the same: with its own pid, signals, limits, log
and exit status. Outside of pytest (benchmarks, soaks), where its own memory is measured and under umockdev it is
started as usual: of 126 forks with libumockdev's preload library two once ended by SIGSEGV, where nobody could look.

A server is asked over a unix socket. The connection lasts as long as the program, and ends with its exit status.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

SERVER = "DRABRIDGE_TEST_FORKS"
"""The variable with the server's socket, for programs that start programs; ``off``: nothing is forked."""

IMPORTED = (
    "drabridge.cli.run",
    "drabridge.cli.status",
    "drabridge.agent.main",
    "drabridge.dra.driver",
    "drabridge.dra.planning",
    "drabridge.dra.ports",
    "drabridge.dra.standby_relay",
    "drabridge.kube.client",
    "kubernetes.client",
    "kubernetes.config",
    "podresources.cli",
    "podresources.client",
    "watchdog.observers",
)
"""What a server imports before it is asked."""
POLL_SECONDS = 0.005
NUMBER_BYTES = 8  # of a pid or an exit status on the connection


class Forked:
    """A program; the part of :class:`asyncio.subprocess.Process` that tests use."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._returncode: int | None = None

    @property
    def returncode(self) -> int | None:
        """Exit status, -N for signal N; None while it runs."""
        if self._returncode is None:
            with contextlib.suppress(BlockingIOError):
                self._returncode = int(self._connection.recv(NUMBER_BYTES) or b"255")
                self._connection.close()
        return self._returncode

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError when it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    async def wait(self) -> int:
        while (code := self.returncode) is None:
            await asyncio.sleep(POLL_SECONDS)
        return code


def wanted() -> bool:
    """Whether pytest runs this process, or a parent of it, in a test that does not measure what it starts."""
    under_umockdev = "umockdev" in os.environ.get("LD_PRELOAD", "")
    return "PYTEST_CURRENT_TEST" in os.environ and os.environ.get(SERVER) != "off" and not under_umockdev


async def start(
    words: tuple[str, ...], output: Path, environment: Mapping[str, str]
) -> asyncio.subprocess.Process | Forked:
    """Start ``python WORDS``, by a fork where that is the same; ``output`` gets all it says.

    A program that changes what the agent uses finds all of it imported.
    """
    if wanted():
        return fork(words, output, environment)
    with output.open("ab") as log:
        return await asyncio.create_subprocess_exec(sys.executable, *words, stdout=log, stderr=log, env=environment)


async def said(*words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``python WORDS``, by a fork in a test."""
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        if wanted():
            code = await fork(words, out, os.environ, errors=err).wait()
        else:
            with out.open("wb") as first, err.open("wb") as second:
                code = await (
                    await asyncio.create_subprocess_exec(sys.executable, *words, stdout=first, stderr=second)
                ).wait()
        return code, out.read_text(errors="replace"), err.read_text(errors="replace")


def fork(words: tuple[str, ...], output: Path, environment: Mapping[str, str], *, errors: Path | None = None) -> Forked:
    """Fork a process that does what ``python WORDS`` does; they begin with ``-m`` or ``-c``.

    ``output`` gets all it says, or ``errors`` its standard error.
    """
    address = os.environ.get(SERVER) or _server()
    output.open("ab").close()  # there at once, for who reads it
    errors = errors or output
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    told = {
        "words": words,
        "files": (os.devnull, str(output), str(errors)),
        "environment": {**environment, SERVER: address},
        "cwd": os.getcwd(),
    }
    connection.sendall(json.dumps(told).encode() + b"\n")
    pid = int(connection.recv(NUMBER_BYTES))
    connection.setblocking(False)
    return Forked(connection, pid)


@functools.cache
def _server() -> str:
    """Start a server that ends with this process; returns its address."""
    folder = tempfile.mkdtemp(prefix="dra", dir="/tmp")
    address = f"{folder}/forks.sock"
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forks", address, *IMPORTED],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline(), "the server of forks did not start"
    atexit.register(_end, server)
    return address


def _end(server: subprocess.Popen[bytes]) -> None:
    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()
    server.wait()


def serve(address: str, modules: list[str]) -> None:
    """Fork what is asked for, until standard input ends; then end what was forked."""
    os.environ |= {"GRPC_VERBOSITY": "ERROR", "GRPC_ENABLE_FORK_SUPPORT": "0"}  # as cli/run.py, before gRPC is imported
    for name in modules:
        with contextlib.suppress(ImportError):  # the program will say so
            importlib.import_module(name)
    _read_kubeconfigs_here()
    _begin_once()
    gc.freeze()  # so that a collection in a fork does not copy all pages
    running: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wakes.fileno())
    listener, selector = socket.socket(socket.AF_UNIX), selectors.DefaultSelector()
    listener.bind(address)
    listener.listen(64)
    for source in (listener, woken, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if sys.stdin in ready:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            break
        if woken in ready:
            woken.recv(1024)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            with running.pop(pid) as connection, contextlib.suppress(OSError):
                connection.sendall(b"%8d" % os.waitstatus_to_exitcode(status))
        if listener in ready:
            connection, _ = listener.accept()
            asked = json.loads(connection.makefile().readline())
            if (pid := os.fork()) == 0:
                selector.close()
                for one in (listener, woken, wakes, connection, *running.values()):
                    one.close()
                _become(asked)
            running[pid] = connection
            connection.sendall(b"%8d" % pid)
    shutil.rmtree(os.path.dirname(address))


def _read_kubeconfigs_here() -> None:
    """An agent has a program of its own read its kubeconfig, to stay small; that takes another second."""
    from drabridge.kube import client, kubeconfig

    vars(client)["of_kubeconfig"] = kubeconfig.read


def _begin_once() -> None:
    """What libraries remember of a first time is a quarter of an agent's start: of expressions, messages, types."""
    from drabridge.cli import build_parser
    from drabridge.config import load

    build_parser("run")
    entry = "{name: example.com/a, match: [{subsystem: a}]}"
    load(f"{{apiVersion: drabridge/v1alpha1, kind: AgentConfig, resources: [{entry}]}}")


def _become(asked: dict[str, Any]) -> NoReturn:
    """Be the program, to its end."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    for target, path in enumerate(asked["files"]):
        source = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(source, target)
        os.close(source)
    faulthandler.enable()  # a fault in a library leaves every thread's place in the output
    code = run(*asked["words"])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run(option: str, what: str, *words: str) -> int:
    """Do what ``python -m WHAT WORDS`` or ``python -c WHAT WORDS`` does, in this process; returns the exit status."""
    try:
        if option == "-m":
            sys.argv = [what, *words]
            sys.modules.pop(what, None)  # an earlier one in this process may have imported it
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [option, *words]
            exec(what, {"__name__": "__main__"})  # noqa: S102 (a test wrote it)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
