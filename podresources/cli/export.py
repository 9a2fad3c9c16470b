"""``export``: metrics over HTTP, or as a file for node_exporter."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from threading import Thread

from prometheus_client import CollectorRegistry, generate_latest

from podresources.cli.metricsserver import MetricsServer
from podresources.errors import NodeError
from podresources.exporter import MAX_AGE_SECONDS, SCRAPE_TIMEOUT_SECONDS, Exporter
from podresources.table import printable

STOPS = (signal.SIGINT, signal.SIGTERM)


def run_export(options: Namespace) -> int:
    """Serve metrics until SIGINT or SIGTERM, or write them to a file once or at an interval."""
    # The signals are waited for, not handled: a thread that begins just then may take the signal, but Python runs
    # handlers only in the main thread, which would go on sleeping. Threads inherit the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    resolver = None
    if options.resolve:
        from podresources.cli.resolving import make_resolver

        resolver = make_resolver(options, wait=options.textfile is not None)
    exporter = Exporter(
        options.socket,
        max_age_seconds=0.0 if options.textfile else options.interval or MAX_AGE_SECONDS,
        max_series=options.max_series,
        timeout_seconds=min(options.timeout, SCRAPE_TIMEOUT_SECONDS),
        receive_limit_bytes=options.receive_limit_mib * 1024 * 1024,
        resolver=resolver,
    )
    registry = CollectorRegistry()
    registry.register(exporter)
    try:
        if options.textfile:
            return _write(options, exporter, registry)
        return _serve(options.listen, registry)
    finally:
        exporter.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(address: tuple[str, int], registry: CollectorRegistry) -> int:
    host, port = address
    try:
        server = MetricsServer((_any_address() if host == "*" else host, port), registry)
    except OSError as error:
        raise NodeError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}", hint="Choose another address with --listen"
        ) from error
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    print(f"serving /metrics on port {server.server_port}", file=sys.stderr, flush=True)
    signal.sigwait(STOPS)
    server.shutdown()
    server.server_close()
    thread.join()
    return 0


def _write(options: Namespace, exporter: Exporter, registry: CollectorRegistry) -> int:
    """Write the file in any case, ``podresources_up 0`` included; return the exit code of the last try."""
    while True:
        text = generate_latest(registry).decode()
        try:
            _replace(options.textfile, text)
        except OSError as error:
            raise NodeError(
                f"Cannot write {options.textfile}: {error.strerror or error}",
                hint="Its directory must exist, and this user must be allowed to create files there",
            ) from error
        if exporter.last_error is not None:
            print(printable(f"podresources: {exporter.last_error}"), file=sys.stderr, flush=True)
        if options.interval is None or signal.sigtimedwait(STOPS, options.interval):
            return 0 if exporter.last_error is None else 1


def _any_address() -> str:
    """Return the address of every interface, IPv6 included where the kernel has it."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _replace(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, readable by everybody (node_exporter does not run as root).

    Raises OSError. Not synced to disk: the file describes this moment, and is worthless after a crash.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
