"""Who had a device when, and for how long by workload, with a real agent; and what becomes of the file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from drabridge.agent import history
from drabridge.agent.history import FILE_NAME, OLDER_FILE_NAME, History
from drabridge.system.io_thread import IoThread
from drabridge.telemetry.holds import Ended, Holding, Holds
from tests.support.agent_on_cluster import all_free, bridge, claim_pod, limits_pod
from tests.support.agent_process import AgentProcess, drabridge, metric
from tests.support.waiting import until

REPLICA_SET = """\
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-6d4b75cb6d, namespace: default}
"""


async def told(agent: AgentProcess, *words: str) -> list[dict[str, Any]]:
    code, said = await drabridge(agent, "history", *words, "-o", "json")
    assert code == 0, said
    found: list[dict[str, Any]] = json.loads(said)["holds"]
    return found


async def test_both_apis_are_in_the_history_and_counted_by_workload() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(REPLICA_SET)
        uid = (cluster.get("replicasets", "web-6d4b75cb6d") or {})["metadata"]["uid"]
        owner = f"{{apiVersion: apps/v1, kind: ReplicaSet, name: web-6d4b75cb6d, uid: {uid}, controller: true}}"
        owned = f"namespace: default, ownerReferences: [{owner}]}}"
        await cluster.apply(limits_pod("web").replace("namespace: default}", owned))
        await cluster.apply(claim_pod("train"))
        await cluster.wait_pod("web")
        await cluster.wait_pod("train")

        async def counted(**labels: str) -> bool:
            return await metric(agent, "held_seconds_total", namespace="default", **labels) > 0

        await until(lambda: counted(owner_kind="Deployment", owner_name="web", api="deviceplugin"), 20, agent.text)
        await until(lambda: counted(owner_kind="Pod", owner_name="train", api="dra"), 20, agent.text)
        rows = await told(agent)
        assert {(row["pod"], row["claim"], row["owner"]) for row in rows} == {
            ("web", "", "Deployment/web"),
            ("", "train", "Pod/train"),
        }
        assert {row["until"] for row in rows} == {""}
        for name in ("web", "train"):
            await cluster.delete("pods", name)
        await cluster.delete("resourceclaims", "train")
        await until(lambda: all_free(agent), 20, agent.text)
        await until(lambda: _ended(agent, 2), 10, agent.text)
        await agent.stop()
        with (agent.control.parent / FILE_NAME).open("ab") as file:
            file.write(b'{"device": "nu')  # a crash
        await agent.start()
        await agent.ready()
        device = rows[0]["device"]
        (row,) = await told(agent, device)
        assert row["until"] >= row["since"]
        code, said = await drabridge(agent, "history")
        assert (code, "Deployment/web" in said, "claim default/train" in said) == (0, True, True), said
        code, said = await drabridge(agent, "history", "none")
        assert (code, "There is of" in said) == (2, True), said


async def _ended(agent: AgentProcess, count: int) -> bool:
    return sum(bool(row["until"]) for row in await told(agent)) == count


NOBODY = Holds(lambda holding: "")


def ended(number: int) -> Ended:
    holding = Holding(f"gpu-{number % 2}", "r", "deviceplugin", "default", f"pod-{number}", "", 1e9 + number, "Job/x")
    return Ended(holding, 1e9 + number + 1, "proven")


async def read(kept: History, **asked: Any) -> dict[str, Any]:
    return await kept.request(json.dumps(asked).encode())


def test_the_files_are_bounded_and_have_the_newest(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(history, "FILE_BYTES", 4000)

    async def fill() -> dict[str, Any]:
        files = IoThread("history")
        kept = History(tmp_path, files, NOBODY)
        for number in range(200):
            kept.add([ended(number)])
            await files.wait_all()
        return await read(kept, limit=10)

    found = asyncio.run(fill())
    assert [row["pod"] for row in found["holds"]] == [f"pod-{number}" for number in range(199, 189, -1)]
    assert found["leftOut"] > 0
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, OLDER_FILE_NAME}
    assert max(sizes) < 5000


def test_a_cut_line_costs_no_other_line_and_nonsense_no_answer(tmp_path: Path) -> None:
    async def run() -> dict[str, Any]:
        files = IoThread("history")
        kept = History(tmp_path, files, NOBODY)
        kept.add([ended(0)])
        await files.wait_all()
        with (tmp_path / FILE_NAME).open("ab") as file:
            file.write(b'{"device": "gpu-0", "resou')
        again = History(tmp_path, files, NOBODY)
        again.add([ended(2)])
        await files.wait_all()
        with (tmp_path / FILE_NAME).open("ab") as file:
            file.write(b'[]\n{"device": 3}\n\xff\xfe\n' + b"[" * 100_000 + b"\n")
        return await read(again, device="gpu-0")

    found = asyncio.run(run())
    assert [row["pod"] for row in found["holds"]] == ["pod-2", "pod-0"]
    assert found["damagedLines"] == 5


def test_what_a_full_disk_did_not_take_is_written_later(tmp_path: Path) -> None:
    async def run() -> list[str]:
        files = IoThread("history")
        folder = tmp_path / "state"
        kept = History(folder, files, NOBODY)
        kept.add([ended(0)])
        await files.wait_all()
        assert "history is not written" in kept.notes()[0]
        folder.mkdir()
        await kept.retry()
        await files.wait_all()
        assert kept.notes() == []
        return [row["pod"] for row in (await read(kept))["holds"]]

    assert asyncio.run(run()) == ["pod-0"]
