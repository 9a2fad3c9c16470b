"""Allocate as kubelet's client sees it: answers, refusals, defects of the plugin, and what takes too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from deviceplugin import (
    Allocated,
    AllocationError,
    ContainerAllocation,
    ContainerMount,
    DeviceSpec,
    ListedDevice,
    ListedHealth,
    require_healthy,
)
from deviceplugin.wire import v1beta1_pb2 as pb
from tests.deviceplugin.small_kubelet import IMPATIENT, AllocatingPlugin, ListPlugin
from tests.support.waiting import PATIENCE, until

UNHEALTHY = ListedHealth.UNHEALTHY


async def test_dp2_dp11_allocate_answers_each_container_in_order_and_again(serve: Any) -> None:
    served = await serve(AllocatingPlugin(ListedDevice("a"), ListedDevice("b"), ListedDevice("c")))
    for _ in range(2):  # an init container's device is allocated once more for the next container
        answer = await served.kubelet.allocate(["c", "a"], ["b", "b"], [])
        assert [dict(c.envs) for c in answer.container_responses] == [{"IDS": "a,c"}, {"IDS": "b"}, {"IDS": ""}]
    fact = served.facts.of(Allocated)[0]
    assert (fact.code, fact.ids) == ("OK", ("a", "c", "b"))


async def test_every_field_of_an_allocation_arrives(serve: Any) -> None:
    class Full(AllocatingPlugin):
        async def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
            return ContainerAllocation(
                envs={"A": "1"},
                mounts=(ContainerMount("/in", "/on", read_only=True),),
                devices=(DeviceSpec("/dev/in", "/dev/on", "r"),),
                annotations={"k": "v"},
                cdi_devices=("vendor/class=a", "vendor/class=b"),
            )

    served = await serve(Full(ListedDevice("a")))
    (answer,) = (await served.kubelet.allocate(["a"])).container_responses
    assert answer == pb.ContainerAllocateResponse(
        envs={"A": "1"},
        mounts=[pb.Mount(container_path="/in", host_path="/on", read_only=True)],
        devices=[pb.DeviceSpec(container_path="/dev/in", host_path="/dev/on", permissions="r")],
        annotations={"k": "v"},
        cdi_devices=[pb.CDIDevice(name="vendor/class=a"), pb.CDIDevice(name="vendor/class=b")],
    )


async def test_without_an_allocator_only_healthy_devices_are_accepted(serve: Any) -> None:
    served = await serve(ListPlugin(ListedDevice("a"), ListedDevice("sick", UNHEALTHY)))
    answer = await served.kubelet.allocate(["a"])
    assert list(answer.container_responses) == [pb.ContainerAllocateResponse()]
    unknown = await served.refused("a", "ghost")
    assert unknown.code() is grpc.StatusCode.NOT_FOUND
    assert "example.com/radio has no device ghost on this node" in (unknown.details() or "")
    sick = await served.refused("sick")
    assert sick.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "device sick of example.com/radio is unhealthy" in (sick.details() or "")


async def test_the_allocator_decides_about_its_own_pods_unhealthy_device(serve: Any) -> None:
    served = await serve(AllocatingPlugin(ListedDevice("a", UNHEALTHY)))
    assert (await served.kubelet.allocate(["a"])).container_responses[0].envs["IDS"] == "a"


async def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        pytest.param(
            AllocationError("FAILED_PRECONDITION", "held by claim default/c1", hint="wait"),
            grpc.StatusCode.FAILED_PRECONDITION,
            "held by claim default/c1. wait",
            id="a refusal reaches the person",
        ),
        pytest.param(
            ValueError("secret"),
            grpc.StatusCode.INTERNAL,
            "Allocate of a failed inside the plugin (ValueError); see its log",
            id="a defect does not leak",
        ),
        pytest.param(AllocationError("OK", "no"), grpc.StatusCode.UNKNOWN, "no", id="an error is never OK"),
        pytest.param(AllocationError("BOGUS", "no"), grpc.StatusCode.UNKNOWN, "no", id="an invented code"),
        pytest.param(
            asyncio.CancelledError(),
            grpc.StatusCode.CANCELLED,
            "Allocate of a was cancelled: the plugin is stopping",
            id="cancelled inside",
        ),
    ],
)
async def test_errors_become_codes(serve: Any, error: BaseException, code: grpc.StatusCode, text: str) -> None:
    plugin = AllocatingPlugin(ListedDevice("a"))
    plugin.before = lambda ids: raising(error)
    served = await serve(plugin)
    refused = await served.refused("a")
    assert (refused.code(), refused.details()) == (code, text)
    assert served.facts.of(Allocated)[0].code == code.name
    plugin.before = None
    await served.kubelet.allocate(["a"])
    assert served.server.inflight_ids == frozenset()


async def test_a_hung_allocator_is_given_up(serve: Any) -> None:
    """It even ignores being cancelled: kubelet gets its answer, and the id stays in flight until it is over."""
    release = asyncio.Event()

    async def stubborn(ids: Sequence[str]) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    plugin = AllocatingPlugin(ListedDevice("a"))
    plugin.before = stubborn
    served = await serve(plugin, IMPATIENT)
    started = time.monotonic()
    refused = await served.refused("a")
    assert refused.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < IMPATIENT.allocate_seconds * PATIENCE
    assert served.server.inflight_ids == {"a"}
    assert served.server.idle_seconds == 0
    release.set()
    await until(lambda: not served.server.inflight_ids)
    assert 0 <= served.server.idle_seconds < 10 * PATIENCE
    assert "a" in served.server.recent_ids


async def test_a_kubelet_that_goes_away_does_not_cut_an_allocation(serve: Any) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(ids: Sequence[str]) -> None:
        entered.set()
        await release.wait()

    plugin = AllocatingPlugin(ListedDevice("a"))
    plugin.before = slow
    served = await serve(plugin)
    call = served.stub.Allocate(pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a"])]))
    await entered.wait()
    call.cancel()
    await asyncio.sleep(0.05)
    assert served.server.inflight_ids == {"a"}
    release.set()
    await until(lambda: plugin.allocated == [("a",)])
    await until(lambda: not served.server.inflight_ids)


def test_require_healthy_before_any_list() -> None:
    plugin = ListPlugin()
    plugin.list = type(plugin.list)()
    with pytest.raises(AllocationError, match="has no device a"):
        require_healthy(plugin, ["a"])


class Quick(ListPlugin):
    """Decides at once, but for ids that it has to think about."""

    def __init__(self, *devices: ListedDevice) -> None:
        super().__init__(*devices)
        self.error: BaseException | None = None
        self.thinks_about: frozenset[str] = frozenset()

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation | Coroutine[Any, Any, ContainerAllocation]:
        if self.error is not None:
            raise self.error
        return self._think(ids) if self.thinks_about & set(ids) else ContainerAllocation(envs={"IDS": ",".join(ids)})

    async def _think(self, ids: Sequence[str]) -> ContainerAllocation:
        await asyncio.sleep(0.01)
        return ContainerAllocation(envs={"IDS": ",".join(ids), "THOUGHT": "yes"})


@pytest.mark.parametrize("thinks_about", ["", "a", "b", "c", "ab", "bc", "abc"])
async def test_an_allocator_that_need_not_wait_answers_at_once(serve: Any, thinks_about: str) -> None:
    plugin = Quick(ListedDevice("a"), ListedDevice("b"), ListedDevice("c"))
    plugin.thinks_about = frozenset(thinks_about)
    served = await serve(plugin)
    answer = await served.kubelet.allocate(["a"], ["b"], ["c"])
    found = [(c.envs["IDS"], "THOUGHT" in c.envs) for c in answer.container_responses]
    assert found == [(name, name in thinks_about) for name in "abc"]
    assert served.server.inflight_ids == frozenset()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AllocationError("FAILED_PRECONDITION", "held"), grpc.StatusCode.FAILED_PRECONDITION),
        (ValueError("secret"), grpc.StatusCode.INTERNAL),
        (asyncio.CancelledError(), grpc.StatusCode.CANCELLED),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_a_quick_allocator_raises_leaves_no_id_in_flight(
    serve: Any, error: BaseException, code: grpc.StatusCode
) -> None:
    plugin = Quick(ListedDevice("a"))
    plugin.error = error
    served = await serve(plugin)
    refused = await served.refused("a")
    assert refused.code() is code
    assert "secret" not in (refused.details() or "")
    assert served.server.inflight_ids == frozenset()
