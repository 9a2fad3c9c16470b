"""Find a pod's UID on the node: kubelet names the folder of its logs ``<namespace>_<pod>_<uid>``.

Source: kubernetes, pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory. The folder is there from before the pod's
first container starts until some time after the pod's end. If several folders have one name, as after a StatefulSet's
next pod, only pods with a folder in ``<kubelet>/pods`` count. A static pod's folder has the UID that kubelet gave it,
not that of its mirror in the API server.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from podresources.resolve.files import names

LOGS = "var/log/pods"
MOST_FOLDERS = 8192  # ended pods included
_NAME = re.compile(r"(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_(?P<uid>[0-9a-f-]{32,36})")


class PodUids:
    """UIDs by namespace and name, as the folders were at the last ``refresh``."""

    def __init__(self, root: Path, pods: Path) -> None:
        self._logs = root / LOGS
        self._pods = pods
        self._uids: dict[tuple[str, str], list[str]] = {}

    def refresh(self) -> None:
        """Look at the folders' names; nothing in them is read."""
        self._uids = {}
        for name in names(self._logs, MOST_FOLDERS):
            if found := _NAME.fullmatch(name):
                self._uids.setdefault((found["namespace"], found["pod"]), []).append(found["uid"])

    def of(self, namespace: str, pod: str) -> str:
        """Return the UID; "" if there is no folder, or if several pods of that name seem to be there."""
        found = self._uids.get((namespace, pod), [])
        if os.path.isdir(self._pods):  # else it is not mounted
            found = [uid for uid in found if os.path.isdir(self._pods / uid)]
        return found[0] if len(found) == 1 else ""
