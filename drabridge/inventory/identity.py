"""Assign one id and one name to each device, from the values of its identity templates. Pure.

A device has several values, best first (its serial number, then its USB path). It takes the first value that is not
empty and that no other device of its resource has as well. If two sticks have the same serial, *both* take the path,
in whatever order they are seen. Where no unique value is left, the devices collide: none of them is offered, and the
collision names all of them.

A held device keeps its name. Once an id is assigned to a device (resource and syspath), it stays until the device is
gone and forgotten, as long as it is still one of the device's values. So a twin that is plugged in later takes another
value, or collides alone; it never renames or takes away what somebody may hold.

Several devices may share a value that is the name of a held device, while none of them is known to be the held one:
the agent restarted without its memory, or the device was unplugged and may now be in another port. Then no newcomer
with that value is offered until the held device is released: its pod may still have the device number that a returning
device gets.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from msgspec import Struct, field

from drabridge.config.schema import Config
from drabridge.inventory.attribute_values import LastValues
from drabridge.inventory.devices import Collision
from drabridge.inventory.topology import is_pci_address

ID_MAX = 63
"""Longest device id. 63 keeps 51,000 devices below kubelet's 4 MiB message limit (measured), and fits a label."""

NAME_MAX = 63
"""RFC 1123 label: device names in a ResourceSlice (resource.k8s.io validation)."""

DIGEST_CHARS = 8

CACHED = 8192
"""Number of ids and names in caches: a node with thousands of devices needs them at every event."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:+@=-]*[A-Za-z0-9])?")
_NOT_ID = re.compile(r"[^A-Za-z0-9._:+@=-]+|:{2,}")
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_NOT_LABEL = re.compile(r"[^a-z0-9]+")

Key = tuple[str, str]  # (resource, syspath)


@lru_cache(CACHED)
def id_of(value: str) -> str:
    """Return a value as a device id: the value itself when it is short and safe, else its readable part and a digest.

    Unsafe are blanks, commas (NVIDIA_VISIBLE_DEVICES is a comma-separated list), ``::`` (the replica separator) and
    anything that is not ASCII. Empty stays empty.
    """
    if not value or (len(value) <= ID_MAX and _PLAIN_ID.fullmatch(value) and "::" not in value):
        return value
    readable = _NOT_ID.sub("_", value).strip("_.:+@=-")
    return _with_digest(readable, value, "_", ID_MAX, fallback="device")


@lru_cache(CACHED)
def name_of(device_id: str) -> str:
    """Return the device name of an id: a DNS label of at most 63 characters that begins with a letter.

    A PCI address ``0000:3b:00.0`` becomes ``pci-0000-3b-00-0``. Two ids that differ only in case get one name, so they
    collide and are reported; every other lossy conversion adds a digest of the id. The leading letter is for CDI: a
    device name that begins with a digit needs cdiVersion 0.5.0 (else containerd rejects the whole file).
    """
    lowered = device_id.lower() if device_id.isascii() else device_id
    if len(lowered) <= NAME_MAX and _LABEL.fullmatch(lowered):
        return lowered
    if is_pci_address(device_id):
        return "pci-" + device_id.replace(":", "-").replace(".", "-")
    readable = _NOT_LABEL.sub("-", device_id.lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"d-{readable}".rstrip("-")
    return _with_digest(readable, device_id, "-", NAME_MAX, fallback="d")


def _with_digest(readable: str, whole: str, joint: str, limit: int, fallback: str) -> str:
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    head = readable[: limit - DIGEST_CHARS - 1].rstrip("_.:+@=-") or fallback
    return f"{head}{joint}{digest}"


class KnownIdentities(Struct, frozen=True):
    """The ids of devices that are here, or gone and not yet forgotten, and the configuration that gave each id.

    ``values``: what was last published of each device, by device id.
    """

    ids: Mapping[Key, str] = field(default_factory=dict)
    named_by: Mapping[str, Config] = field(default_factory=dict)  # device id -> configuration
    values: Mapping[str, LastValues] = field(default_factory=dict)


class Candidate(Struct, frozen=True):
    """A device that needs an identity. ``values``: what its templates gave, best first; "" for one without value.

    ``hint``: what to do if all values are empty. ``place``: a template that would give a value; "" if it is used
    already.
    """

    resource: str
    syspath: str
    values: tuple[str, ...]
    hint: str = ""
    place: str = ""

    @property
    def key(self) -> Key:
        return (self.resource, self.syspath)


def assign(
    candidates: Iterable[Candidate],
    known_ids: Mapping[Key, str] | None = None,
    held: Callable[[str], bool] = lambda name: False,
) -> tuple[dict[Key, str], tuple[Collision, ...]]:
    """Assign ids to all devices of the node; return them and the collisions. The order does not matter.

    ``known_ids``: the ids of devices that are present, or gone and not yet forgotten. ``held`` says whether somebody
    holds the device of that name.
    """
    known_ids = known_ids or {}
    everyone = sorted(set(candidates), key=lambda candidate: candidate.key)
    ids = {candidate.key: tuple(map(id_of, candidate.values)) for candidate in everyone}
    kept = {key: known_ids[key] for key, own in ids.items() if known_ids.get(key) in own}
    return _Assignment(everyone, ids, kept, held).result()


class _Assignment:
    """One run of :func:`assign`. ``kept``: the devices that keep their id; the others are newcomers."""

    def __init__(
        self,
        everyone: list[Candidate],
        ids: Mapping[Key, tuple[str, ...]],
        kept: Mapping[Key, str],
        held: Callable[[str], bool],
    ) -> None:
        self.everyone = everyone
        self.newcomers = [candidate for candidate in everyone if candidate.key not in kept]
        self.ids = ids
        self.kept = kept
        self.owner = {name_of(device_id): key for key, device_id in kept.items()}
        self.held = held
        self.sharers: dict[tuple[str, int, str], set[Key]] = defaultdict(set)
        for key, own in ids.items():
            for level, value in enumerate(own):
                self.sharers[key[0], level, name_of(value) if value else ""].add(key)

    def result(self) -> tuple[dict[Key, str], tuple[Collision, ...]]:
        chosen: dict[str, list[tuple[Key, str]]] = defaultdict(list)  # name -> devices that chose it, with the value
        nameless: dict[tuple[str, str], list[str]] = defaultdict(list)  # one message for all with the same hint
        for candidate in self.newcomers:
            if value := self._choose(candidate.key):
                chosen[name_of(value)].append((candidate.key, value))
            else:
                hint = candidate.hint or f"No identity template gives it a value: {_advised([candidate])}"
                nameless[candidate.resource, hint].append(candidate.syspath)
        assigned = dict(self.kept)
        collisions = []
        for name, choices in chosen.items():
            key, value = choices[0]
            sharing = {key for key, _ in choices} | {twin for choice in choices for twin in self._twins(*choice)}
            if name in self.owner:
                sharing.add(self.owner[name])
            if len(sharing) > 1:
                collisions.append(self._collision(value, sharing))
            else:
                assigned[key] = value
        collisions += [Collision("", resource, tuple(paths), hint) for (resource, hint), paths in nameless.items()]
        return assigned, tuple(sorted(collisions, key=lambda c: (c.resource, c.identity, c.syspaths)))

    def _choose(self, key: Key) -> str:
        """Return the first value that no other device has; if there is none, the first value, which then collides."""
        first = ""
        for level, value in enumerate(self.ids[key]):
            if not value:
                continue
            first = first or value
            name = name_of(value)
            alone = len(self.sharers[key[0], level, name]) == 1
            if (alone and name not in self.owner) or (not alone and self._uncertain(name)):
                return value
        return first

    def _uncertain(self, name: str) -> bool:
        """Whether the name is held and no device here is known to have it: any newcomer may be that device."""
        return name not in self.owner and self.held(name)

    def _twins(self, key: Key, value: str) -> set[Key]:
        """Return the devices, this one included, with the same value at the same level, whatever their names are."""
        name = name_of(value)
        levels = (level for level, own in enumerate(self.ids[key]) if own == value)
        return set().union(*(self.sharers[key[0], level, name] for level in levels))

    def _collision(self, value: str, sharing: set[Key]) -> Collision:
        resources = sorted({resource for resource, _ in sharing})
        if self._uncertain(name_of(value)):
            hint = "It is held, and it is not known which of them is held: unplug one, or wait until the holder ends"
        elif len(resources) > 1:
            hint = "Make the match rules of these resources exclude each other"
        else:
            hint = f"Add an identity that differs: {_advised(one for one in self.everyone if one.key in sharing)}"
        return Collision(value, ", ".join(resources), tuple(sorted({syspath for _, syspath in sharing})), hint)


def _advised(candidates: Iterable[Candidate]) -> str:
    """Return advice: what to add to the templates of the identity."""
    places = {candidate.place for candidate in candidates}
    if len(places) == 1 and (place := next(iter(places))):
        return f'add "{place}" at the end of its resource\'s id'
    return "`drabridge suggest` writes one for a device"
