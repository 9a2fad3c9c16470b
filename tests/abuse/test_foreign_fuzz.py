"""One malformed object among many: readers and a whole agent still serve the others."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from drabridge.sim.cluster import SimCluster
from tests.support import foreign_objects, strange_objects
from tests.support.agent_on_cluster import bridge, claim_pod, limits_pod
from tests.support.agent_process import DRIVER

ROUNDS = 60  # one strange thing for each reader a round; `python -m tests.bench fuzz` has many more


def test_no_reader_stumbles_over_a_strange_object(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert strange_objects.run(20_261_122, ROUNDS, tmp_path) == ROUNDS * 11


async def test_an_agent_serves_others_while_strange_objects_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the API, beside the CDI files, and among the records of claims; before a start, and while it runs."""
    strangers, maker = foreign_objects.Strangers(monkeypatch, 1), strange_objects.Strange(1)
    with foreign_objects.kubelet_takes_none(monkeypatch, "strange"):
        async with bridge() as (agent, cluster, _):
            objects = cluster.api.objects
            for number in range(8):
                for body in foreign_objects.stranger(number):
                    objects.create(body, namespace="" if body["kind"] == "ResourceSlice" else "default")
                leave(agent.cdi / f"{DRIVER}-device-claim-odd{number}.json", maker.file({"devices": [{"name": "x"}]}))
                record = agent.root / "plugins" / DRIVER / "claims" / f"odd-{number}.json"
                leave(record, maker.file({"version": 1, "claim": {"uid": "odd"}}))
                if number == 3:
                    await served(cluster, "before")
                    await agent.stop()
                    await agent.start()
                    await agent.ready()
                if number % 2:
                    objects.delete("pods", f"strange-{number}", "default", grace_seconds=0)
                    objects.delete("resourceclaims", f"strange-{number}", "default")
            await served(cluster, "after")
            assert strangers.sent > 20
            assert "Traceback" not in agent.text(), agent.text()


def leave(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


async def served(cluster: SimCluster, name: str) -> None:
    """A pod with limits and a pod with a claim run."""
    await cluster.apply(limits_pod(f"limits-{name}") + "---\n" + claim_pod(f"claim-{name}"))
    for kind in ("limits", "claim"):
        await cluster.wait_pod(f"{kind}-{name}")
