"""Objects that users may write into the API: as large, as deep and as strange as an API server accepts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from drabridge.sim.apiserver import http
from drabridge.sim.cluster import ClusterNode
from tests.support import forks
from tests.support.agent_on_cluster import bridge, healthy, limits_pod, set_lanes
from tests.support.agent_process import DRIVER, AgentProcess
from tests.support.strange_objects import Strange
from tests.support.waiting import until

FAT_POD = b",".join([b'{"name":"A"}'] * 85_000)  # variables of a container: 1.1 MB, below etcd's 1.5
MANY_LIMITS = b",".join(b'"a.b/%d":"1"' % n for n in range(36_000))  # and as many requests, by default: 1.1 MB as well
FAT_PARAMETERS = b"[" + b"[]," * 3_380 + b"[]]"  # 10 KiB, the most that one opaque entry may have; 32 entries a claim
DEEP_PARAMETERS = b"[" * 5_000 + b"]" * 5_000  # 10 KB; Go's decoder takes ten thousand levels

STAND_INS = {
    '{"name":"FAT"}': FAT_POD,
    '"a.b/many":"1"': MANY_LIMITS,
    '"FAT"': FAT_PARAMETERS,
    '"DEEP"': DEEP_PARAMETERS,
}


def splice(monkeypatch: pytest.MonkeyPatch, stand_ins: Mapping[str, bytes] = STAND_INS) -> None:
    """Let the simulated API server send bytes that Python could not have made JSON of, where a stand-in is stored."""
    dump = http.dump

    def spliced(value: Any) -> bytes:
        data = dump(value)
        for name, what in stand_ins.items():
            data = data.replace(name.encode(), what)
        return data

    monkeypatch.setattr(http, "dump", spliced)


@contextlib.contextmanager
def kubelet_takes_none(monkeypatch: pytest.MonkeyPatch, prefix: str) -> Iterator[None]:
    """Pods with such names are bound to the node, and never begin nor end there."""
    sync = ClusterNode._sync

    def without(self: ClusterNode) -> None:
        every = self._objects

        class Others:
            def __getattr__(self, name: str) -> Any:
                return getattr(every, name)

            def peek(self, *kind: str, **options: Any) -> list[Any]:
                return [one for one in every.peek(*kind, **options) if not one["metadata"]["name"].startswith(prefix)]

        self._objects = Others()  # type: ignore[assignment]
        try:
            sync(self)
        finally:
            self._objects = every

    with monkeypatch.context() as patching:
        patching.setattr(ClusterNode, "_sync", without)
        yield


def fat_pod(name: str, node: str = "node-a") -> dict[str, Any]:
    """A pod of 1.1 MB that asks for nothing; a plain user may bind it to a node."""
    container = {"name": "main", "image": "x", "env": [{"name": "FAT"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [container]},
    }


def pod_of_many(name: str, node: str = "node-a") -> dict[str, Any]:
    """A pod of 1.1 MB that asks for a device each of thousands of resources."""
    container = {"name": "main", "image": "x", "resources": {"limits": {"a.b/many": "1"}}}
    return {**fat_pod(name, node), "spec": {"nodeName": node, "containers": [container]}}


def claim(name: str, *parameters: Any, driver: str = "any.example.com") -> dict[str, Any]:
    """A claim that nothing is allocated to, with such parameters."""
    entries = [{"opaque": {"driver": driver, "parameters": {"a": one}}} for one in parameters]
    requests = [{"name": "r", "exactly": {"deviceClassName": "nothing"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests, "config": entries}},
    }


def fat_claim(name: str) -> dict[str, Any]:
    """A claim of 320 KiB."""
    return claim(name, *["FAT"] * 32)


async def peak_mib(monkeypatch: pytest.MonkeyPatch, pods: int, claims: int) -> float:
    """The most memory that an agent has while large pods and claims come, while it starts, and while it lists them."""
    splice(monkeypatch)
    monkeypatch.setenv(forks.SERVER, "off")
    with kubelet_takes_none(monkeypatch, "fat"):
        async with bridge() as (agent, cluster, _):
            objects = cluster.api.objects
            for n in range(pods):
                objects.create((fat_pod, pod_of_many)[n % 2](f"fat{n}"), namespace="default")
            for n in range(claims):
                objects.create(fat_claim(f"fat{n}"), namespace="default")
            await cluster.apply(limits_pod("after"))
            await cluster.wait_pod("after")
            peaks = [_peak_mib(agent)]
            await agent.stop()
            begun = len(cluster.api.requests)
            await agent.start()
            await agent.ready()
            await until(lambda: _watched(cluster.api.requests[begun:], "pods"), 30)
            await set_lanes(agent, legacy=4, dra=0)
            await until(lambda: len(healthy(cluster)) == 4, 30, agent.text)
            return max(*peaks, _peak_mib(agent))


def _watched(requests: Sequence[Any], resource: str) -> bool:
    return any(one.verb == "watch" and one.resource == resource for one in requests)


def _peak_mib(agent: AgentProcess) -> float:
    assert agent.process is not None
    text = Path(f"/proc/{agent.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmHWM"))


class Strangers:
    """Objects of the simulated API server whose names begin with ``strange``: clients are sent something strange
    instead, that of :mod:`tests.support.strange_objects`; the server's own parts see them as they were made.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.sent = 0
        self._maker = Strange(seed)
        dump = http.dump

        def strange(value: Any) -> bytes:
            bodies: dict[str, bytes] = {}
            data = dump(self._replaced(value, bodies))
            for name, body in bodies.items():
                data = data.replace(dump(name), body)
            return data

        monkeypatch.setattr(http, "dump", strange)

    def _replaced(self, value: Any, bodies: dict[str, bytes]) -> Any:
        """``value`` with a stand-in for each of them, of an object, a list or an event of a watch."""
        if not isinstance(value, dict):
            return value
        metadata = value.get("metadata")
        if isinstance(metadata, dict) and str(metadata.get("name", "")).startswith("strange"):
            self.sent += 1
            stand_in = f"@@stranger {len(bodies)}@@"
            bodies[stand_in] = self._maker.json(value)
            return stand_in
        if isinstance(value.get("items"), list):
            return {**value, "items": [self._replaced(item, bodies) for item in value["items"]]}
        if "object" in value and "type" in value:
            return {**value, "object": self._replaced(value["object"], bodies)}
        return value


def stranger(number: int) -> list[dict[str, Any]]:
    """A pod of the node, a claim and a slice, as they are before they are made strange."""
    name = f"strange-{number}"
    container = {"name": "main", "image": "x", "resources": {"limits": {"vendor.example.com/x": "1"}}}
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return [
        {**fat_pod(name), "spec": {"nodeName": "node-a", "containers": [container]}},
        claim(name, {"b": [1, "x"]}, driver=DRIVER),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {"driver": DRIVER, "nodeName": "node-a", "pool": pool, "devices": [{"name": "odd"}]},
        },
    ]
