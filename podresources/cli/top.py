"""``top``: the devices and their holders, refreshed in place."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from argparse import Namespace
from threading import Event

from podresources.cli.output import width
from podresources.cli.parser import selection
from podresources.cli.query import connect
from podresources.errors import NotSupported, PodResourcesError
from podresources.features import Support
from podresources.model import Allocatable, AllocationKey, NodeSnapshot
from podresources.sync import SyncClient
from podresources.table import printable
from podresources.topview import frame

HOME, CLEAR_BELOW, CLEAR_TO_END_OF_LINE = "\x1b[H", "\x1b[J", "\x1b[K"
ALTERNATE_SCREEN, NORMAL_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def run_top(options: Namespace) -> int:
    """Show devices by holder: refreshed on a terminal, once in a pipe."""
    with connect(options) as client:
        if not sys.stdout.isatty():
            print(_Top(options, client).text(None))
            return 0
        return _refresh(_Top(options, client), options.interval)


def _refresh(top: _Top, interval_seconds: float) -> int:
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    text = top.text(_height())  # an error here is raised: there is nothing to show yet
    sys.stdout.write(ALTERNATE_SCREEN)
    try:
        while True:
            body = text.replace("\n", CLEAR_TO_END_OF_LINE + "\n")
            sys.stdout.write(f"{HOME}{body}{CLEAR_TO_END_OF_LINE}{CLEAR_BELOW}")
            sys.stdout.flush()
            if stop.wait(interval_seconds):
                return 0
            try:
                text = top.text(_height())
            except PodResourcesError as error:
                said = printable(str(error))
                text = f"{said}\n{text}" if top.healthy else f"{said}\n" + text.partition("\n")[2]
                top.healthy = False
    finally:
        sys.stdout.write(NORMAL_SCREEN)
        sys.stdout.flush()


def _height() -> int:
    return shutil.get_terminal_size().lines


class _Top:
    """Asks, and remembers since when each allocation has been seen."""

    def __init__(self, options: Namespace, client: SyncClient) -> None:
        self.healthy = True
        self._chosen = selection(options)
        self._client = client
        self._since: dict[AllocationKey, float] | None = None

    def text(self, height: int | None) -> str:
        """Return one frame of the view. Raises PodResourcesError."""
        snapshot, capacity = self._ask()
        now = time.monotonic()
        known = self._since
        self._since = {held.key: 0.0 if known is None else known.get(held.key, now) for held in snapshot.allocations}
        self.healthy = True
        return frame(snapshot, capacity, self._since, now, width=width(), height=height)

    def _ask(self) -> tuple[NodeSnapshot, Allocatable | None]:
        snapshot = self._chosen.snapshot(self._client.list())
        if self._chosen.by_pod or self._client.features.allocatable is Support.NO:
            return snapshot, None  # free devices belong to no pod
        try:
            return snapshot, self._chosen.allocatable(self._client.allocatable())
        except NotSupported:
            return snapshot, None
