"""What earlier releases have left on the node's disk is read, and holds what it held.

``releases/VERSION`` has the files of an agent of that version that was killed: ``full`` prepared for a claim, ``zero``
given to a pod with limits, and one device wished for claims by ``drabridge lanes set``. Each later version reads it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.agent_on_cluster import BOTH_LANES, bridge
from tests.support.agent_process import AgentProcess

RELEASES = sorted(path.name for path in (Path(__file__).parent / "releases").iterdir())
HELD_LONG = re.sub(r"safety: \{.*\}", "safety: {settleSeconds: 600, absentSeconds: 600}", BOTH_LANES)


def put_back(agent: AgentProcess, release: str) -> None:
    """The files of the release, and the boot in which they were written."""
    saved, state = Path(__file__).parent / "releases" / release, agent.control.parent
    shutil.rmtree(state)
    shutil.copytree(saved / "state", state)
    shutil.copytree(saved / "cdi", agent.cdi, dirs_exist_ok=True)
    (record,) = (state / "claims").iterdir()
    boot_id = agent.root / "boot-id"
    boot_id.write_text(json.loads(record.read_text())["bootID"] + "\n")
    agent.arguments = (*agent.arguments, "--boot-id-file", str(boot_id))


@pytest.mark.parametrize("release", RELEASES)
async def test_everything_that_an_earlier_release_held_is_held(release: str) -> None:
    async with bridge(HELD_LONG) as (agent, _, _):
        await agent.stop()
        put_back(agent, release)
        names = {path.name for path in agent.cdi.iterdir()}
        await agent.start()
        await agent.ready()
        rows = {row["name"]: row for row in (await agent.status())["devices"]}
        assert {name: (row["owner"], row["lane"]) for name, row in rows.items()} == {
            "full": ("dra-prepared", "dra"),
            "null": ("none", "legacy"),
            "random": ("none", "legacy"),
            "zero": ("legacy", "legacy"),
        }
        assert [one["claim"] for one in rows["full"]["holders"]] == ["claim"]
        assert names <= {path.name for path in agent.cdi.iterdir()}  # running containers are restarted by them
        assert "unreadable" not in agent.text()


def test_there_is_a_state_of_every_release() -> None:
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)[::-1] == RELEASES
