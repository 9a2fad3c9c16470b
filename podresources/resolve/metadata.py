"""Read the metadata files that DRA drivers write for a claim's containers (KEP-5304): the devices' attributes.

On the host they are ``<kubelet>/plugins/<driver>/dra-device-metadata/<namespace>_<claim>/<request>/metadata.json``
(kubernetes, staging/src/k8s.io/dynamic-resource-allocation, devicemetadata): a stream of JSON objects, newest schema
first. drabridge also serves claims whose folder would have too long a name: see :func:`folder_name`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from podresources.model import PodAllocation
from podresources.resolve.cdi import ClaimDeviceKey, claim_device_key
from podresources.resolve.facts import NOTHING, DeviceFacts, from_attributes
from podresources.resolve.files import ReadFiles, UnreadableFileError, names, read

FOLDER = "dra-device-metadata"
NAME_BYTES = 255  # of a file's name (limits.h, NAME_MAX); a namespace of 63 and a claim's name of 253 are longer
_Device = tuple[str, str, str]  # driver, pool, name


def folder_name(namespace: str, claim: str) -> str:
    """Return the name of a claim's folder: ``<namespace>_<claim>``; if that is too long, ``sha256-`` and its digest."""
    name = f"{namespace}_{claim}".replace("/", "_")
    encoded = os.fsencode(name)
    return name if len(encoded) <= NAME_BYTES else f"sha256-{hashlib.sha256(encoded).hexdigest()}"


class MetadataFiles:
    """The files of the claims that are asked about, below kubelet's ``plugins``; each is read again when it changed."""

    def __init__(self, plugins: Path) -> None:
        self._plugins = plugins
        self._files = ReadFiles(lambda path: dict(_devices(path)), "claim metadata")
        self._facts: dict[ClaimDeviceKey, DeviceFacts] = {}

    def refresh(self, allocations: Mapping[ClaimDeviceKey, PodAllocation]) -> list[str]:
        """Read the files of these claims; return a sentence for each that cannot be read."""
        claims = _by_claim(allocations)
        paths = {claim: list(self._paths(*claim)) for claim in claims}
        problems = self._files.refresh(path for of_claim in paths.values() for path in of_claim)
        self._facts = {
            key: facts
            for claim, keys in claims.items()
            for path in paths[claim]
            for key in keys
            if (facts := self._files.contents.get(path, {}).get((claim[2], *key[3:5])))
        }
        return problems

    def facts(self, held: PodAllocation) -> DeviceFacts:
        """Return what the claim's metadata says of a held device."""
        return self._facts.get(claim_device_key(held), NOTHING)

    def _paths(self, namespace: str, claim: str, driver: str) -> Iterator[Path]:
        if "/" in driver or driver in ("", ".", ".."):
            return
        folder = self._plugins / driver / FOLDER / folder_name(namespace, claim)
        yield from (folder / request / "metadata.json" for request in names(folder))


def _by_claim(allocations: Mapping[ClaimDeviceKey, PodAllocation]) -> dict[tuple[str, str, str], list[ClaimDeviceKey]]:
    claims: dict[tuple[str, str, str], list[ClaimDeviceKey]] = {}
    for key in allocations:
        claims.setdefault(key[:3], []).append(key)
    return claims


def _devices(path: Path) -> Iterator[tuple[_Device, DeviceFacts]]:
    """Yield what the first object of the file says of each device. Raises UnreadableFileError.

    The file is written in place, so a reader may see half of it; then it is read again the next time.
    """
    data = read(path)
    if data is None:
        return
    try:
        document, _ = json.JSONDecoder().raw_decode(data.decode())
        for request in document["requests"]:
            for device in request["devices"]:
                name = (str(device["driver"]), str(device["pool"]), str(device["name"]))
                attributes: dict[str, Any] = device.get("attributes") or {}
                yield name, from_attributes(name[0], attributes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableFileError(path, "it is not complete, or no device metadata") from error
