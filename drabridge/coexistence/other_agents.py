"""Agree with agents of other drivers on this node who serves which device; withhold the devices of the others.

Each agent writes what it serves to ``plugins_registry/.drabridge-<driver>.hardware``, and holds a lock beside that file
for as long as it lives. Kubelet ignores names that begin with a dot there
(pluginmanager/pluginwatcher/plugin_watcher.go), and in the chart that directory is the only one on the node's own disk
that agents of two drivers both see. The first agent serves; the other one withholds what overlaps.

The file outlives its agent. An agent that ended in order has written which devices are held. If an agent was killed,
everything that it served may be held. So a driver under a new name learns which devices pods and claims of the former
name have. Older versions write no such file; if such a version's state directory is visible, its ledger is read
instead.

Devices of an ended agent are removed from its file once nobody can have them any more
(:mod:`drabridge.coexistence.ended_agents`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from drabridge.coexistence.hardware import KnownDevice, OverlapIndex, all_devices, held_devices, known_device
from drabridge.errors import HostError
from drabridge.inventory.devices import Device
from drabridge.ledger.entries import Ledger
from drabridge.ledger.lock import FILE as LOCK_FILE
from drabridge.ledger.lock import same_file
from drabridge.ledger.store import FILE, read_completely
from drabridge.system.files import Care, write_atomically
from drabridge.system.paths import Paths
from podresources.resolve import files

log = logging.getLogger(__name__)

PREFIX, HARDWARE, LOCK = ".drabridge-", ".hardware", ".lock"
TURN = f"{PREFIX}turn{LOCK}"  # no driver's file has this name, because a driver's name has a dot
TURN_SECONDS = 2.0  # another agent's turn takes milliseconds
OWN_SECONDS = 1.0  # how long to wait for our lock: the former agent's process may just be ending
POLL_SECONDS = 0.005
RETURN_SECONDS = 60.0  # a replaced or crashed agent is back by then; its devices are kept for it
MOST_BYTES = 1 << 22  # of one file at most; a thousand devices have 300 KB
VERSION = 1


class HardwareFile(Struct, frozen=True, rename="camel"):
    """The file of one agent. ``ended``: it ended in order, and ``pieces`` are held; else ``pieces`` may be held."""

    pieces: tuple[KnownDevice, ...]
    ended: bool = False
    version: int = VERSION


class OtherAgent(Struct, frozen=True):
    """What another agent has, or may have. ``alive``: the agent runs. ``fault``: why ``pieces`` are not known."""

    driver: str
    pieces: tuple[KnownDevice, ...] = ()
    alive: bool = False
    ended: bool = False
    fault: str = ""


class OtherAgents:
    """This driver's file and lock, and the files of the others. Calls may wait for a disk: make none on the loop.

    ``left``: ended driver -> its devices that overlap our devices. Ours are withheld unless they are held here.
    """

    def __init__(
        self,
        paths: Paths,
        driver: str,
        node: str,
        *,
        return_seconds: float = RETURN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = paths.plugins_registry
        self._plugins = paths.kubelet / "plugins"  # has a state directory for each driver
        self._driver = driver
        self._node = node
        self._return_seconds = return_seconds
        self._clock = clock
        self._seen_alive: dict[str, tuple[float, OtherAgent]] = {}  # driver -> when it last ran, and with what
        self._lock: int | None = None
        self._written: HardwareFile | None = None
        self._served: frozenset[KnownDevice] = frozenset()
        self._struck: Collection[str] | None = None  # held, but removed from our file before; None: not read yet
        self.left: Mapping[str, frozenset[KnownDevice]] = {}

    def announce(self, devices: Iterable[Device], held: Callable[[str], bool]) -> dict[str, str]:
        """Write what this agent serves now; return device name -> why the device is withheld.

        A device that is held here is served, with two exceptions: another agent serves it; or another agent removed it
        from our file because nobody had it any more, and our ledger is too old to know that. Never raises: if the files
        of the others cannot be read, devices that were not served before are withheld.
        """
        pieces = {device.name: known_device(device) for device in devices if device.syspath}
        mine = {name: piece for name, piece in pieces.items() if held(name)}
        try:
            with self._exclusively():
                self._hold_lock()
                self._struck = mine.keys() & (self._struck_out(mine) if self._struck is None else self._struck)
                withheld = self._withheld(pieces, mine.keys() - self._struck, self._read_others())
                served = tuple(piece for name, piece in sorted(pieces.items()) if name not in withheld)
                self._write(HardwareFile(served))
        except (OSError, HostError) as error:
            why = f"whether another agent on this node serves it is not known: {error}"
            return {name: why for name, piece in pieces.items() if name not in mine and piece not in self._served}
        self._served = frozenset(served)
        return withheld

    def restore_file(self) -> None:
        """Write our file again if somebody removed it. Never raises: the next :meth:`announce` reports what fails."""
        if self._lock is None or self._written is None:
            return
        with contextlib.suppress(OSError, HostError):
            lock, file = self._path(self._driver, LOCK), self._path(self._driver, HARDWARE)
            if not (file.exists() and same_file(lock, os.fstat(self._lock))):
                with self._exclusively():
                    self._hold_lock()
                    self._write(self._written)

    def strike_out(self, driver: str, free: Collection[KnownDevice]) -> None:
        """Remove ``free`` from an ended agent's file, for other agents and for its successor. Never raises."""
        try:
            with self._exclusively():
                file = self._path(driver, HARDWARE)
                other = self._other(driver) if file.exists() else self._by_ledger(driver)
                if other is None or other.alive or other.fault:
                    return
                left = tuple(piece for piece in other.pieces if piece not in free)
                write_atomically(file, msgspec.json.encode(HardwareFile(left, other.ended)), care=Care.WHOLE)
            found = self.left.get(driver, frozenset()).difference(free)
            self.left = {name: pieces for name, pieces in {**self.left, driver: found}.items() if pieces}
        except (OSError, HostError) as error:
            log.warning("file of an ended agent not changed", extra={"driver": driver, "reason": str(error)})

    def end(self, ledger: Ledger) -> None:
        """Write what stays held, and release the lock. Never raises: if writing fails, the file lists too much."""
        if self._lock is None:
            return
        try:
            with self._exclusively():
                if held := tuple(held_devices(ledger)):
                    self._write(HardwareFile(held, ended=True), Care.WHOLE)
                else:
                    for path in (self._path(self._driver, HARDWARE), self._path(self._driver, LOCK)):
                        path.unlink(missing_ok=True)
                    if not [path for path in self._registry.glob(f"{PREFIX}*") if path.name != TURN]:
                        (self._registry / TURN).unlink(missing_ok=True)
        except (OSError, HostError) as error:
            log.warning("file for other agents not written", extra={"reason": str(error)})
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock. Without a call of :meth:`end` before, others think that this agent was killed."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- files ------------------------------------------------------------------------------------------------------

    def _path(self, driver: str, suffix: str) -> Path:
        return self._registry / f"{PREFIX}{driver}{suffix}"

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Keep other agents from all these files until the end of the block. Raises HostError after 2 s."""
        self._registry.mkdir(mode=0o750, parents=True, exist_ok=True)  # as kubelet does when it starts, perhaps later
        path, deadline = self._registry / TURN, time.monotonic() + TURN_SECONDS
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if not _locked(descriptor, deadline - time.monotonic()):
                    raise HostError(f"another process has {path} locked")
                if same_file(path, os.fstat(descriptor)):
                    yield
                    return
            finally:
                os.close(descriptor)  # if the file is gone, an ending agent removed it: try again

    def _hold_lock(self) -> None:
        path = self._path(self._driver, LOCK)
        if self._lock is not None and same_file(path, os.fstat(self._lock)):
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(descriptor, OWN_SECONDS):
            os.close(descriptor)
            raise HostError(f"another agent of the driver {self._driver} runs on this node, with other directories")
        self.close()
        self._lock = descriptor

    def _write(self, content: HardwareFile, care: Care = Care.PROCESS) -> None:
        """Write our file. If a power cut kills this agent and loses the file, others do not know what it served."""
        path = self._path(self._driver, HARDWARE)
        if content != self._written or not path.exists():
            self._written = None
            write_atomically(path, msgspec.json.encode(content), care=care)
            self._written = content

    def _read_others(self) -> list[OtherAgent]:
        drivers = set(self._drivers(HARDWARE))
        drivers |= {name for name in self._drivers(LOCK) if "." in name and _is_locked(self._path(name, LOCK))}
        found = [self._other(driver) for driver in sorted(drivers - {self._driver})]
        for path in sorted(self._plugins.glob(f"*/{FILE}")):
            driver = path.parent.name
            if driver not in drivers and driver != self._driver and (other := self._by_ledger(driver)) is not None:
                found.append(other)
        return self._with_recently_alive(found)

    def _struck_out(self, held: Collection[str]) -> set[str]:
        """Return the held devices that the file of this driver's last agent does not list; none if it is unreadable."""
        try:
            named = {piece.name for piece in _read_file(self._path(self._driver, HARDWARE)).pieces}
        except (OSError, ValueError, RecursionError):  # written by an older version, or removed by a person
            return set()
        return {name for name in held if name not in named}

    def _drivers(self, suffix: str) -> Iterator[str]:
        return (
            path.name.removeprefix(PREFIX).removesuffix(suffix) for path in self._registry.glob(f"{PREFIX}*{suffix}")
        )

    def _with_recently_alive(self, others: Iterable[OtherAgent]) -> list[OtherAgent]:
        """Add agents that ran within ``return_seconds``, with what they had: they may come back to their devices."""
        at, now = self._clock(), {other.driver: other for other in others}
        self._seen_alive |= {driver: (at, other) for driver, other in now.items() if other.alive}
        self._seen_alive = {
            driver: seen for driver, seen in self._seen_alive.items() if at - seen[0] < self._return_seconds
        }
        return list((now | {driver: other for driver, (_, other) in self._seen_alive.items()}).values())

    def _other(self, driver: str) -> OtherAgent:
        alive = _is_locked(self._path(driver, LOCK))
        try:
            content = _read_file(self._path(driver, HARDWARE))
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            return OtherAgent(driver, alive=alive, fault=str(error))
        if not alive and not content.ended and (known := self._by_ledger(driver)) is not None and not known.fault:
            return known  # it was killed, and its ledger says what it held
        return OtherAgent(driver, content.pieces, alive, content.ended)

    def _by_ledger(self, driver: str) -> OtherAgent | None:
        """Return what an agent's state directory says; None if that has no ledger of this node."""
        directory = self._plugins / driver
        alive = _is_locked(directory / LOCK_FILE)
        try:
            ledger = read_completely(directory, node=self._node)
        except HostError as error:
            return OtherAgent(driver, alive=alive, fault=str(error))
        if ledger is None:
            return None
        pieces = all_devices(ledger) if alive else held_devices(ledger)
        return OtherAgent(driver, tuple(pieces), alive, ended=not alive)

    # --- what overlaps ------------------------------------------------------------------------------------------------

    def _withheld(
        self, pieces: Mapping[str, KnownDevice], mine: Collection[str], others: Sequence[OtherAgent]
    ) -> dict[str, str]:
        withheld: dict[str, str] = {}
        left: dict[str, set[KnownDevice]] = {}
        for other in others:
            if other.fault:
                why = (
                    f"what the driver {other.driver} has on this node is not known ({other.fault}). {self._hint(other)}"
                )
                withheld |= {name: why for name in pieces if name not in mine}
                continue
            index = OverlapIndex(other.pieces)
            moved = {} if other.alive else {p.id: p for p in other.pieces if p.id and not self._is_there(p)}
            for name, piece in pieces.items():
                theirs = index.overlapping(piece)
                if theirs is None and name not in mine:
                    theirs = moved.get(piece.id)
                if theirs is None:
                    continue
                if other.alive or name not in mine:
                    withheld[name] = self._why(other, theirs)
                if not other.alive:
                    left.setdefault(other.driver, set()).add(theirs)
        self.left = {driver: frozenset(found) for driver, found in left.items()}
        return withheld

    def _is_there(self, piece: KnownDevice) -> bool:
        """Whether hardware is still at its place. If it is not, a device elsewhere with the same id may be this one."""
        return os.path.exists(piece.places[0])

    def _why(self, other: OtherAgent, theirs: KnownDevice) -> str:
        what = f"it is {theirs.name} of the driver {other.driver}"
        if other.alive:
            return f"{what}, whose agent serves it on this node. {self._hint(other)}"
        if other.ended:
            return f"{what} on this node, which is held{theirs.holder and f' by {theirs.holder}'}. {self._hint(other)}"
        return f"{what} on this node, whose agent was killed: a pod or a claim may have it. {self._hint(other)}"

    def _hint(self, other: OtherAgent) -> str:
        """Return a sentence about what a person can do."""
        if other.alive:
            return f"Take it out of one of the two configurations, or end the agent of {other.driver}"
        files = (self._path(other.driver, HARDWARE), self._plugins / other.driver)
        return (
            f"Start the agent as {other.driver} again until the node is drained. If nothing of it runs any more, "
            f"remove {' and '.join(str(path) for path in files if path.exists())}"
        )


def _locked(descriptor: int, seconds: float) -> bool:
    """Lock a file, within ``seconds``; return whether that worked."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        else:
            return True


def _is_locked(path: Path) -> bool:
    """Whether a process has a file locked. Raises OSError where that cannot be known."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read_file(path: Path) -> HardwareFile:
    """Read an agent's file. Raises OSError, ValueError or RecursionError if it is unreadable or of another version."""
    data = files.read(path, MOST_BYTES)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    content = msgspec.json.decode(data, type=HardwareFile)
    if content.version != VERSION:
        raise ValueError(f"its version is {content.version}, this agent reads {VERSION}")
    return content
