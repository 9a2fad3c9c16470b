"""Ask drabridge's agents on this node: the status document, by HTTP on a unix socket.

The keys that are read here are a promise of that document (``drabridge/v1alpha1``): ``driver``, and of ``devices``
``name``, ``id``, ``resource``, ``pciBusID``, ``uuid``, ``root``, ``attributes`` and ``holders``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from podresources.model import Api, PodAllocation
from podresources.resolve.facts import NOTHING, DeviceFacts, from_attributes, pci_bus_id, text
from podresources.resolve.files import names
from podresources.resolve.http_request import FAILURES, request_unix

SOCKET = "control.sock"
ASK_SECONDS = 1.0
"""The time limit for all agents of the node together. An agent answers in milliseconds; one that hangs must not make
a scrape fail."""

MOST_BYTES = 32 << 20
"""Limit of an answer's size: 4,096 devices take 3 MiB."""


class AgentSilentError(Exception):
    """The agent did not answer, or not with its status document; the text says which one and why."""


class _Holder(Struct, frozen=True):
    api: str = ""
    namespace: str = ""
    pod: str = ""
    podUID: str = ""


class _Device(Struct, frozen=True):
    name: str = ""
    id: str = ""
    resource: str = ""
    pciBusID: str = ""
    uuid: str = ""
    root: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    holders: tuple[_Holder, ...] = ()


class _Status(Struct, frozen=True):
    driver: str
    devices: tuple[_Device, ...]


class Agents:
    """What the agents said last. ``ask`` asks; without it nothing is known."""

    def __init__(self) -> None:
        self._by_claim_name: dict[tuple[str, str], DeviceFacts] = {}
        self._by_id: dict[tuple[str, str], DeviceFacts] = {}
        self._pods: dict[tuple[str, str, str, str], set[str]] = {}

    def ask(self, sockets: Iterable[Path], seconds: float = ASK_SECONDS) -> list[str]:
        """Ask every agent, in ``seconds`` for all of them; return a sentence for each that did not answer."""
        deadline = time.monotonic() + seconds
        self._by_claim_name, self._by_id, self._pods = {}, {}, {}
        problems = []
        for path in sockets:
            try:
                self._take(_status(path, deadline))
            except AgentSilentError as error:
                problems.append(str(error))
        return problems

    def facts(self, held: PodAllocation, device_id: str) -> DeviceFacts:
        """Return what an agent says of a held device; ``device_id`` is kubelet's without the replica's number."""
        if held.api is Api.DRA:
            return self._by_claim_name.get((held.driver or "", held.device or ""), NOTHING)
        return self._by_id.get((held.resource or "", device_id), NOTHING)

    def pod_uid(self, held: PodAllocation, device_id: str) -> str:
        """Return the UID of the pod that holds the device by limits; "" if none or several of that name do.

        A holder of another device with that name proves nothing: it may be an earlier pod, which is not released yet.
        """
        found = self._pods.get((held.resource or "", device_id, held.namespace, held.pod), set())
        return next(iter(found)) if len(found) == 1 else ""

    def _take(self, status: _Status) -> None:
        rows = {row.name: row for row in status.devices}
        for row in status.devices:
            facts = _facts(status.driver, row, rows)
            self._by_claim_name[status.driver, row.name] = facts
            if row.id:
                self._by_id[row.resource, row.id] = facts
            for holder in row.holders:
                if uid := text(holder.podUID):
                    self._pods.setdefault((row.resource, row.id, holder.namespace, holder.pod), set()).add(uid)


def sockets(plugins: Path) -> list[Path]:
    """Return where agents of this node may listen: ``control.sock`` in the folders of kubelet's plugins."""
    found = (plugins / name / SOCKET for name in names(plugins))
    return [path for path in found if path.is_socket()]


def _facts(driver: str, row: _Device, rows: Mapping[str, _Device]) -> DeviceFacts:
    published = from_attributes(driver, row.attributes)
    root = rows.get(row.root)
    return DeviceFacts(
        uuid=text(row.uuid) or published.uuid,
        pci_bus_id=pci_bus_id(row.pciBusID) or published.pci_bus_id,
        gpu_uuid=published.gpu_uuid or (text(root.uuid) if root else ""),
        model=published.model,
        serial_number=published.serial_number,
    )


def _status(path: Path, deadline: float) -> _Status:
    """Return the document of one agent. Raises AgentSilentError."""
    try:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        status, body = request_unix(path, "/status", seconds=left, most_bytes=MOST_BYTES)
        if status != 200:
            raise AgentSilentError(f"the agent on {path} answered {status} to /status")
        return msgspec.json.decode(body, type=_Status)
    except (*FAILURES, msgspec.MsgspecError) as error:  # in msgspec 0.19 its errors are no ValueError
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        raise AgentSilentError(f"the agent on {path}: {reason}") from error
