"""Define what the NVML process reports, and what follows from it for GPUs and MIG instances. Pure.

A failure belongs to the UUID that NVML names. A GPU's failures also count for its MIG instances; an XID of an instance
counts for that instance alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType

import msgspec
from msgspec import Struct

from drabridge.inventory.nvidia import Failure, FailureKind, MigInstance, NvidiaFacts
from drabridge.inventory.udev_device import clean

XID_MAX = 9999  # NVIDIA's are below 200
XIDS_KEPT = 1000  # for all devices together

_RESET_ENDS = frozenset({FailureKind.LOST, FailureKind.RESET})


class Gpu(Struct, frozen=True):
    """A GPU. ``watched``: NVML reports its XIDs. ``failures``: its present ones other than XIDs."""

    pci: str
    watched: bool
    fields: dict[str, str]
    failures: list[Failure]
    mig: list[MigInstance]

    @property
    def uuid(self) -> str:
        return self.fields.get("uuid", "")


class State(Struct, frozen=True, tag_field="kind", tag="state"):
    """The state of all GPUs, without events. ``unreachable``: number of lost GPUs, for which NVML gives no handle."""

    node: dict[str, str]
    gpus: list[Gpu]
    unreachable: int


class Alive(Struct, frozen=True, tag_field="kind", tag="alive"):
    """A look ended, and nothing changed."""


class Process(Struct, frozen=True, array_like=True):
    """What one process uses of a device. ``percent``: share of the time in which it ran there."""

    pid: int
    memory_bytes: int
    percent: int


class DeviceUse(Struct, frozen=True, array_like=True):
    """Who uses a GPU (``device``: PCI address) or MIG instance (UUID). ``memory``, ``time``: NVML reports it."""

    device: str
    memory: bool
    time: bool
    processes: list[Process]


class Use(Struct, frozen=True, tag_field="kind", tag="use"):
    """Who uses what, by process."""

    devices: list[DeviceUse]


class Event(Struct, frozen=True, tag_field="kind", tag="event"):
    """An XID. ``gpu``: the UUID, "" if unknown. The instance ids are set if the XID is a MIG instance's."""

    gpu: str
    xid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Failed(Struct, frozen=True, tag_field="kind", tag="failed"):
    """NVML cannot be used. ``code``: NVML's error code, or -1."""

    code: int
    text: str


Message = State | Alive | Use | Event | Failed

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message:
    """Return one message. Raises ValueError (msgspec.DecodeError is one) for anything else."""
    return _decoder.decode(line)


class Xids(Struct):
    """The XIDs that still count, each with the time when it was seen last (any clock)."""

    seen: dict[Event, float] = {}

    def add(self, event: Event, now: float) -> bool:
        """Remember an event that names a GPU and a valid XID; ignore any other. Return whether it was remembered."""
        if not event.gpu or not 0 < event.xid <= XID_MAX:
            return False
        self.seen.pop(event, None)
        self.seen[event] = now
        if len(self.seen) > XIDS_KEPT:
            del self.seen[next(iter(self.seen))]
        return True

    def expire(self, before: float) -> bool:
        """Forget XIDs last seen at or before this time; return whether there were any."""
        return self._forget({event for event, at in self.seen.items() if at <= before})

    def follow(self, old: State | None, new: State) -> bool:
        """Forget the XIDs of GPUs that were lost or needed a reset, and no longer are, and of destroyed instances."""
        before = {gpu.uuid: {failure.kind for failure in gpu.failures} for gpu in (old.gpus if old else ())}
        reset = {gpu.uuid for gpu in new.gpus if before.get(gpu.uuid, set()) & _RESET_ENDS and not _resets(gpu)}
        places = {(gpu.uuid, one.gpu_instance) for gpu in new.gpus for one in gpu.mig}
        known = {gpu.uuid for gpu in new.gpus}
        return self._forget(
            {
                event
                for event in self.seen
                if event.gpu in reset
                or (
                    event.gpu in known
                    and event.gpu_instance is not None
                    and (event.gpu, event.gpu_instance) not in places
                )
            }
        )

    def clear(self) -> bool:
        """Forget all XIDs: the driver was unloaded."""
        return self._forget(set(self.seen))

    def of(self, gpu: str, instance: MigInstance | None = None) -> Iterator[Failure]:
        """Yield the failures of a GPU, or those of one instance that are not the GPU's."""
        for event in self.seen:
            if event.gpu == gpu and _concerns(event, instance):
                yield Failure(FailureKind.XID, f"XID {event.xid}", event.xid)

    def _forget(self, events: set[Event]) -> bool:
        self.seen = {event: at for event, at in self.seen.items() if event not in events}
        return bool(events)


def _resets(gpu: Gpu) -> bool:
    return any(failure.kind in _RESET_ENDS for failure in gpu.failures)


def _concerns(event: Event, instance: MigInstance | None) -> bool:
    if instance is None or event.gpu_instance is None:
        return instance is None and event.gpu_instance is None
    here = event.compute_instance in (None, instance.compute_instance)
    return here and event.gpu_instance == instance.gpu_instance


def merged(proc: NvidiaFacts, state: State, xids: Xids) -> NvidiaFacts:
    """Return ``proc`` (``/proc/driver/nvidia``) with what NVML adds; if both have a field, ``proc`` counts."""
    gpus = {address: dict(fields) for address, fields in proc.gpus.items()}
    failures: dict[str, tuple[Failure, ...]] = {}
    for gpu in state.gpus:
        said = {name: clean(value) for name, value in {**gpu.fields, **state.node}.items()}
        known = gpus.setdefault(gpu.pci, {}) if gpu.pci else {}
        known.update({name: value for name, value in said.items() if name not in known})
        found = (*gpu.failures, *xids.of(gpu.uuid))
        _add(failures, {gpu.uuid, known.get("uuid", "")}, found)
        for one in gpu.mig:
            _add(failures, {one.uuid}, (*found, *xids.of(gpu.uuid, one)))
    unknown = _unknown(proc, state)
    if unknown and len(unknown) == state.unreachable:
        _add(failures, set(unknown), (Failure(FailureKind.LOST, "NVML says that the GPU is lost"),))
    return NvidiaFacts(
        MappingProxyType({address: MappingProxyType(fields) for address, fields in gpus.items()}),
        tuple(one for gpu in state.gpus for one in gpu.mig),
        MappingProxyType(failures),
    )


def _add(failures: dict[str, tuple[Failure, ...]], uuids: set[str], found: tuple[Failure, ...]) -> None:
    for uuid in uuids:
        if uuid and found:
            failures[uuid] = (*failures.get(uuid, ()), *found)


def _unknown(proc: NvidiaFacts, state: State) -> list[str]:
    """Return the UUIDs of the GPUs that the driver's files list and NVML does not."""
    named = {gpu.pci for gpu in state.gpus}
    return [
        fields.get("uuid", "")
        for address, fields in proc.gpus.items()
        if address not in named and fields.get("excluded") != "true"
    ]


def notes(proc: NvidiaFacts, state: State) -> Iterator[str]:
    """Yield sentences for people about a state."""
    for gpu in state.gpus:
        if not gpu.watched:
            yield f"NVML reports no XIDs of {gpu.uuid or gpu.pci}: its faults are seen by looking at it alone"
        uuid = proc.of(gpu.pci).get("uuid", gpu.uuid)
        if uuid != gpu.uuid:
            yield f"NVML calls the GPU at {gpu.pci} {gpu.uuid}, the driver's files {uuid}: the files count"
    for uuid, count in Counter(gpu.uuid for gpu in state.gpus).items():
        if count > 1:
            yield f"NVML gives {count} GPUs the UUID {uuid}"
