"""See on the simulated cluster what was recorded from a real one."""

from __future__ import annotations

from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.sim.record.api import Api, Json
from tests.sim.record.scenario import Place, record
from tests.sim.record.scrub import scrub
from tests.support.waiting import PATIENCE, short_directory


async def simulate(release: str) -> dict[str, Json]:
    """Return the recording of a simulated release, scrubbed."""
    with short_directory() as root:
        async with SimCluster(root, release=release, timings=ClusterTimings.fast()) as cluster:
            api = Api(cluster.api.kubeconfig(root / "kubeconfig"))
            gates = {
                name: {"enabled": on} for name, on in cluster.api.gates.items() if name in cluster.api.release.gates
            }
            place = Place(api, root / "node-a", patience_seconds=10.0 * PATIENCE)
            try:
                found = await record(place, {"apiserver": gates, "kubelet": gates})
            finally:
                api.close()
            return scrub(found, str(root / "node-a"))
