"""Run a DRA node as a process that dies, without any clean-up, just before its n-th step.

``crash_child ROOT KUBECONFIG PHASE N``: PHASE is prepare, unprepare or publish. With N = 0 it lives, and
writes the number of steps that it saw to ROOT/steps.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.prepare import Preparer
from drabridge.dra.records import RecordStore
from drabridge.kube.client import KubernetesCluster
from drabridge.ledger.events import Prepare, Unprepare
from drabridge.ledger.service import LedgerService
from tests.support.dra_node import DraNode, gpu, with_profile

EXIT_STATUS = 137
CONFIG = with_profile("prepare: {command: [/bin/true]}, unprepare: {command: [/bin/true]}")
FEW, MANY = tuple(map(gpu, range(4))), tuple(map(gpu, range(130)))


def writes(*arguments: Any, dry_run: bool = False, **more: Any) -> bool:
    """Whether a call changes something: a dry run, by which features are found out, does not."""
    return not dry_run


class Steps:
    """Counts steps while the phase lasts; ends the process at the n-th."""

    def __init__(self, root: Path, at: int) -> None:
        self.root, self.at, self.count, self.armed = root, at, 0, False

    def step(self) -> None:
        if not self.armed:
            return
        self.count += 1
        if self.count == self.at:
            os._exit(EXIT_STATUS)
        if not self.at:
            (self.root / "steps").write_text(str(self.count))

    def before(self, owner: Any, name: str, matters: Callable[..., bool] = lambda *args, **more: True) -> None:
        """A step is due before every call of ``owner.name``."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if matters(*args, **kwargs):
                self.step()
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)


async def main(root: Path, kubeconfig: Path, phase: str, at: int) -> None:
    steps = Steps(root, at)
    if phase == "publish":
        for name in ("create", "replace", "delete"):
            steps.before(KubernetesCluster, name, writes)
    else:
        events = (Prepare, Unprepare)
        steps.before(LedgerService, "apply", lambda ledger_service, event, **more: isinstance(event, events))
        steps.before(Preparer, "_run_hook")
        steps.before(os, "replace")  # every atomic write: the file is there, under its hidden name
        for owner, names in (
            (RecordStore, ("save", "delete")),
            (CdiStore, ("write", "remove_file")),
            (MetadataFiles, ("write", "remove")),
        ):
            for name in names:
                steps.before(owner, name)
    for name in ("prepare", "unprepare"):
        original = getattr(Preparer, name)

        async def whole(self: Any, claim: Any, name: str = name, original: Any = original) -> Any:
            steps.armed = name == phase
            answer = await original(self, claim)
            steps.step()  # everything is done, and kubelet never hears of it
            return answer

        setattr(Preparer, name, whole)
    steps.armed = phase == "publish"
    node = DraNode(root, None, CONFIG, MANY if phase == "publish" else FEW)
    await node.start(cluster=KubernetesCluster.from_kubeconfig(kubeconfig))
    await asyncio.sleep(60)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(main(Path(arguments[0]), Path(arguments[1]), arguments[2], int(arguments[3])))
