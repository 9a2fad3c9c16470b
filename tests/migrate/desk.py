"""An administrator's desk: a cluster without an agent, and a plan for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from drabridge.kube.api import NODES
from drabridge.kube.client import KubernetesCluster
from drabridge.sim.apiserver.server import SimApiServer
from tests.migrate.cluster_objects import migrate

OURS = "gpu.example.com"
ANNOTATION = f"{OURS}/lanes"


class Desk:
    """What the commands of a plan are tried with."""

    def __init__(self, api: SimApiServer, kubeconfig: Path, plan: Path) -> None:
        self.api = api
        self.plan = plan
        self.kubeconfig = kubeconfig
        self.said = ""  # when the plan was made

    async def run(self, command: str, *words: str) -> tuple[int, str, str]:
        return await migrate(command, str(self.plan), "--kubeconfig", str(self.kubeconfig), *words)

    async def apply(self, *words: str) -> tuple[int, str, str]:
        return await self.run("apply", "--wait", "0", *words)

    async def states(self) -> list[str]:
        _, out, _ = await migrate("status", str(self.plan), "-o", "json")
        return [row["state"] for row in json.loads(out)]

    async def annotation(self) -> str | None:
        api = KubernetesCluster.from_kubeconfig(self.kubeconfig)
        try:
            found = await api.get(NODES, "node-a")
        finally:
            api.close()
        value: str | None = found["metadata"].get("annotations", {}).get(ANNOTATION)
        return value

    def edit(self, **changes: Any) -> None:
        found = yaml.safe_load(self.plan.read_text())
        self.plan.write_text(yaml.safe_dump({**found, **changes}))

    def edit_first_step(self, **changes: Any) -> None:
        step, *others = yaml.safe_load(self.plan.read_text())["steps"]
        self.edit(steps=[{**step, **changes}, *others])
