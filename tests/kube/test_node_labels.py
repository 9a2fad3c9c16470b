"""Labels of the Node against the simulated API server, with other writers and every kind of trouble."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drabridge.kube import node_labels
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.node_annotation import NodeAnnotationWatch
from drabridge.kube.node_labels import NodeLabelWriter
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.waiting import until

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": {"zone": "a"}}}
DRIVER = "gpu.example.com"
WANTED = {"example.com/count": "2", "example.com/product": "A30"}

Place = tuple[SimApiServer, KubernetesCluster, NodeLabelWriter]


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(node_labels, "COALESCE_SECONDS", 0.05)
    async with SimApiServer() as server:
        server.objects.create(NODE)
        cluster = KubernetesCluster.from_kubeconfig(server.kubeconfig(tmp_path / "kubeconfig"))
        writer = NodeLabelWriter(SimpleNamespace(cluster=cluster), "node-a", DRIVER)  # type: ignore[arg-type]
        watch = NodeAnnotationWatch(cluster, "node-a", DRIVER, lambda node: writer.seen(node.labels if node else None))
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(writer.run())]
        try:
            yield server, cluster, writer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            cluster.close()


def found(server: SimApiServer) -> dict[str, str]:
    return dict(server.objects.get("nodes", "node-a")["metadata"].get("labels") or {})


def has(server: SimApiServer, expected: Mapping[str, str]) -> bool:
    return found(server) == {"zone": "a", **expected}


def writes(server: SimApiServer) -> int:
    return sum(request.verb == "patch" for request in server.requests)


def label(server: SimApiServer, **labels: str | None) -> None:
    """Somebody else updates the Node, as NFD's master does."""

    def change(node: dict[str, Any]) -> None:
        own = node["metadata"].setdefault("labels", {})
        for name, value in labels.items():
            if value is None:
                own.pop(f"example.com/{name}", None)
            else:
                own[f"example.com/{name}"] = value

    server.objects.modify("nodes", "node-a", change)


async def test_labels_are_written_once_and_follow_what_is_wanted(place: Place) -> None:
    server, _, writer = place
    writer.want(WANTED)
    await until(lambda: has(server, WANTED))
    await asyncio.sleep(0.3)
    assert writes(server) == 1
    writer.want({"example.com/count": "3"})
    await until(lambda: has(server, {"example.com/count": "3"}))
    for count in range(4, 9):  # a driver that comes up
        writer.want({"example.com/count": str(count)})
    await until(lambda: has(server, {"example.com/count": "8"}))
    assert writes(server) <= 4
    writer.want({})
    await until(lambda: has(server, {}))
    await asyncio.sleep(0.3)
    assert {request.verb for request in server.requests} <= {"list", "watch", "patch"}


async def test_nothing_is_written_before_it_is_known_what_is_wanted(place: Place) -> None:
    """An agent that starts again must not take its labels away until it has seen the devices."""
    server, cluster, writer = place
    writer.want(WANTED)
    await until(lambda: has(server, WANTED))
    after = NodeLabelWriter(SimpleNamespace(cluster=cluster), "node-a", DRIVER)  # type: ignore[arg-type]
    watch = NodeAnnotationWatch(cluster, "node-a", DRIVER, lambda node: after.seen(node.labels if node else None))
    before = writes(server)
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(after.run())]
    try:
        await asyncio.sleep(0.5)
        assert has(server, WANTED)
        after.want(WANTED)
        await asyncio.sleep(0.3)
        assert writes(server) == before
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_labels_of_a_node_that_went_while_nobody_watched_are_not_kept(place: Place) -> None:
    _, cluster, _ = place
    seen: list[Any] = []
    NodeAnnotationWatch(cluster, "node-a", DRIVER, seen.append).listed(())
    assert seen == [None]


async def test_what_is_not_wanted_costs_no_request(place: Place) -> None:
    server, _, writer = place
    writer.want({})
    label(server, other="x")
    await asyncio.sleep(0.4)
    assert writes(server) == 0


async def test_labels_of_others_are_left_to_them(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    server, _, writer = place
    label(server, product="Tesla-T4")
    await asyncio.sleep(0.2)
    with caplog.at_level(logging.WARNING):
        writer.want(WANTED)
        await until(lambda: has(server, {"example.com/count": "2", "example.com/product": "Tesla-T4"}))
    (said,) = [one for one in caplog.records if "left to them" in one.getMessage()]
    assert said.labels.startswith("example.com/product (")  # type: ignore[attr-defined]
    label(server, product=None)
    await until(lambda: has(server, WANTED))


async def test_a_change_that_the_watch_tells_before_the_answer_to_a_write_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, cluster, writer = place
    label(server, product="Tesla-T4")
    await asyncio.sleep(0.2)
    apply = cluster.apply

    async def slow(*arguments: Any, **named: Any) -> Any:
        answer = await apply(*arguments, **named)
        if "example.com/product" in found(server):
            label(server, product=None)
            await asyncio.sleep(0.3)
        return answer

    monkeypatch.setattr(cluster, "apply", slow)
    writer.want(WANTED)
    await until(lambda: has(server, WANTED))


async def test_a_label_that_somebody_takes_over_is_theirs(place: Place) -> None:
    server, _, writer = place
    writer.want(WANTED)
    await until(lambda: has(server, WANTED))
    label(server, product="Tesla-T4")
    await asyncio.sleep(0.4)
    writer.want({})
    await until(lambda: has(server, {"example.com/product": "Tesla-T4"}))


async def test_a_label_that_is_taken_between_the_look_and_the_write_is_not_forced(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    server, cluster, _ = place
    late = NodeLabelWriter(SimpleNamespace(cluster=cluster), "node-a", DRIVER)  # type: ignore[arg-type]
    late.seen(node_labels.labels_of(server.objects.get("nodes", "node-a")))
    label(server, product="T4")
    late.want(WANTED)
    task = asyncio.create_task(late.run())
    try:
        with caplog.at_level(logging.WARNING):
            await until(lambda: "labels of the Node not written" in caplog.text)
        assert has(server, {"example.com/product": "T4"})
        late.seen(node_labels.labels_of(server.objects.get("nodes", "node-a")))
        await until(lambda: has(server, {"example.com/product": "T4", "example.com/count": "2"}))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_removed_label_comes_back(place: Place) -> None:
    server, _, writer = place
    writer.want(WANTED)
    await until(lambda: has(server, WANTED))
    label(server, count=None, product=None)
    await until(lambda: has(server, WANTED))


async def test_after_failures_it_is_tried_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    server, _, writer = place
    server.faults.fail(2, 500, verb="patch", resource="nodes")
    with caplog.at_level(logging.WARNING):
        writer.want(WANTED)
        await until(lambda: has(server, WANTED), 15)
    assert "labels of the Node not written" in caplog.text
    server.faults.fail(1, 403, verb="patch", resource="nodes")
    with caplog.at_level(logging.WARNING):
        writer.want({})
        await until(lambda: has(server, {}), 15)
    assert any("the chart grants it" in getattr(one, "hint", "") for one in caplog.records)


async def test_another_node_of_the_name_is_labelled_anew_and_none_is_made(place: Place) -> None:
    server, cluster, writer = place
    writer.want(WANTED)
    await until(lambda: has(server, WANTED))
    late = NodeLabelWriter(SimpleNamespace(cluster=cluster), "node-a", DRIVER)  # type: ignore[arg-type]
    late.seen(node_labels.labels_of(server.objects.get("nodes", "node-a")))
    server.objects.delete("nodes", "node-a", "")
    late.want({})
    writer.want({**WANTED, "example.com/count": "1"})
    task = asyncio.create_task(late.run())
    try:
        await until(lambda: any(request.status == 409 for request in server.requests))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert server.objects.find("nodes", "node-a") is None
    server.objects.create(NODE)
    await until(lambda: has(server, {**WANTED, "example.com/count": "1"}))
