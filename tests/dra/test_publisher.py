"""Slices in the API server: written when they differ, restored after foreign changes, otherwise untouched."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from drabridge.dra import driver, publisher
from drabridge.dra.observer import PublishFailed, SlicesPublished
from drabridge.inventory.devices import Presence, Snapshot
from drabridge.kube.api import UnreachableError
from drabridge.ledger.entries import ClaimRef, Lane, Owner
from drabridge.ledger.events import AgentStarted, SetLane
from drabridge.offers.slices import ALL_FEATURES, OFF_BY_DEFAULT
from drabridge.sim.apiserver.store import Change
from tests.support.dra_node import CONFIG, DRIVER, NODE, DraNode, a_node, add_node, gpu
from tests.support.waiting import PATIENCE, until

ALL = [f"gpu-{n}" for n in range(4)]


async def test_the_inventory_is_published_once_and_then_there_is_silence() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        await until(lambda: any(r.verb == "watch" for r in node.api.requests), why="the watch")
        (slice_,) = node.slices()
        assert slice_["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        assert slice_["spec"]["nodeName"] == NODE
        assert slice_["metadata"]["ownerReferences"][0]["kind"] == "Node"
        assert slice_["spec"]["devices"][0]["attributes"]["type"] == {"string": "gpu"}
        writes, requests = node.writes(), len(node.api.requests)

        for _ in range(20):
            node.driver.publish()
            await asyncio.sleep(0.01)

        assert node.writes() == writes == 1
        assert len(node.api.requests) == requests
        assert all(r.user_agent.startswith("drabridge/") for r in node.api.requests)


async def test_nothing_is_published_before_discovery_is_complete() -> None:
    async with a_node(start=False) as node:
        complete, node.snapshot = node.snapshot, Snapshot(0, complete=False)
        starting = asyncio.ensure_future(node.start())
        await asyncio.sleep(0.3)
        assert node.slices() == []
        assert list((node.root / "plugins_registry").iterdir()) == []
        node.snapshot = complete
        await node.discover()
        node.driver.publish()
        await starting
        await node.until_published(ALL)


async def test_a_wipe_is_undone_at_once() -> None:
    """DR20: a kubelet that starts deletes the node's slices under a healthy plugin."""
    async with a_node() as node:
        await node.until_published(ALL)
        wiped = time.monotonic()
        for slice_ in node.slices():
            node.api.objects.delete("resourceslices", slice_["metadata"]["name"])
        assert node.published() == []
        await node.until_published(ALL)
        assert time.monotonic() - wiped < 1 * PATIENCE


async def test_an_edited_slice_is_restored() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        (slice_,) = node.slices()
        slice_["spec"]["devices"] = slice_["spec"]["devices"][:1]
        node.api.objects.update(slice_)
        assert node.published() == ["gpu-0"]
        await node.until_published(ALL)
        assert node.slices()[0]["spec"]["pool"]["generation"] == 1


async def test_a_restart_changes_nothing_and_nothing_is_deleted_at_shutdown() -> None:
    """DR21: a driver that restarts quickly finds its slices unchanged and does not write them."""
    async with a_node() as node:
        await node.until_published(ALL)
        before = node.slices()
        await node.stop()
        assert node.slices() == before
        await node.start()
        await node.until_published(ALL)
        await asyncio.sleep(0.3)
        assert node.slices() == before


async def test_a_faulty_device_is_tainted_until_it_works_again() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))

        def taints() -> object:
            return node.slices()[0]["spec"]["devices"][1].get("taints")

        await until(taints, why="the taint")
        (taint,) = node.slices()[0]["spec"]["devices"][1]["taints"]
        assert (taint["key"], taint["effect"]) == (f"{DRIVER}/faulty", "NoSchedule")
        await node.change(gpu_1=(Presence.PRESENT, ""))
        await until(lambda: not taints(), why="the end of the taint")
        assert node.published() == ALL


async def test_where_the_server_drops_taints_the_device_is_removed() -> None:
    async with a_node(gates={"DRADeviceTaints": False}) as node:
        await node.until_published(ALL)
        await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))
        await node.until_published(["gpu-0", "gpu-2", "gpu-3"])
        gates = ("DRADeviceTaints",)
        await until(lambda: node.missing() == gates, why="the gate's name")
        writes = node.writes()
        await asyncio.sleep(0.3)
        assert node.writes() == writes  # no hot loop
        await node.change(gpu_1=(Presence.PRESENT, ""))
        await node.until_published(ALL)


async def test_devices_of_the_legacy_lane_are_in_no_slice() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        await node.ledger_service.apply(SetLane("gpu-0", Lane.LEGACY, time.time()))
        await node.until_published(ALL[1:])


@pytest.mark.parametrize("versions", [("v1",), ("v1beta2",), ("v1beta1",)])
async def test_every_version_of_the_api_is_supported(versions: tuple[str, ...]) -> None:
    async with a_node(versions=versions) as node:
        await node.until_published(ALL)
        assert node.driver.state.api_version == versions[0]
        await asyncio.sleep(0.1)
        assert node.writes() == 1
        claim = node.claims.add("cl", "gpu-0")
        assert await node.prepared(claim)


@pytest.mark.parametrize(("before", "after"), [(("v1beta2",), ("v1",)), (("v1", "v1beta1"), ("v1beta1",))])
async def test_versions_are_chosen_anew_when_the_control_plane_changes_them(
    before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """After an upgrade or rollback, 404 for an API version that the server lacks frees no device."""
    async with a_node(versions=before) as node:
        await node.until_published(ALL)
        held = node.claims.add("held", "gpu-0")
        await node.prepared(held)
        node.api.versions = after
        await node.unprepare(held)
        with pytest.raises(UnreachableError):
            await node.driver.deallocations.release_if_deallocated(ClaimRef(held.uid, "default", "held"))
        assert node.owner("gpu-0") is Owner.DRA_GRANTED
        node.api.faults.drop_watches()
        await until(lambda: not node.driver.state.publisher.published, why="the watch that is refused")
        await node.prepared(node.claims.add("new", "gpu-1"))
        await node.set_devices(*map(gpu, range(3)))
        await node.until_published(ALL[:3])
        assert node.driver.state.api_version == after[0]
        assert not await node.driver.deallocations.release_if_deallocated(ClaimRef(held.uid, "default", "held"))
        node.claims.deallocate("held")
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the release")


async def test_a_version_that_worked_for_long_makes_the_next_search_quick_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[int] = []

    def counted(*_: float) -> Iterator[float]:
        for number in itertools.count():
            drawn.append(number)
            yield 0.01

    monkeypatch.setattr(driver, "STEADY_SECONDS", 0.0)
    monkeypatch.setattr(driver, "backoff", counted)
    async with a_node(versions=("v1",)) as node:
        for versions in (("v1beta1",), ("v1",)) * 2:
            await node.until_published(ALL)
            node.api.versions, before = versions, len(drawn)
            node.api.faults.drop_watches()
            await until(lambda before=before: len(drawn) > before, why="the watch that is refused")  # type: ignore[misc]
        await node.until_published(ALL)
    assert set(drawn) == {0}


async def test_a_recreated_node_owns_the_slices_again() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        node.api.objects.delete("nodes", NODE)
        await until(lambda: node.slices() == [], why="garbage collection")
        uid = add_node(node.api)
        await until(
            lambda: [s["metadata"]["ownerReferences"][0]["uid"] for s in node.slices()] == [uid], 8.0, "new owners"
        )


async def test_an_api_server_that_fails_is_retried_and_one_that_is_away_is_waited_for() -> None:
    async with a_node(start=False) as node:
        node.api.faults.fail(2, 500, verb="create", resource="resourceslices")
        await node.start()
        await node.until_published(ALL)
        assert any(isinstance(fact, PublishFailed) for fact in node.facts)
        node.api.faults.partition()
        await node.set_devices(gpu(0))
        await until(lambda: "no answer" in node.driver.state.publisher.error, why="an error")
        assert not node.driver.state.publisher.published
        node.api.faults.heal()
        await node.until_published(["gpu-0"])


async def test_watches_that_end_are_restarted_and_a_list_follows_status_410() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        for _ in range(3):
            node.api.faults.drop_watches()
            await asyncio.sleep(0.05)
            node.api.objects.delete("resourceslices", node.slices()[0]["metadata"]["name"])
            await node.until_published(ALL)


async def test_slices_are_not_reported_as_published_while_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that finds nothing to write sends no request, so nothing may wait for an answer of the API server."""
    monkeypatch.setattr(publisher, "LOOK_SECONDS", 0.05)
    async with a_node() as node:
        await node.until_published(ALL)
        node.api.faults.partition()
        await until(lambda: not node.driver.state.publisher.published, why="the lost watch")
        synced, facts = node.driver.synced_seq, len(node.facts)
        await node.ledger_service.apply(AgentStarted(time.time()))
        for _ in range(50):
            assert not node.driver.state.publisher.published
            assert node.driver.synced_seq == synced < node.ledger_service.ledger.seq
            await asyncio.sleep(0.01)
        assert "no answer" in node.driver.state.publisher.error
        node.api.faults.heal()
        await node.until_published(ALL)
        assert node.driver.synced_seq == node.ledger_service.ledger.seq
        assert not [fact for fact in node.facts[facts:] if isinstance(fact, SlicesPublished)]  # there was no write


async def test_the_result_of_an_unanswered_write_is_read_before_it_is_reported() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        await node.ledger_service.apply(SetLane("gpu-0", Lane.LEGACY, time.time()))
        await node.until_published(ALL[1:])
        node.api.faults.watch_lag_seconds = 120
        node.api.faults.fail(1, 504, verb="update", resource="resourceslices", after_commit=True)
        await node.ledger_service.apply(SetLane("gpu-0", Lane.DRA, time.time()))
        await until(lambda: node.published() == ALL, why="the write without an answer")
        await node.ledger_service.apply(SetLane("gpu-0", Lane.LEGACY, time.time()))
        seq = node.ledger_service.ledger.seq
        await until(lambda: node.driver.synced_seq >= seq, why="word of the API server")
        assert node.published() == ALL[1:]


async def test_a_slice_that_is_taken_away_before_its_write_is_answered_comes_back() -> None:
    """A starting kubelet deletes the slices that the agent writes. The watch reports it before the answer."""
    async with a_node(start=False) as node:
        node.api.faults.answer_lag_seconds = 0.5
        starting = asyncio.ensure_future(node.start())
        await until(node.published, why="the write")
        (slice_,) = node.slices()
        node.api.objects.delete("resourceslices", slice_["metadata"]["name"])
        await starting
        await node.until_published(ALL)


async def test_a_slice_that_is_edited_before_its_write_is_answered_is_restored() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        node.api.faults.answer_lag_seconds = 0.5
        await node.set_devices(*map(gpu, range(2)))
        await until(lambda: node.published() == ALL[:2], why="the write")
        (slice_,) = node.slices()
        slice_["spec"]["devices"][0]["name"] = "strange"
        node.api.objects.update(slice_)
        await node.until_published(ALL[:2])


async def test_a_change_that_the_watch_does_not_report_is_found_by_a_list() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        await node.ledger_service.apply(SetLane("gpu-0", Lane.LEGACY, time.time()))
        before = node.slices()[0]["spec"]["devices"]
        await node.until_published(ALL[1:])
        node.api.faults.watch_lag_seconds = 120
        (slice_,) = node.slices()
        slice_["spec"]["devices"] = before
        node.api.objects.update(slice_)
        assert await node.driver.withdrawn({"gpu-0", "another"}) == {"another"}
        await node.until_published(ALL[1:])
        assert await node.driver.withdrawn({"gpu-0"}) == {"gpu-0"}


async def test_where_watches_are_refused_slices_are_kept_by_lists() -> None:
    async with a_node(start=False) as node:
        node.api.faults.fail(1_000_000, 403, verb="watch")
        await node.start()
        await until(lambda: node.published() == ALL, why="the slices")
        await node.set_devices(gpu(0))
        await until(lambda: node.published() == ["gpu-0"], why="the next list")
        await until(lambda: not node.driver.state.publisher.published, why="the watch that is refused again")
        assert "forbidden" in node.driver.state.publisher.error


async def test_without_devices_there_is_one_empty_slice() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        await node.set_devices()
        await node.until_published([])
        assert len(node.slices()) == 1


async def test_many_devices_fill_slices_of_64() -> None:
    async with a_node(devices=tuple(map(gpu, range(130)))) as node:
        await node.until_published([f"gpu-{n}" for n in range(130)])
        assert [len(s["spec"]["devices"]) for s in node.slices()] == [64, 64, 2]
        assert node.writes() == 3


async def test_a_cluster_without_dra_is_reported_and_the_sockets_serve_anyway() -> None:
    async with a_node(CONFIG, versions=()) as node:
        await until(lambda: node.driver.state.error, why="the reason")
        assert "does not serve" in node.driver.state.error or "no version" in node.driver.state.error
        assert node.driver.state.serving
        assert not node.driver.state.ready


async def test_a_watch_that_lags_behind_our_own_writes_causes_no_others() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        node.api.faults.watch_lag_seconds = 0.2
        writes = node.writes()
        for index in range(3):
            await node.set_devices(*map(gpu, range(index + 1)))
            await node.until_published([f"gpu-{n}" for n in range(index + 1)])
        await asyncio.sleep(0.6)
        assert node.writes() == writes + 3
        assert not [fact for fact in node.facts if isinstance(fact, PublishFailed)]


class Shown:
    """Whether some slice that was ever stored offers a device without a taint."""

    def __init__(self, node: DraNode, device: str) -> None:
        self.writes = 0
        self.untainted = False
        self._device = device
        node.api.objects.store.subscribe(self._changed)

    def _changed(self, change: Change) -> None:
        if change.resource.plural == "resourceslices":
            self.writes += 1
            devices = change.object["spec"].get("devices") or ()
            self.untainted |= any(d["name"] == self._device and not d.get("taints") for d in devices)


ONE_LOOK = 1 + len(OFF_BY_DEFAULT)  # dry runs: one for what is on by default, one for each other feature


def dry_runs(node: DraNode) -> int:
    return sum("dryRun" in request.query for request in node.api.requests)


async def test_a_successor_never_shows_a_faulty_device_where_the_server_drops_taints() -> None:
    """What an earlier agent learned about the server is not saved: the agent asks again before it writes."""
    async with a_node(gates={"DRADeviceTaints": False}) as node:
        await node.until_published(ALL)
        await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))
        await node.until_published(["gpu-0", "gpu-2", "gpu-3"])
        await node.stop()
        shown = Shown(node, "gpu-1")
        node.snapshot = replace(node.snapshot, devices=node.snapshot.devices[:3])
        await node.start()
        await node.until_published(["gpu-0", "gpu-2"])
        assert shown.writes
        assert not shown.untainted
        assert node.missing() == ("DRADeviceTaints",)


async def test_a_server_is_asked_once_after_each_list_whatever_changes() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        for _ in range(2):
            await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))
            await until(lambda: node.slices()[0]["spec"]["devices"][1].get("taints"), why="the taint")
            await node.change(gpu_1=(Presence.PRESENT, ""))
            await until(lambda: not node.slices()[0]["spec"]["devices"][1].get("taints"), why="its end")
        assert dry_runs(node) == ONE_LOOK
        await node.restart()
        await node.until_published(ALL)
        assert dry_runs(node) == 2 * ONE_LOOK


async def test_slices_that_are_refused_as_invalid_are_not_sent_again_until_others_are_desired() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        fault = node.api.faults.fail(1_000_000, 422, verb="update", resource="resourceslices")
        await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))
        await until(lambda: any(isinstance(fact, PublishFailed) for fact in node.facts), why="the refusal")
        before = updates(node)
        for _ in range(20):
            node.driver.publish()
            await asyncio.sleep(0.01)
        assert updates(node) == before
        await node.change(gpu_3=(Presence.FAULTY, "its node is missing"))
        await until(lambda: updates(node) > before, why="other slices to be sent")
        fault.times = 0
        await node.change(gpu_2=(Presence.FAULTY, "its node is missing"))
        await until(lambda: node.tainted() == ["gpu-1", "gpu-2", "gpu-3"], why="the next slices")


async def test_what_is_desired_while_others_are_being_refused_is_sent() -> None:
    async with a_node() as node:
        await node.until_published(ALL)
        fault = node.api.faults.fail(1_000_000, 422, verb="update", resource="resourceslices")
        node.api.faults.latency_seconds = 0.5
        await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))
        await until(lambda: updates(node), why="the first slices to be sent")
        await node.change(gpu_2=(Presence.FAULTY, "its node is missing"))
        await until(lambda: any(isinstance(fact, PublishFailed) for fact in node.facts), why="the refusal")
        fault.times = 0
        await until(lambda: node.tainted() == ["gpu-1", "gpu-2"], 10, why="the next slices")


def updates(node: DraNode) -> int:
    return sum(request.verb == "update" for request in node.api.requests)


async def test_where_dry_runs_are_refused_a_device_that_needs_a_field_is_left_out() -> None:
    """An admission webhook may refuse them: the one with all fields, and those with each alone."""
    async with a_node(start=False) as node:
        node.api.faults.fail(5, 400, verb="create", resource="resourceslices")
        await node.start()
        await node.until_published(ALL)
        assert len(node.missing()) == 4
        await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))
        await node.until_published(["gpu-0", "gpu-2", "gpu-3"])


async def test_a_server_that_refuses_all_fields_together_is_asked_for_each() -> None:
    async with a_node(start=False) as node:
        node.api.faults.fail(1, 400, verb="create", resource="resourceslices")
        await node.start()
        await node.until_published(ALL)
        assert (node.missing(), dry_runs(node)) == ((), 1 + len(ALL_FEATURES))


async def test_without_the_gate_a_shared_device_goes_to_one_claim_and_that_is_reported() -> None:
    device = replace(gpu(0), name="shared-0", id="S0", resource="example.com/shared", capacity={"memory": 8 * 2**30})
    async with a_node(devices=(device,), gates={"DRAConsumableCapacity": False}) as node:
        await node.until_published(["shared-0"])
        assert node.missing() == ("DRAConsumableCapacity",)
        assert node.writes() == 1  # known before the first write
        await node.prepared(node.claims.add("one", "shared-0"))
        assert "shared-0 is held by claim default/one" in await node.refused(node.claims.add("two", "shared-0"))


@pytest.mark.parametrize("gate", [True, False])
async def test_nodes_that_are_as_near_are_a_list_where_the_server_keeps_lists_and_nothing_is_written_twice(
    gate: bool,
) -> None:
    near = gpu(0, numa_nodes=(1,), near_numa_nodes=(1, 0))
    async with a_node(devices=(near, gpu(1)), gates={"DRAListTypeAttributes": gate}) as node:
        await node.until_published(["gpu-0", "gpu-1"])
        (device, _) = node.slices()[0]["spec"]["devices"]
        numa = device["attributes"]["resource.kubernetes.io/numaNode"]
        assert numa == ({"ints": [1, 0]} if gate else {"int": 1})
        assert node.writes() == 1
        await node.restart()
        await node.until_published(["gpu-0", "gpu-1"])
        await node.set_devices(near, gpu(1))
        assert node.writes() == 1


async def test_a_gate_of_lists_that_goes_off_makes_them_numbers_again() -> None:
    near = gpu(0, numa_nodes=(1,), near_numa_nodes=(1, 0))
    async with a_node(devices=(near,), gates={"DRAListTypeAttributes": True}) as node:
        await node.until_published(["gpu-0"])
        node.api.objects.gates["DRAListTypeAttributes"] = False
        await node.restart()
        await until(lambda: "int" in str(node.slices()[0]["spec"]["devices"][0]["attributes"]) and node.writes() == 2)
        numa = node.slices()[0]["spec"]["devices"][0]["attributes"]["resource.kubernetes.io/numaNode"]
        assert numa == {"int": 1}


async def test_slices_of_a_server_that_refuses_lists_all_of_a_sudden_come_back_without() -> None:
    near = gpu(0, numa_nodes=(1,), near_numa_nodes=(1, 0))
    async with a_node(devices=(near,), gates={"DRAListTypeAttributes": True}) as node:
        await node.until_published(["gpu-0"])
        node.api.objects.gates["DRAListTypeAttributes"] = False
        node.api.objects.delete("resourceslices", node.slices()[0]["metadata"]["name"])
        await node.until_published(["gpu-0"])
        numa = node.slices()[0]["spec"]["devices"][0]["attributes"]["resource.kubernetes.io/numaNode"]
        assert numa == {"int": 1}
