"""Plan the writes that turn a server's ResourceSlices into the desired ones; none if nothing differs.

Rules of generation and count: a pool is usable when its highest generation has as many slices as each slice says
(staging/src/k8s.io/dynamic-resource-allocation/structured). So a change of one slice stays in its generation; a change
of several, or of their number, makes a new generation of all. Slices that somebody deleted come back in their old
generation: until the last slice is there, the pool is incomplete, and nothing is allocated from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from drabridge.config.quantity import parse
from drabridge.offers.slices import GATED, Feature, Json


class Verb(StrEnum):
    """The kinds of writes, in the order in which a plan has them."""

    DELETE = "delete"
    UPDATE = "update"
    CREATE = "create"


class Write(Struct, frozen=True):
    """One request. ``body``: a whole v1 object, to update or create. ``uid``, ``resource_version``: as expected."""

    verb: Verb
    name: str
    body: Mapping[str, Any] | None = None
    uid: str = ""
    resource_version: str = ""


class SliceOwner(Struct, frozen=True):
    """The Node that garbage collection ties the slices to."""

    name: str
    uid: str

    def reference(self) -> Json:
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid, "controller": True}


class Accepted(Struct, frozen=True):
    """A spec as sent, and as the server stored it. Both count as equal, whatever the server dropped or added."""

    sent: Json
    stored: Json


def plan(
    wanted: Mapping[str, Json],
    actual: Iterable[Mapping[str, Any]],
    *,
    pool: str,
    owner: SliceOwner | None = None,
    accepted: Mapping[str, Accepted] | None = None,
) -> tuple[Write, ...]:
    """Return the writes: deletes, then updates, then creates.

    ``wanted``: specs by name (``DesiredSlices.slices``). ``actual``: the server's slices of this driver and node, in
    v1's form; those of another pool are obsolete. ``accepted``: what the server made of earlier writes, by name.
    """
    accepted = accepted or {}
    have = {slice_["metadata"]["name"]: slice_ for slice_ in actual}
    ours = {name: slice_ for name, slice_ in have.items() if _pool(slice_).get("name") == pool and name in wanted}
    generation = max((_generation(slice_) for slice_ in have.values() if _pool(slice_).get("name") == pool), default=0)

    changed, misfits = [], 0
    for name, slice_ in ours.items():
        current = _generation(slice_) == generation and _pool(slice_).get("resourceSliceCount") == len(wanted)
        if not current:
            misfits += 1
        elif not same(wanted[name], slice_.get("spec") or {}, accepted.get(name)):
            changed.append(name)
    missing = [name for name in wanted if name not in ours]

    # Several changes in a pool that stays complete would let the scheduler see a mixture of old and new slices.
    renew = bool(misfits or (len(changed) > 1 and not missing))
    new = generation + 1 if renew or not generation else generation
    fields: Json = {"pool": {"name": pool, "generation": new, "resourceSliceCount": len(wanted)}}
    to_update = [name for name in ours if renew or name in changed or not owned(ours[name], owner)]

    deletes = [_delete(slice_) for name, slice_ in sorted(have.items()) if name not in ours]
    updates = [_update(wanted[name] | fields, ours[name], owner) for name in sorted(to_update)]
    creates = [_create(name, spec | fields, owner) for name, spec in wanted.items() if name in missing]
    return (*deletes, *updates, *creates)


def same(wanted: Json, stored: Mapping[str, Any], accepted: Accepted | None = None) -> bool:
    """Whether a stored spec says what is wanted. Spelling of quantities and times set by the server do not count."""
    if wanted == {key: value for key, value in stored.items() if key != "pool"}:
        return True  # the usual case, because our specs are written in canonical form
    seen = canonical_spec(stored)
    if seen == canonical_spec(wanted):
        return True
    return accepted is not None and accepted.sent == canonical_spec(wanted) and accepted.stored == seen


def accept(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> Accepted:
    """Return the :class:`Accepted` of a write and the server's answer; both are whole objects in v1's form."""
    return Accepted(canonical_spec(sent["spec"]), canonical_spec(stored["spec"]))


def canonical_spec(spec: Mapping[str, Any]) -> Json:
    """Return a spec to compare: without pool, empty fields and taint times, with quantities as numbers."""
    out = _canonical({key: value for key, value in spec.items() if key != "pool"}, "")
    assert isinstance(out, dict)
    return out


def dropped(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> frozenset[Feature]:
    """Return the features whose fields a server left out of its answer: their feature gates are off."""
    found: set[Feature] = set()
    kept = {device["name"]: device for device in stored["spec"].get("devices") or ()}
    for device in sent["spec"].get("devices") or ():
        answer = kept.get(device["name"], {})
        found |= {feature for key, feature in _DEVICE_FIELDS.items() if device.get(key) and not answer.get(key)}
        if _lists(device) - _lists(answer):
            found.add(Feature.LISTS)
    if sent["spec"].get("sharedCounters") and not stored["spec"].get("sharedCounters"):
        found.add(Feature.PARTITIONS)
    return frozenset(found)


def _lists(device: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the attributes that are lists, each with the name of its field."""
    attributes = (device.get("attributes") or {}).items()
    return {(name, kind) for name, value in attributes for kind, values in value.items() if isinstance(values, list)}


_DEVICE_FIELDS = {
    key: feature
    for feature, row in GATED.items()
    for key in row.fields("", row.probe)
    if key not in ("attributes", "capacity")  # every server keeps these two
}
_QUANTITY_KEYS = frozenset({"value", "default", "min", "max", "step"})
_QUANTITY_PARENTS = frozenset({"capacity", "counters", "requestPolicy", "validRange"})


def _canonical(value: Any, parent: str) -> Any:
    """``parent`` is the nearest key above ``value`` that says whether it is a quantity; in attributes it is none."""
    if isinstance(value, Mapping):
        out = {}
        for key, item in value.items():
            below = key if key in _QUANTITY_PARENTS or key in ("attributes", "taints") else parent
            if below in _QUANTITY_PARENTS and key in _QUANTITY_KEYS and not isinstance(item, Mapping):
                out[key] = _number(item)
            elif not (parent == "taints" and key == "timeAdded"):
                canonical_item = _canonical(item, below)
                if canonical_item not in ({}, [], None):
                    out[key] = canonical_item
        return out
    if isinstance(value, list | tuple):
        return [_number(item) if parent == "requestPolicy" else _canonical(item, parent) for item in value]
    return value


def _number(text: Any) -> Any:
    try:
        return parse(str(text))
    except ValueError:
        return text


def owned(slice_: Mapping[str, Any], owner: SliceOwner | None) -> bool:
    """Whether the slice names this Node as its owner. True if the owner is not known, so that nothing is changed."""
    references = slice_["metadata"].get("ownerReferences") or ()
    return owner is None or any(reference.get("uid") == owner.uid for reference in references)


def _delete(slice_: Mapping[str, Any]) -> Write:
    metadata = slice_["metadata"]
    return Write(Verb.DELETE, metadata["name"], None, metadata.get("uid", ""), metadata.get("resourceVersion", ""))


def _create(name: str, spec: Json, owner: SliceOwner | None) -> Write:
    metadata: Json = {"name": name}
    if owner is not None:
        metadata["ownerReferences"] = [owner.reference()]
    return Write(Verb.CREATE, name, {"metadata": metadata, "spec": spec})


def _update(spec: Json, current: Mapping[str, Any], owner: SliceOwner | None) -> Write:
    """Update a slice. Keep others' metadata, and the times of taints that stay, because eviction counts from them."""
    kept = ("name", "uid", "resourceVersion", "labels", "annotations", "ownerReferences", "finalizers")
    metadata = {key: current["metadata"][key] for key in kept if key in current["metadata"]}
    if owner is not None:
        metadata["ownerReferences"] = [owner.reference()]
    times = {
        (device.get("name"), taint.get("key"), taint.get("value", ""), taint.get("effect")): taint["timeAdded"]
        for device in (current.get("spec") or {}).get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }
    body = {"metadata": metadata, "spec": _with_times(spec, times)}
    return Write(Verb.UPDATE, metadata["name"], body, metadata.get("uid", ""), metadata.get("resourceVersion", ""))


def _with_times(spec: Json, times: Mapping[tuple[Any, ...], str]) -> Json:
    if not times or "devices" not in spec:
        return spec
    devices = []
    for device in spec["devices"]:
        if "taints" in device:
            taints = []
            for taint in device["taints"]:
                added = times.get((device["name"], taint["key"], taint.get("value", ""), taint["effect"]))
                taints.append({**taint, "timeAdded": added} if added else taint)
            device = {**device, "taints": taints}
        devices.append(device)
    return {**spec, "devices": devices}


def _pool(slice_: Mapping[str, Any]) -> Mapping[str, Any]:
    return (slice_.get("spec") or {}).get("pool") or {}


def _generation(slice_: Mapping[str, Any]) -> int:
    value = _pool(slice_).get("generation", 0)
    return value if isinstance(value, int) else 0
