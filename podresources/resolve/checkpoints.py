"""Read which pod holds what from kubelet's own checkpoints, which know pods by their UID alone.

``device-plugins/kubelet_internal_checkpoint`` (pkg/kubelet/cm/devicemanager/checkpoint) has devices with limits by pod
UID and container, ``dra_manager_state`` (pkg/kubelet/cm/dra/state) the pods of each prepared claim. Both are replaced
by rename, and neither is an API: what is not understood is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podresources.model import Api, PodAllocation
from podresources.resolve.facts import text
from podresources.resolve.files import UnreadableFileError, read

DEVICES = "device-plugins/kubelet_internal_checkpoint"
CLAIMS = "dra_manager_state"
MOST_BYTES = 16 << 20  # 110 pods with 4,096 devices take about 1 MB

_Key = tuple[str, str, str]  # resource, id, container; or namespace, claim, ""


class Checkpoints:
    """The pods of each device and claim, as the files were at the last ``refresh``."""

    def __init__(self, kubelet: Path) -> None:
        self._kubelet = kubelet
        self._pods: dict[_Key, set[str]] = {}

    def refresh(self) -> list[str]:
        """Read both files; return a sentence for each that cannot be read."""
        self._pods = {}
        problems = []
        for name, entries in ((DEVICES, _devices), (CLAIMS, _claims)):
            path = self._kubelet / name
            try:
                data = read(path, MOST_BYTES)
                found = [] if data is None else list(entries(json.loads(data)))
            except UnreadableFileError as error:
                problems.append(f"kubelet's checkpoint {error}")
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                problems.append(f"kubelet's checkpoint {path}: its form is not known")
            else:
                for key, uid in found:
                    self._pods.setdefault(key, set()).add(uid)
        return problems

    def pod_uid(self, held: PodAllocation) -> str:
        """Return the pod's UID; "" if the files do not say it, or if several pods use the claim."""
        if held.api is Api.DEVICE_PLUGIN:
            key = (held.resource or "", held.device_ids[0], held.container)
        else:
            key = (held.claim_namespace or "", held.claim or "", "")
        found = self._pods.get(key, set())
        return next(iter(found)) if len(found) == 1 else ""


def _devices(document: Any) -> Iterator[tuple[_Key, str]]:
    for entry in document["Data"]["PodDeviceEntries"] or ():
        for ids in entry["DeviceIDs"].values():  # by NUMA node
            for device_id in ids:
                yield (str(entry["ResourceName"]), str(device_id), str(entry["ContainerName"])), text(entry["PodUID"])


def _claims(document: Any) -> Iterator[tuple[_Key, str]]:
    for claim in json.loads(document["Data"])["ClaimInfoStateList"] or ():
        for uid in claim["PodUIDs"] or ():
            yield (str(claim["Namespace"]), str(claim["ClaimName"]), ""), text(uid)
