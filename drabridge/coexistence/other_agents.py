"""Agents of other drivers on this node: hardware that one of them serves, or may hold, is withheld here.

Each agent says in ``plugins_registry/.drabridge-<driver>.hardware`` what it serves, and has a lock beside that for as
long as it lives. Kubelet ignores what begins with a dot there (pluginmanager/pluginwatcher/plugin_watcher.go), and in
the chart that directory is the only one on the node's own disk that agents of two drivers both see. Whoever comes first
serves; the other one withholds what overlaps.

The file outlives its agent. One that was ended says what its ledger holds; of one that was killed everything that it
served may be held. That is how a driver under a new name learns what pods and claims of the former name have.

Where an agent has no such file, an older version, and its state directory is visible, its ledger says the same.

What an agent left that has ended is forgotten once nobody can have it any more
(:mod:`drabridge.coexistence.ended_agents`).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from drabridge.errors import HostError
from drabridge.inventory.model import COMPANION, Device
from drabridge.ledger.lock import FILE as LOCK_FILE
from drabridge.ledger.model import Entry, Ledger, Owner
from drabridge.ledger.refusals import holder
from drabridge.ledger.store import FILE, read_completely
from drabridge.system.files import Care, write_atomically
from drabridge.system.paths import Paths

log = logging.getLogger(__name__)

PREFIX, HARDWARE, LOCK = ".drabridge-", ".hardware", ".lock"
TURN = f"{PREFIX}turn{LOCK}"  # no driver's: a driver's name has a dot
TURN_SECONDS = 2.0  # another agent's turn takes milliseconds
OWN_SECONDS = 1.0  # the agent before this one has let the ledger go: its process is ending
POLL_SECONDS = 0.005
RETURN_SECONDS = 60.0  # an agent that is replaced, or has crashed, is back by then; its devices wait for it
MOST_BYTES = 1 << 22  # of a file: a thousand devices have 300 KB
VERSION = 1
SYSFS = "/sys/"


class Piece(Struct, frozen=True, omit_defaults=True):
    """One device as its agent says it. ``places``: its syspath, then those of :attr:`Device.also_at`."""

    name: str
    id: str
    places: Annotated[tuple[str, ...], Meta(min_length=1)]
    holder: str = ""  # in words; of an agent that was ended
    resources: tuple[str, ...] = ()  # under which kubelet may show a pod on it; none: an older agent does not say
    grace: float | None = None  # seconds that its holders have to end when they are deleted; None: not known


class Said(Struct, frozen=True, rename="camel"):
    """A file. ``ended``: by its agent's own hand, and what is listed is held; else it may be."""

    pieces: tuple[Piece, ...]
    ended: bool = False
    version: int = VERSION


class OtherAgent(Struct, frozen=True):
    """What another agent has, or may have. ``alive``: it runs. ``fault``: why nobody can say what it is."""

    driver: str
    pieces: tuple[Piece, ...] = ()
    alive: bool = False
    ended: bool = False
    fault: str = ""


class OtherAgents:
    """This driver's file and lock, and what the others say. Calls may wait for a disk: never on the loop."""

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
        self._plugins = paths.kubelet / "plugins"  # a state directory for each driver: those visible from here
        self._driver = driver
        self._node = node
        self._return_seconds = return_seconds
        self._clock = clock
        self._ran: dict[str, tuple[float, OtherAgent]] = {}  # driver -> when it was last seen to run, and what it had
        self._lock: int | None = None
        self._said: Said | None = None
        self._had: frozenset[Piece] = frozenset()
        self._struck: Collection[str] | None = None  # what was struck out before this agent began; None: not read yet
        self.left: Mapping[str, frozenset[Piece]] = {}
        """Driver that has ended -> what it left of devices that are here; withheld, unless held here."""

    def take(self, devices: Iterable[Device], held: Callable[[str], bool]) -> dict[str, str]:
        """Say what this agent serves now; device name -> why it must not. What it holds already is its own, unless
        another agent serves it, or it was struck out: nobody had it any more then, and its ledger is of before.

        Never raises: where the others cannot be asked, what they were not asked about before is withheld.
        """
        pieces = {device.name: piece_of(device) for device in devices if device.syspath}
        mine = {name: piece for name, piece in pieces.items() if held(name)}
        try:
            with self._turn():
                self._be_alive()
                self._struck = mine.keys() & (self._struck_out(mine) if self._struck is None else self._struck)
                withheld = self._withheld(pieces, mine.keys() - self._struck, self._others())
                served = tuple(piece for name, piece in sorted(pieces.items()) if name not in withheld)
                self._say(Said(served))
        except (OSError, HostError) as error:
            why = f"whether another agent on this node serves it is not known: {error}"
            return {name: why for name, piece in pieces.items() if name not in mine and piece not in self._had}
        self._had = frozenset(served)
        return withheld

    def keep(self) -> None:
        """Say again what was said last, where somebody removed it. Never raises: the next :meth:`take` tells."""
        if self._lock is None or self._said is None:
            return
        with contextlib.suppress(OSError, HostError):
            lock, file = self._path(self._driver, LOCK), self._path(self._driver, HARDWARE)
            if not (file.exists() and _is_at(lock, self._lock)):
                with self._turn():
                    self._be_alive()
                    self._say(self._said)

    def forget(self, driver: str, free: Collection[Piece]) -> None:
        """Strike out what an agent that has ended left, and nobody has any more: for itself, should it come back, and
        for others. Never raises.
        """
        try:
            with self._turn():
                file = self._path(driver, HARDWARE)
                other = self._other(driver) if file.exists() else self._by_ledger(driver)
                if other is None or other.alive or other.fault:
                    return
                left = tuple(piece for piece in other.pieces if piece not in free)
                write_atomically(file, msgspec.json.encode(Said(left, other.ended)), care=Care.WHOLE)
            found = self.left.get(driver, frozenset()).difference(free)
            self.left = {name: pieces for name, pieces in {**self.left, driver: found}.items() if pieces}
        except (OSError, HostError) as error:
            log.warning("what another agent left cannot be struck out", extra={"driver": driver, "reason": str(error)})

    def end(self, ledger: Ledger) -> None:
        """Say what stays held, and be gone. Never raises: whoever cannot say it has said more than that before."""
        if self._lock is None:
            return
        try:
            with self._turn():
                if held := tuple(held_pieces(ledger)):
                    self._say(Said(held, ended=True), Care.WHOLE)
                else:
                    for path in (self._path(self._driver, HARDWARE), self._path(self._driver, LOCK)):
                        path.unlink(missing_ok=True)
                    if not [path for path in self._registry.glob(f"{PREFIX}*") if path.name != TURN]:
                        (self._registry / TURN).unlink(missing_ok=True)
        except (OSError, HostError) as error:
            log.warning("other agents are not told what this one holds", extra={"reason": str(error)})
        finally:
            self.close()

    def close(self) -> None:
        """Let the lock go; without :meth:`end`, as if this agent was killed."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- files ------------------------------------------------------------------------------------------------------

    def _path(self, driver: str, suffix: str) -> Path:
        return self._registry / f"{PREFIX}{driver}{suffix}"

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Until the end of the block no other agent looks or says anything."""
        self._registry.mkdir(mode=0o750, parents=True, exist_ok=True)  # as kubelet does, which may start later
        path, deadline = self._registry / TURN, time.monotonic() + TURN_SECONDS
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if not _locked(descriptor, deadline - time.monotonic()):
                    raise HostError(f"another process has {path} locked")
                if _is_at(path, descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)  # the last agent took it along, if it is not there any more

    def _be_alive(self) -> None:
        path = self._path(self._driver, LOCK)
        if self._lock is not None and _is_at(path, self._lock):
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(descriptor, OWN_SECONDS):
            os.close(descriptor)
            raise HostError(f"another agent of the driver {self._driver} runs on this node, with other directories")
        self.close()
        self._lock = descriptor

    def _say(self, said: Said, care: Care = Care.PROCESS) -> None:
        """Of a file that is lost in a power cut nothing but devices of an agent that was killed by it is missed."""
        path = self._path(self._driver, HARDWARE)
        if said != self._said or not path.exists():
            self._said = None
            write_atomically(path, msgspec.json.encode(said), care=care)
            self._said = said

    def _others(self) -> list[OtherAgent]:
        drivers = set(self._drivers(HARDWARE))
        drivers |= {name for name in self._drivers(LOCK) if "." in name and _is_locked(self._path(name, LOCK))}
        found = [self._other(driver) for driver in sorted(drivers - {self._driver})]
        for path in sorted(self._plugins.glob(f"*/{FILE}")):
            driver = path.parent.name
            if driver not in drivers and driver != self._driver and (other := self._by_ledger(driver)) is not None:
                found.append(other)
        return self._with_those_that_come_back(found)

    def _struck_out(self, held: Collection[str]) -> set[str]:
        """What is held by the ledger, and not by the file that this driver's agent left."""
        try:
            named = {piece.name for piece in _read(self._path(self._driver, HARDWARE)).pieces}
        except (OSError, ValueError, RecursionError):  # an older version's, or a person has removed it
            return set()
        return {name for name in held if name not in named}

    def _drivers(self, suffix: str) -> Iterator[str]:
        return (
            path.name.removeprefix(PREFIX).removesuffix(suffix) for path in self._registry.glob(f"{PREFIX}*{suffix}")
        )

    def _with_those_that_come_back(self, others: Iterable[OtherAgent]) -> list[OtherAgent]:
        """The others, and those that ran until a moment ago as they were: what they served is not free for that."""
        at, now = self._clock(), {other.driver: other for other in others}
        self._ran |= {driver: (at, other) for driver, other in now.items() if other.alive}
        self._ran = {driver: seen for driver, seen in self._ran.items() if at - seen[0] < self._return_seconds}
        return list((now | {driver: other for driver, (_, other) in self._ran.items()}).values())

    def _other(self, driver: str) -> OtherAgent:
        alive = _is_locked(self._path(driver, LOCK))
        try:
            said = _read(self._path(driver, HARDWARE))
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            return OtherAgent(driver, alive=alive, fault=str(error))
        if not alive and not said.ended and (known := self._by_ledger(driver)) is not None and not known.fault:
            return known  # it was killed, and what it held can be seen
        return OtherAgent(driver, said.pieces, alive, said.ended)

    def _by_ledger(self, driver: str) -> OtherAgent | None:
        """By its state directory; None where there is nothing about this node."""
        directory = self._plugins / driver
        alive = _is_locked(directory / LOCK_FILE)
        try:
            ledger = read_completely(directory, node=self._node)
        except HostError as error:
            return OtherAgent(driver, alive=alive, fault=str(error))
        if ledger is None:
            return None
        pieces = all_pieces(ledger) if alive else held_pieces(ledger)
        return OtherAgent(driver, tuple(pieces), alive, ended=not alive)

    # --- what overlaps ------------------------------------------------------------------------------------------------

    def _withheld(
        self, pieces: Mapping[str, Piece], mine: Collection[str], others: Sequence[OtherAgent]
    ) -> dict[str, str]:
        withheld: dict[str, str] = {}
        left: dict[str, set[Piece]] = {}
        for other in others:
            if other.fault:
                why = (
                    f"what the driver {other.driver} has on this node is not known ({other.fault}). {self._way(other)}"
                )
                withheld |= {name: why for name in pieces if name not in mine}
                continue
            index = _Index(other.pieces)
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

    def _is_there(self, piece: Piece) -> bool:
        """Whether its hardware is where it was. If not, a device of the same id may be it: small ids are common."""
        return os.path.exists(piece.places[0])

    def _why(self, other: OtherAgent, theirs: Piece) -> str:
        what = f"it is {theirs.name} of the driver {other.driver}"
        if other.alive:
            return f"{what}, whose agent serves it on this node. {self._way(other)}"
        if other.ended:
            return f"{what} on this node, which is held{theirs.holder and f' by {theirs.holder}'}. {self._way(other)}"
        return f"{what} on this node, whose agent was killed: a pod or a claim may have it. {self._way(other)}"

    def _way(self, other: OtherAgent) -> str:
        """What a person can do."""
        if other.alive:
            return f"Take it out of one of the two configurations, or end the agent of {other.driver}"
        files = (self._path(other.driver, HARDWARE), self._plugins / other.driver)
        return (
            f"Start the agent as {other.driver} again until the node is drained. If nothing of it runs any more, "
            f"remove {' and '.join(str(path) for path in files if path.exists())}"
        )


def piece_of(device: Device) -> Piece:
    """What another agent has to know of a device."""
    places = (device.syspath, *(place.removeprefix(COMPANION) for place in device.also_at))
    return Piece(device.name, device.id, places, resources=(device.resource,))


def all_pieces(ledger: Ledger) -> Iterator[Piece]:
    """Everything that a ledger knows, with who holds it."""
    for entry in ledger.entries.values():
        places = (entry.device.syspath, *entry.device.also_at, *entry.was_at)
        plain = tuple(place.removeprefix(COMPANION) for place in places)
        yield Piece(entry.name, entry.device.id, plain, holder(entry), entry.counted_as, _grace(entry))


def _grace(entry: Entry) -> float | None:
    """Of the holder that has longest."""
    known = [hold.grace for hold in (entry.hold,) if hold] + [held.grace or None for held in entry.holders]
    return max((seconds for seconds in known if seconds is not None), default=None) if None not in known else None


def held_pieces(ledger: Ledger) -> Iterator[Piece]:
    """What somebody holds, or may hold."""
    free = {entry.name for entry in ledger.entries.values() if entry.owner is Owner.NONE}
    return (piece for piece in all_pieces(ledger) if piece.name not in free)


class _Index:
    """Pieces by their places: what is at one of them, above it or below it in the tree of devices."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._at: dict[str, Piece] = {}
        self._above: dict[str, Piece] = {}
        for piece in pieces:
            for place in filter(None, piece.places):
                self._at.setdefault(place, piece)
            for ancestor in _ancestors(piece.places[0]):
                self._above.setdefault(ancestor, piece)

    def overlapping(self, piece: Piece) -> Piece | None:
        places: Collection[str] = piece.places
        found = next((self._at[place] for place in places if place in self._at), None)
        found = found or self._above.get(piece.places[0])
        return found or next((self._at[above] for above in _ancestors(piece.places[0]) if above in self._at), None)


def _ancestors(syspath: str) -> Iterator[str]:
    """What lies above a device in sysfs."""
    while (syspath := os.path.dirname(syspath)).startswith(SYSFS):
        yield syspath


def _locked(descriptor: int, seconds: float) -> bool:
    """Whether it is ours now, or within so many seconds."""
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
    """Whether a process has the lock of a file. Raises OSError where nobody can say."""
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


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _read(path: Path) -> Said:
    """Another agent's file. Raises OSError, ValueError or RecursionError for what no agent of this version wrote."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    said = msgspec.json.decode(data, type=Said)
    if said.version != VERSION:
        raise ValueError(f"its version is {said.version}, this agent reads {VERSION}")
    return said
