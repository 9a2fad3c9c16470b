"""``python -m tests.agent.keep_release``: keep what this version leaves on a node's disk, in ``releases/VERSION``.

Done once, for a release. An agent serves a pod with limits and one with a claim, and is killed.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path

from drabridge import __version__
from tests.support.agent_on_cluster import bridge, claim_pod, devices_in_slices, limits_pod, set_lanes
from tests.support.waiting import until

RELEASES = Path(__file__).parent / "releases"
HELD = {"full": "dra-prepared", "zero": "legacy"}  # what the test of every release expects


async def keep(folder: Path) -> None:
    """Write the state and the CDI files of a killed agent into a folder that is not there yet."""
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        await cluster.apply(claim_pod("claim"))
        await cluster.apply(limits_pod("limits"))
        await cluster.wait_pod("claim")
        await cluster.wait_pod("limits")
        await set_lanes(agent, dra=1)

        async def moved() -> bool:
            return [row["lane"] for row in (await agent.status())["devices"]].count("legacy") == 3

        await until(moved, 20, agent.text)
        rows = await agent.owners()
        await agent.stop(signal.SIGKILL)
        held = {name: owner for name, owner in rows.items() if owner != "none"}
        if held != HELD:
            raise SystemExit(f"other devices are held than the test expects, run it again: {held}")
        without_sockets = shutil.ignore_patterns("*.sock", "*.lock", "lock", ".*")
        shutil.copytree(agent.control.parent, folder / "state", ignore=without_sockets)
        shutil.copytree(agent.cdi, folder / "cdi")


if __name__ == "__main__":
    target = RELEASES / __version__
    if target.exists():
        sys.exit(f"{target} is there already: what a release left is never changed")
    asyncio.run(keep(target))
    print(f"wrote {target}")
