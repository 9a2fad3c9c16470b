"""Who is who: from the values that the configuration names as identity to one id and one name per device. Pure.

A device has candidates, best first (its serial number, then its USB path). It takes the first one that is not empty
and that no other device of its resource has as well: of two sticks with the same serial *both* fall through to the
path, in whatever order they are seen. Where nothing unique is left, the devices collide: none of them is offered, and
the collision names all of them.

The rule that keeps a held device its name. An identity once given to a device (resource and syspath) stays with it
until the device goes and nobody remembers it any more, as long as it is still one of its candidates. A twin that is
plugged in later therefore falls through, or collides alone; it never renames, or takes away, what somebody may hold.
Where a shared candidate is the name of a held device and none here is known to be it (nothing is remembered after a
restart; or it was unplugged, and what is plugged in elsewhere may be the same), all newcomers that share it are
withheld until the holder lets go: the pod may still have the number that a device gets which comes back.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from msgspec import Struct, field

from drabridge.config.schema import Config
from drabridge.inventory.model import Collision

ID_MAX = 63
"""Longest device id. 63 keeps 51,000 devices below kubelet's 4 MiB message limit (measured), and fits a label."""

NAME_MAX = 63
"""RFC 1123 label: device names in a ResourceSlice (resource.k8s.io validation)."""

DIGEST_CHARS = 8

CACHED = 8192
"""Ids and names that are not worked out again: a node with thousands of devices does it at every event."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:+@=-]*[A-Za-z0-9])?")
_NOT_ID = re.compile(r"[^A-Za-z0-9._:+@=-]+|:{2,}")
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NOT_LABEL = re.compile(r"[^a-z0-9]+")

Key = tuple[str, str]  # (resource, syspath)


@lru_cache(CACHED)
def id_of(value: str) -> str:
    """A value as a device id: itself when it is short and harmless, else its readable part and a digest.

    Blanks, commas (NVIDIA_VISIBLE_DEVICES is a comma-separated list), ``::`` (the replica separator) and anything that
    is not ASCII are not harmless. Empty stays empty.
    """
    if not value or (len(value) <= ID_MAX and _PLAIN_ID.fullmatch(value) and "::" not in value):
        return value
    readable = _NOT_ID.sub("_", value).strip("_.:+@=-")
    return _with_digest(readable, value, "_", ID_MAX, fallback="device")


@lru_cache(CACHED)
def name_of(device_id: str) -> str:
    """The DNS label that goes with an id, at most 63 characters, beginning with a letter.

    A PCI address ``0000:3b:00.0`` becomes ``pci-0000-3b-00-0``. Two ids that differ only in case share a name (and then
    collide, visibly); every other conversion that loses something adds a digest of the id. The letter is for CDI: a
    device name that begins with a digit needs cdiVersion 0.5.0 (containerd rejects the whole file otherwise).
    """
    lowered = device_id.lower() if device_id.isascii() else device_id
    if len(lowered) <= NAME_MAX and _LABEL.fullmatch(lowered):
        return lowered
    if _PCI_ADDRESS.fullmatch(device_id):
        return "pci-" + device_id.replace(":", "-").replace(".", "-")
    readable = _NOT_LABEL.sub("-", device_id.lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"d-{readable}".rstrip("-")
    return _with_digest(readable, device_id, "-", NAME_MAX, fallback="d")


def _with_digest(readable: str, whole: str, joint: str, limit: int, fallback: str) -> str:
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    head = readable[: limit - DIGEST_CHARS - 1].rstrip("_.:+@=-") or fallback
    return f"{head}{joint}{digest}"


class DeviceIdentity(Struct, frozen=True):
    """What a device is called: by kubelet (``id``) and everywhere else (``name``)."""

    id: str
    name: str


class KnownIdentities(Struct, frozen=True):
    """The ids of devices that are here, or gone and not forgotten, and which configuration gave each id."""

    ids: Mapping[Key, str] = field(default_factory=dict)
    named_by: Mapping[str, Config] = field(default_factory=dict)  # device id -> configuration


class Candidate(Struct, frozen=True):
    """A device that wants an identity. ``values`` are what its templates gave, best first; "" where that is nothing.

    ``hint`` says what to do if that is all.
    """

    resource: str
    syspath: str
    values: tuple[str, ...]
    hint: str = ""

    @property
    def key(self) -> Key:
        return (self.resource, self.syspath)


def assign(
    candidates: Iterable[Candidate],
    given: Mapping[Key, str] | None = None,
    held: Callable[[str], bool] = lambda name: False,
) -> tuple[dict[Key, DeviceIdentity], tuple[Collision, ...]]:
    """Identities of all devices of the node, and the collisions; the order of ``candidates`` does not matter.

    ``given`` holds the ids of devices that are known: present, or gone and not yet forgotten. ``held`` says whether
    somebody holds the device of that name.
    """
    given = given or {}
    everyone = sorted(set(candidates), key=lambda candidate: candidate.key)
    ids = {candidate.key: tuple(map(id_of, candidate.values)) for candidate in everyone}
    kept = {key: DeviceIdentity(given[key], name_of(given[key])) for key, own in ids.items() if given.get(key) in own}
    return _Assignment(everyone, ids, kept, held).result()


class _Assignment:
    """One run of :func:`assign`: ``kept`` are the devices that keep what they have; the rest are newcomers."""

    def __init__(
        self,
        everyone: list[Candidate],
        ids: Mapping[Key, tuple[str, ...]],
        kept: Mapping[Key, DeviceIdentity],
        held: Callable[[str], bool],
    ) -> None:
        self.newcomers = [candidate for candidate in everyone if candidate.key not in kept]
        self.ids = ids
        self.kept = kept
        self.owner = {identity.name: key for key, identity in kept.items()}
        self.held = held
        self.sharers: dict[tuple[str, int, str], set[Key]] = defaultdict(set)
        for key, own in ids.items():
            for level, value in enumerate(own):
                self.sharers[key[0], level, name_of(value) if value else ""].add(key)

    def result(self) -> tuple[dict[Key, DeviceIdentity], tuple[Collision, ...]]:
        wishes: dict[str, list[tuple[Key, str]]] = defaultdict(list)
        nameless = []
        for candidate in self.newcomers:
            if wish := self._wish(candidate.key):
                wishes[name_of(wish)].append((candidate.key, wish))
            else:
                hint = candidate.hint or "No identity template gives it a value"
                nameless.append(Collision("", candidate.resource, (candidate.syspath,), hint))
        identities = dict(self.kept)
        collisions = []
        for name, claims in wishes.items():
            rivals = {key for key, _ in claims} | {rival for claim in claims for rival in self._twins(*claim)}
            if name in self.owner:
                rivals.add(self.owner[name])
            if len(rivals) > 1:
                collisions.append(self._collision(claims[0][1], rivals))
            else:
                identities[claims[0][0]] = DeviceIdentity(claims[0][1], name)
        return identities, tuple(sorted([*collisions, *nameless], key=lambda c: (c.resource, c.identity, c.syspaths)))

    def _wish(self, key: Key) -> str:
        """The first candidate that can be this device's alone; else the first it has at all, which then collides."""
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
        """Somebody holds this name, and none that is known to have it is here: it may be any of those that come."""
        return name not in self.owner and self.held(name)

    def _twins(self, key: Key, value: str) -> set[Key]:
        """The devices that have the same value in the same place, whatever they are called; itself is among them."""
        name = name_of(value)
        levels = (level for level, own in enumerate(self.ids[key]) if own == value)
        return set().union(*(self.sharers[key[0], level, name] for level in levels))

    def _collision(self, value: str, rivals: set[Key]) -> Collision:
        resources = sorted({resource for resource, _ in rivals})
        if self._uncertain(name_of(value)):
            hint = "It is held, and nobody can tell by which of them: unplug one, or wait until the holder ends"
        elif len(resources) > 1:
            hint = "Make the match rules of these resources exclude each other"
        else:
            hint = "Add an identity that differs, for example {property:ID_PATH}, after the present one"
        return Collision(value, ", ".join(resources), tuple(sorted({syspath for _, syspath in rivals})), hint)
