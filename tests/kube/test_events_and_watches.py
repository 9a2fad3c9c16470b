"""Events, the Node's annotation and watches against the simulated API server, with every kind of trouble."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.kube import watch
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.events import QUEUE, REPEAT_SECONDS, Announcer
from drabridge.kube.node_annotation import NodeAnnotationWatch
from drabridge.kube.versions import RESOURCE_VERSIONS
from drabridge.ledger.effects import Notify, Subject
from drabridge.ledger.entries import Ledger
from drabridge.ledger.events import Observed
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.waiting import until

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[SimApiServer, KubernetesCluster]]:
    async with SimApiServer() as server:
        server.objects.create(NODE)
        server.objects.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        cluster = KubernetesCluster.from_kubeconfig(server.kubeconfig(tmp_path / "kubeconfig"))
        yield server, cluster
        cluster.close()


def announcing(cluster: KubernetesCluster | None, *more: Any) -> Announcer:
    api_server: Any = SimpleNamespace(cluster=cluster)
    return Announcer(api_server, *more)


@contextlib.asynccontextmanager
async def running(work: Announcer | NodeAnnotationWatch | PodWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(work.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_events_are_written_on_the_objects_they_are_about(api: tuple[SimApiServer, KubernetesCluster]) -> None:
    server, cluster = api
    announcer = announcing(cluster, "node-a", "gpu.example.com", lambda: 1_000_000.0)
    async with running(announcer):
        announcer.tell(Notify(Subject.NODE, "AllocateRefused", "m" * 3000))
        announcer.tell(Notify(Subject.CLAIM, "DeviceRefused", "held", "team", "claim", "uid-1"))
        await until(lambda: len(server.objects.peek("events")) == 2)
    about = {event["involvedObject"]["kind"]: event for event in server.objects.peek("events")}
    node_uid = server.objects.get("nodes", "node-a")["metadata"]["uid"]
    assert about["Node"]["involvedObject"]["uid"] == node_uid
    assert len(about["Node"]["message"]) == 1024
    assert about["ResourceClaim"]["metadata"]["namespace"] == "team"
    assert about["ResourceClaim"]["source"] == {"component": "gpu.example.com", "host": "node-a"}


@pytest.mark.parametrize("version", [row.version for row in RESOURCE_VERSIONS])
async def test_an_event_names_a_claim_in_the_version_that_the_server_has(
    api: tuple[SimApiServer, KubernetesCluster], version: str
) -> None:
    server, cluster = api
    server.versions = (version,)
    announcer = announcing(cluster, "node-a", "gpu.example.com", lambda: 1_000_000.0)
    async with running(announcer):
        announcer.tell(Notify(Subject.CLAIM, "DeviceRefused", "held", "team", "claim", "uid-1"))
        announcer.tell(Notify(Subject.POD, "DeviceConflict", "held", "team", "pod", "uid-2"))
        await until(lambda: len(server.objects.peek("events")) == 2)
    about = {event["involvedObject"]["kind"]: event["involvedObject"] for event in server.objects.peek("events")}
    assert about["ResourceClaim"]["apiVersion"] == f"resource.k8s.io/{version}"
    assert about["Pod"]["apiVersion"] == "v1"


async def test_many_equal_events_are_one(api: tuple[SimApiServer, KubernetesCluster]) -> None:
    server, cluster = api
    now, lost = [0.0], []
    announcer = announcing(cluster, "node-a", "d", lambda: now[0], lambda: lost.append(1))
    for _ in range(1000):
        announcer.tell(Notify(Subject.NODE, "AllocateRefused", "the same"))
    for number in range(QUEUE + 5):
        announcer.tell(Notify(Subject.NODE, "AllocateRefused", f"another {number}"))
    assert len(lost) == 6
    async with running(announcer):
        await until(lambda: len(server.objects.peek("events")) == QUEUE)
        announcer.tell(Notify(Subject.NODE, "AllocateRefused", f"another {QUEUE + 4}"))  # one that was dropped
        await until(lambda: len(server.objects.peek("events")) == QUEUE + 1)
        now[0] += REPEAT_SECONDS + 1
        announcer.tell(Notify(Subject.NODE, "AllocateRefused", "the same"))
        await until(lambda: len(server.objects.peek("events")) == QUEUE + 2)


async def test_of_two_claims_of_one_name_each_has_its_event(api: tuple[SimApiServer, KubernetesCluster]) -> None:
    server, cluster = api
    announcer = announcing(cluster, "node-a", "d", lambda: 1_000_000.0)
    async with running(announcer):
        for uid in ("uid-1", "uid-2", "uid-1"):
            announcer.tell(Notify(Subject.CLAIM, "DeviceRefused", "held", "team", "claim", uid))
        announcer.tell(Notify(Subject.CLAIM, "DeviceRefused", "held", "team", "last", "uid-3"))
        events = server.objects.peek
        await until(lambda: any(event["involvedObject"]["uid"] == "uid-3" for event in events("events")))
    assert sorted(e["involvedObject"]["uid"] for e in events("events")) == ["uid-1", "uid-2", "uid-3"]


async def test_an_event_that_cannot_be_written_is_counted_and_nothing_waits(
    api: tuple[SimApiServer, KubernetesCluster],
) -> None:
    server, cluster = api
    lost: list[int] = []
    announcer = announcing(cluster, "node-a", "d", lambda: 0.0, lambda: lost.append(1))
    server.faults.fail(20, 403, verb="create", resource="events")
    async with running(announcer):
        announcer.tell(Notify(Subject.NODE, "LedgerLost", "m"))
        await until(lambda: lost)


async def test_without_an_api_server_events_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    announcing(None, "node-a", "d", lambda: 0.0).tell(Notify(Subject.NODE, "LedgerLost", "the ledger is gone"))
    assert "the ledger is gone" in caplog.text


async def test_what_pods_may_have_on_the_node_is_told_of_extended_resources(
    api: tuple[SimApiServer, KubernetesCluster],
) -> None:
    server, cluster = api
    seen: list[Mapping[str, int]] = []
    watch = NodeAnnotationWatch(cluster, "node-a", "d", lambda node: seen.append(node.allocatable if node else {}))
    amounts = {"cpu": "2", "memory": "4Gi", "example.com/gpu": "3", "example.com/strange": 7}
    async with running(watch):
        await until(lambda: seen == [{}])
        server.objects.modify(
            "nodes", "node-a", lambda one: one.update(status={"allocatable": amounts}), subresource="status"
        )
        await until(lambda: len(seen) > 1)
    assert seen[-1]["example.com/gpu"] == 3
    assert "memory" not in seen[-1]


async def test_the_annotation_is_followed_through_every_trouble(
    api: tuple[SimApiServer, KubernetesCluster],
) -> None:
    server, cluster = api
    seen: list[str | None] = []
    watch = NodeAnnotationWatch(
        cluster, "node-a", "gpu.example.com", lambda node: seen.append(node.lanes if node else "gone")
    )

    def annotate(value: str) -> None:
        def change(node: dict[str, Any]) -> None:
            node["metadata"]["annotations"] = {"gpu.example.com/lanes": value, "other": "x"}

        server.objects.modify("nodes", "node-a", change)

    async with running(watch):
        await until(lambda: seen == [None])
        annotate("one")
        await until(lambda: seen[-1] == "one")
        server.faults.drop_watches()
        annotate("two")
        await until(lambda: seen[-1] == "two", 10)
        server.faults.partition()
        annotate("three")
        await asyncio.sleep(0.3)
        server.faults.heal()
        await until(lambda: seen[-1] == "three", 15)


NOBODY = [b'{"metadata": null, "status": 7}', b"7", b'{"spec": {"containers": [3]}}']
NAMED = b'{"metadata": {"uid": "u", "name": "odd"}, "spec": {"containers": [3]}}'


@pytest.mark.parametrize(("obj", "lists"), [*((obj, 2) for obj in NOBODY), (NAMED, 1)])
async def test_an_answer_about_pods_that_is_not_understood_makes_them_unknown(
    api: tuple[SimApiServer, KubernetesCluster], monkeypatch: pytest.MonkeyPatch, obj: bytes, lists: int
) -> None:
    """Until the next list, or, of a pod that has at least an identity, until that pod is gone."""
    server, cluster = api
    watch = PodWatch(cluster, "node-a", lambda: None)

    def known() -> bool:
        return watch.unaccounted(Ledger(), Observed(0.0, 0, listed={})) is not None

    def bind(name: str, kind: bytes, sent: bytes) -> None:
        """A pod comes, and the watch tells something else."""
        spec = {"nodeName": "node-a", "containers": [{"name": "main", "image": "x"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        monkeypatch.setattr(server, "_event", lambda *_: b'{"type": "%s", "object": %s}\n' % (kind, sent))
        server.objects.create(pod, namespace="team")

    async with running(watch):
        await until(known)
        bind("one", b"MODIFIED", obj)
        await until(lambda: not known())
        if lists == 1:
            bind("two", b"DELETED", obj)
        await until(known, 10)
        assert sum(request.verb == "list" for request in server.requests) == lists


@pytest.mark.parametrize(("verb", "status"), [("watch", 410), ("watch", 403), ("list", 410)])
async def test_a_server_that_refuses_is_asked_ever_less_often_and_this_is_reported(
    api: tuple[SimApiServer, KubernetesCluster], caplog: pytest.LogCaptureFixture, verb: str, status: int
) -> None:
    """A list that is answered is no reason to ask for the watch at once again, and neither is an expired version."""
    server, cluster = api
    server.faults.fail(1_000_000, status, verb=verb, resource="nodes")

    def asked() -> list[float]:
        return [request.at_seconds for request in server.requests if request.verb == verb]

    async with running(NodeAnnotationWatch(cluster, "node-a", "gpu.example.com", lambda value: None)):
        await until(lambda: len(asked()) == 4, 15)
    pauses = [after - before for before, after in itertools.pairwise(asked())]
    assert all(pause >= least for pause, least in zip(pauses, (0.25, 0.5, 1.0), strict=True)), pauses
    assert caplog.messages.count("objects not followed") >= 3


async def test_pauses_are_short_again_after_a_watch_that_lived(
    api: tuple[SimApiServer, KubernetesCluster], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STEADY_SECONDS", 0.3)
    server, cluster = api

    def pauses() -> list[float]:
        return [vars(record)["retry_seconds"] for record in caplog.records if record.message == "objects not followed"]

    server.faults.fail(3, 410, verb="watch")
    async with running(NodeAnnotationWatch(cluster, "node-a", "gpu.example.com", lambda value: None)):
        await until(lambda: sum(request.verb == "watch" for request in server.requests) == 4, 15)
        await asyncio.sleep(0.5)
        server.faults.fail(1, 410, verb="watch")
        assert server.faults.drop_watches() == 1
        await until(lambda: len(pauses()) == 4, 15)
    assert pauses()[2] >= 1.0
    assert pauses()[3] <= 0.5
