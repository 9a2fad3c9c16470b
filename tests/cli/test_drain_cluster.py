"""``drabridge drain --cluster``: what the API server alone knows of a driver's claims, on every node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drabridge.kube.allocated_claims import usage
from drabridge.kube.api import Kind, Listing
from drabridge.kube.json_reader import ObjectIdentity
from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.support.agent_on_cluster import CLASS, claim_pod
from tests.support.agent_process import DRIVER, drain_command
from tests.support.waiting import short_directory

Json = dict[str, Any]


async def command(kubeconfig: Path, *words: str, output: str = "json") -> tuple[int, str, str]:
    return await drain_command("--cluster", "--kubeconfig", str(kubeconfig), *words, output=output)


def allocate(cluster: SimCluster, claim: str, *results: tuple[str, str, str]) -> None:
    """What the scheduler writes: (driver, pool, device) each."""
    allocated = [{"request": "r", "driver": d, "pool": p, "device": n} for d, p, n in results]
    found = cluster.get("pods", claim)
    assert found is not None
    reserved = [{"resource": "pods", "name": claim, "uid": found["metadata"]["uid"]}]

    def write(obj: Json) -> None:
        obj["status"] = {"allocation": {"devices": {"results": allocated}}, "reservedFor": reserved}

    cluster.api.objects.modify("resourceclaims", claim, write, namespace="default", subresource="status")


def slice_of(node: str, pool: str, *devices: str) -> Json:
    spec = {"driver": DRIVER, "nodeName": node, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}
    metadata = {"name": f"{node}-slice"}
    named = [{"name": name} for name in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": spec | {"devices": named},
    }


async def test_claims_of_all_nodes_are_named_with_their_pods_and_others_are_not() -> None:
    with short_directory() as root:
        async with SimCluster(root, nodes=("node-a", "node-b"), timings=ClusterTimings.fast()) as cluster:
            kubeconfig = cluster.api.kubeconfig(root / "kubeconfig")
            await cluster.apply(CLASS)
            code, out, err = await command(kubeconfig, "--driver", DRIVER)
            assert (code, json.loads(out)["claims"]) == (0, []), err
            for name in ("one", "two", "other", "idle"):
                await cluster.apply(claim_pod(name))
            await cluster.apply(slice_of("node-b", "pool-of-b", "full"))
            allocate(cluster, "one", (DRIVER, "node-a", "zero"), ("nic.example.com", "x", "eth0"))
            allocate(cluster, "two", (DRIVER, "pool-of-b", "full"))
            allocate(cluster, "other", ("nic.example.com", "node-a", "eth0"))

            code, out, _ = await command(kubeconfig, "--driver", DRIVER)
            document = json.loads(out)
            assert (code, document["complete"], document["offered"]) == (1, False, {"node-b": 1})
            assert [(row["name"], row["nodes"], row["devices"], row["pods"]) for row in document["claims"]] == [
                ("one", ["node-a"], ["zero"], ["default/one"]),
                ("two", ["node-b"], ["full"], ["default/two"]),
            ]
            code, screen, _ = await command(kubeconfig, "--driver", DRIVER, output="table")
            assert code == 1
            assert "NOT DRAINED: 2 claims have devices of mem.example.com" in screen
            assert "default/one" in screen
            assert "default/two" in screen
            assert "Terminating for ever" in screen
            assert "default/other" not in screen


async def test_a_claim_that_cannot_be_read_counts() -> None:
    class Server:
        async def read(self, path: str) -> Json:
            return {"versions": [{"version": "v1"}]}

        async def list(self, kind: Kind, **options: Any) -> Listing[Any]:
            strange = (ObjectIdentity("uid", "default", "strange"),) if kind.plural == "resourceclaims" else ()
            return Listing((), "", strange)

    (found,) = (await usage(Server(), DRIVER)).claims  # type: ignore[arg-type]
    assert (found.namespace, found.name, found.devices) == ("default", "strange", ("devices that cannot be read",))


async def test_a_forbidden_list_is_an_error_and_nothing_counts_as_drained() -> None:
    with short_directory() as root:
        async with SimCluster(root, timings=ClusterTimings.fast()) as cluster:
            token = cluster.api.token("node-a")
            kubeconfig = cluster.api.kubeconfig(root / "kubeconfig", token=token)
            cluster.api.revoke(token)
            code, _, err = await command(kubeconfig, "--driver", DRIVER)
            assert code == 1
            assert "Unauthorized" in err
            cluster.api.kubeconfig(kubeconfig)
            await cluster.api.stop()
            code, _, err = await command(kubeconfig, "--driver", DRIVER)
            assert code == 1
            assert "no answer from the API server" in err


async def test_an_invalid_driver_name_is_an_error_not_a_driver_without_claims(tmp_path: Path) -> None:
    code, out, err = await command(tmp_path / "none", "--driver", "Not A Domain")
    assert (code, out) == (2, "")
    assert "found 'Not A Domain', expected a domain name" in err
