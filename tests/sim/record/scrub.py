"""Take out of a recording what another run, or another machine, has differently."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

Json = Any
TIME = "2026-01-01T00:00:00Z"
_TIMES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UUIDS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ZERO = "00000000-0000-0000-0000-000000000000"
_RANDOM = (
    (re.compile(r"kube-api-access-\w{5}"), "kube-api-access-xxxxx"),
    (re.compile(r"containerd://[0-9a-f]{64}"), "containerd://x"),
    (re.compile(r"sha256:[0-9a-f]{64}"), "sha256:x"),
    (re.compile(r"\b10\.88\.\d+\.\d+\b"), "10.88.0.2"),
)
_OF_GO = (
    (re.compile(r"(?<=Invalid value: )\{.*?\}(?=: )"), "<object>"),  # with the field names of internal types
    (re.compile(r"(?<=into Go struct field )\S+"), "<field>"),
    (re.compile(r"(?<=continue key is not valid: ).*"), "<reason>"),
)
_GENERATED_LENGTH = 5  # staging/src/k8s.io/apiserver/pkg/storage/names/generate.go, randomLength
_OF_MACHINE = ("cpu", "memory", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi")
_OF_BUILD = ("buildDate", "goVersion", "gitCommit", "gitTreeState", "platform", "compiler")


def scrub(documents: Mapping[str, Json], kubelet: str) -> dict[str, Json]:
    """Return the documents with stand-ins.

    uids follow from the object's name, generated names end in ``xxxxx`` and a number if there are several, times are
    all the same, an object's resourceVersions count from 1, and those of lists are 0. Of messages, what only Go knows
    is left out. ``kubelet`` is its root directory.
    """
    found = json.loads(json.dumps(documents))
    text = json.dumps({name: _machine(name, one) for name, one in found.items()})
    for one, other in _generated(found).items():
        text = text.replace(one, other)
    for pattern, stand_in in _RANDOM:
        text = pattern.sub(stand_in, text)
    text = _TIMES.sub(TIME, text).replace(json.dumps(kubelet)[1:-1], "/var/lib/kubelet")
    found = json.loads(text)
    names, versions = _uids(found), _versions(found)
    found = _replaced(found, versions)
    text = json.dumps(found)
    text = _UUIDS.sub(lambda match: names.get(match[0], match[0] if match[0] == _ZERO else _uuid("?")), text)
    scrubbed: dict[str, Json] = json.loads(text)
    return scrubbed


def _objects(value: Json) -> Iterator[Json]:
    """Every object with a uid in it, at any depth."""
    if isinstance(value, dict):
        if isinstance(meta := value.get("metadata"), dict) and "uid" in meta:
            yield value
        for one in value.values():
            yield from _objects(one)
    elif isinstance(value, list):
        for one in value:
            yield from _objects(one)


def _generated(found: Json) -> dict[str, str]:
    by_prefix: dict[str, list[str]] = {}
    for one in _objects(found):
        meta = one["metadata"]
        if (prefix := meta.get("generateName")) and meta["name"] not in by_prefix.setdefault(prefix, []):
            by_prefix[prefix].append(meta["name"])
    return {
        name: f"{prefix}{'x' * _GENERATED_LENGTH}" if number == 0 else f"{prefix}{number:x>{_GENERATED_LENGTH}}"
        for prefix, names in by_prefix.items()
        for number, name in enumerate(names)
    }


def _uids(found: Json) -> dict[str, str]:
    by_name: dict[str, list[str]] = {}
    for one in _objects(found):
        meta = one["metadata"]
        if meta["uid"] not in by_name.setdefault(meta["name"], []):
            by_name[meta["name"]].append(meta["uid"])
    return {
        uid: _uuid(name if number == 0 else f"{name} {number}")
        for name, uids in by_name.items()
        for number, uid in enumerate(uids)
    }


def _uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def _versions(found: Json) -> dict[tuple[str, str], str]:
    """(uid, resourceVersion) to its number in the order of the object's versions."""
    known: dict[str, set[str]] = {}
    for one in _objects(found):
        meta = one["metadata"]
        known.setdefault(meta["uid"], set()).add(meta.get("resourceVersion", "0"))
    return {
        (uid, version): str(number)
        for uid, versions in known.items()
        for number, version in enumerate(sorted(versions, key=int), 1)
    }


def _replaced(value: Json, versions: Mapping[tuple[str, str], str]) -> Json:
    if isinstance(value, list):
        return [_replaced(one, versions) for one in value]
    if isinstance(value, str):
        for pattern, stand_in in _OF_GO:
            value = pattern.sub(stand_in, value)
    if not isinstance(value, dict):
        return value
    out = {name: _replaced(one, versions) for name, one in value.items()}
    if isinstance(out.get("resourceVersion"), str):
        out["resourceVersion"] = versions.get((out.get("uid", ""), out["resourceVersion"]), "0")
    if out.get("continue"):
        out["continue"] = "x"
    return out


def _machine(name: str, document: Json) -> Json:
    if name == "node":
        status = document["status"]
        for amounts in (status["capacity"], status["allocatable"]):
            amounts |= {one: "0" for one in _OF_MACHINE if one in amounts}
        status["nodeInfo"] = {key: status["nodeInfo"][key] for key in ("kubeletVersion",)}
        status["addresses"] = [{"type": "InternalIP", "address": "192.0.2.2"}]
        status.pop("images", None)
    elif name == "discovery":
        document["/version"] |= dict.fromkeys(_OF_BUILD, "")
        document["/api"].pop("serverAddressByClientCIDRs", None)
    elif name.startswith("pod-"):
        status = document["status"]
        for key in ("hostIP", "podIP"):
            if key in status:
                status[key] = "192.0.2.2"
        for one in status.get("containerStatuses", ()):
            for each in one.get("allocatedResourcesStatus", ()):  # written from a map
                each["resources"].sort(key=lambda health: str(health["resourceID"]))
        for key in ("hostIPs", "podIPs"):
            if key in status:
                status[key] = [{"ip": "192.0.2.2"}]
    return document
