"""Write device metadata for containers (KEP-5304): which devices a request got, with their attributes.

Layout and names are those that the Go library writes (staging/src/k8s.io/dynamic-resource-allocation, kubeletplugin and
devicemetadata), so that readers written for any driver find our files. A file is a stream of JSON objects: the same
information in every version of ``METADATA_VERSIONS``. The container sees a bind mount of the host's file: an update
must write in place, because a rename would leave the container with the old inode.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from drabridge.containers.cdi_spec import CdiDevice, CdiSpec, ContainerEdits
from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.allocation import pod_claim_name_of
from drabridge.errors import HostError
from drabridge.inventory.devices import Mount
from drabridge.kube.versions import METADATA_GROUP, METADATA_VERSIONS
from drabridge.ledger.entries import ClaimRef
from drabridge.system.files import TEMPORARY_SUFFIX
from drabridge.system.untrusted import reading
from podresources.resolve import files
from podresources.resolve.metadata import FOLDER, folder_name

KIND = "DeviceMetadata"
CONTAINER_ROOT = "/var/run/kubernetes.io/dra-device-attributes"


class DeviceFacts(Struct, frozen=True):
    """One allocated device.

    ``attributes`` are in the API's form; ``request`` has its alternative: ``gpu/large``.
    """

    request: str
    pool: str
    name: str
    attributes: Mapping[str, Any]

    @property
    def base_request(self) -> str:
        return self.request.partition("/")[0]


class MetadataFiles:
    """The metadata of this driver's claims: files on the host, and the CDI files that mount them."""

    def __init__(self, plugin_directory: Path, cdi: CdiStore, driver: str) -> None:
        self._root = plugin_directory / FOLDER
        self._cdi = cdi
        self._driver = driver

    def write(
        self, claim: ClaimRef, pod_claim_name: str, devices: Sequence[DeviceFacts], *, newest: bool = False
    ) -> dict[str, str]:
        """Write a file and a CDI mount for each request, where they differ; return base request -> CDI id.

        ``newest``: the claim is the one that has this name now; others may have had it before. Raises HostError.
        """
        ids = {}
        pod_claim_name = pod_claim_name_of(pod_claim_name)
        with reading(f"device metadata of {claim}", HostError):
            self._take_over(claim)
            for request in dict.fromkeys(device.base_request for device in devices):
                mine = [device for device in devices if device.base_request == request]
                path = self._file(claim, request)
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._refresh(path, self._document(claim, pod_claim_name, mine))
                spec = self._spec(claim.uid, request, path, pod_claim_name or None, claim.name)
                self._cdi.write(spec)
                ids[request] = spec.names[0]
            self._link(claim, newest=newest)
        return ids

    def remove(self, claim: ClaimRef) -> None:
        """Remove the claim's files, which may be missing. Raises HostError."""
        with reading(f"device metadata of {claim}", HostError):
            for name in self._cdi.metadata_files():
                if name.startswith(f"{self._driver}_metadata_{claim.uid}_"):
                    self._cdi.remove_file(name)
            self._take_over(claim)
            link = self._root / folder_name(claim.namespace, claim.name)
            if link.is_symlink() and os.readlink(link) == claim.uid:
                link.unlink()
            shutil.rmtree(self._directory(claim), ignore_errors=True)

    def sweep(self, keep: Collection[str]) -> None:
        """At start: remove the files of claims not in ``keep``, and files that a crash left half written."""
        prefix = f"{self._driver}_metadata_"
        for path in self._root.iterdir() if self._root.is_dir() else ():
            if path.is_symlink():
                if os.readlink(path) not in keep:
                    path.unlink()
            elif path.name not in keep and _uid_in(path) not in keep:
                shutil.rmtree(path, ignore_errors=True)
        for path in self._cdi.directory.glob(f"{prefix}*.json"):
            if path.name.removeprefix(prefix).partition("_")[0] not in keep:
                self._cdi.remove_file(path.name)
        for path in self._cdi.directory.glob(f".{prefix}*{TEMPORARY_SUFFIX}"):
            self._cdi.remove_file(path.name)

    def _take_over(self, claim: ClaimRef) -> None:
        """Rename a directory that an agent up to 0.2.0 named after the claim, so that its containers keep the files."""
        old, new = self._root / folder_name(claim.namespace, claim.name), self._directory(claim)
        if old.is_dir() and not old.is_symlink() and _uid_in(old) == claim.uid and not new.exists():
            old.rename(new)

    def _link(self, claim: ClaimRef, *, newest: bool) -> None:
        """Link the claim's name to its directory: the Go library writes to that name, and other programs look there."""
        link = self._root / folder_name(claim.namespace, claim.name)
        if link.is_symlink() and (newest or not link.exists()) and os.readlink(link) != claim.uid:
            link.unlink()
        if not os.path.lexists(link):
            link.symlink_to(claim.uid)

    def _directory(self, claim: ClaimRef) -> Path:
        """Return the claim's directory: by its UID, because another claim may have its name."""
        if "/" in claim.uid or claim.uid in ("", ".", ".."):
            raise HostError(f"{claim.uid!r} cannot be the name of a directory")
        return self._root / claim.uid

    def _file(self, claim: ClaimRef, request: str) -> Path:
        if "/" in request or request in ("", ".", ".."):
            raise HostError(f"{request!r} cannot be the name of a directory")
        return self._directory(claim) / request / "metadata.json"

    @staticmethod
    def _refresh(path: Path, document: Mapping[str, Any]) -> None:
        """Write the document in every version, unless the file says the same.

        It is written in place, for running containers. The generation counts the writes; it is 1 in a new file, and in
        a file whose first object could not be read.
        """
        generation = _generation(_read(path))
        if not generation or path.read_bytes() != _encode(document, generation):
            _write(path, _encode(document, generation + 1))

    def _spec(self, uid: str, request: str, path: Path, pod_claim_name: str | None, claim_name: str) -> CdiSpec:
        kind, name = ("resourceclaimtemplates", pod_claim_name) if pod_claim_name else ("resourceclaims", claim_name)
        inside = f"{CONTAINER_ROOT}/{kind}/{name}/{request}/{self._driver}-metadata.json"
        device = CdiDevice(f"{uid}_{request}", ContainerEdits(mounts=(Mount(str(path), inside),)))
        return CdiSpec(f"{self._driver}_metadata_{uid}_{request}.json", f"{self._driver}/metadata", (device,))

    def _document(self, claim: ClaimRef, pod_claim_name: str, devices: Sequence[DeviceFacts]) -> dict[str, Any]:
        """Return the part of the document that is the same in every version, without the generation."""
        requests: dict[str, list[dict[str, Any]]] = {}
        for device in devices:
            entry: dict[str, Any] = {"driver": self._driver, "pool": device.pool, "name": device.name}
            if device.attributes:
                entry["attributes"] = dict(device.attributes)
            requests.setdefault(device.request, []).append(entry)
        document: dict[str, Any] = {
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        }
        if pod_claim_name:
            document["podClaimName"] = pod_claim_name
        document["requests"] = [{"name": name, "devices": entries} for name, entries in requests.items()]
        return document


def _uid_in(directory: Path) -> str | None:
    """Return the UID of the claim that a directory's files are about; None when no file says so."""
    for path in sorted(directory.glob("*/metadata.json")):
        metadata = (_read(path) or {}).get("metadata")
        if isinstance(metadata, dict) and (uid := metadata.get("uid")):
            return str(uid)
    return None


def _encode(document: Mapping[str, Any], generation: int) -> bytes:
    """Encode the stream: one line for each version, newest first."""
    body = {**document, "metadata": {**document["metadata"], "generation": generation}}
    heads = ({"apiVersion": f"{METADATA_GROUP}/{version}", "kind": KIND} for version in METADATA_VERSIONS)
    return "".join(json.dumps({**head, **body}) + "\n" for head in heads).encode()


def _write(path: Path, data: bytes) -> None:
    """Write in place, because containers hold the inode: one write, then truncate.

    A reader that sees a half-written file tries again. Nobody reads a new file before the CDI file that mounts it
    exists. A file that a crash left half written is written again.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whatever the umask
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def _read(path: Path) -> dict[str, Any] | None:
    """Read the first object of the stream; None if there is none."""
    try:
        document, _ = json.JSONDecoder().raw_decode((files.read(path) or b"").decode())
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _generation(document: Mapping[str, Any] | None) -> int:
    """Return the object's generation; 0 if it has none."""
    metadata = document.get("metadata") if document is not None else None
    generation = metadata.get("generation") if isinstance(metadata, dict) else None
    return generation if isinstance(generation, int) and generation > 0 else 0
