"""Detect another plugin that registered our resource, and register again ever less often; pure, without kubelet."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.coexistence.competing_plugins import (
    RETRY_MOST_SECONDS,
    RETRY_SECONDS,
    SETTLED_SECONDS,
    CompetingPlugins,
)
from drabridge.ledger.entries import Entry, Hold, Ledger, LedgerDevice
from drabridge.ledger.events import RecordLost
from podresources import PodResourcesError

R = "example.com/radio"
LOOK_SECONDS = 3.0


class Node:
    """Kubelet and our list as they are said to be; what is done about it is kept."""

    def __init__(self, every: int = 1) -> None:
        self.at = 1000.0
        self.listed: dict[str, frozenset[str]] = {R: frozenset({"a"})}
        self.offered: set[str] | None = {"a"}  # None: kubelet cannot be asked
        self.asked = 0
        self.done: list[tuple[float, str]] = []
        self.devices = {one: SimpleNamespace(id=one) for one in "ab"}
        self.entries = {one: Entry(LedgerDevice(one, R, (one,))) for one in "ab"}
        self.pods: set[tuple[str, str]] = set()  # units that kubelet shows with one
        self.lost: list[RecordLost] = []
        self.durable = True
        node: Any = self
        service: Any = SimpleNamespace(apply=self._apply, now=lambda: self.at)
        self._ledger_service = service
        self._plugins = CompetingPlugins(node, node, node, service, lambda: node.devices, lambda: self.at, every)

    @property
    def found(self) -> dict[str, str]:
        return self._plugins.found

    async def shown(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.pods)

    async def _apply(self, event: RecordLost) -> Any:
        self.lost.append(event)
        return SimpleNamespace(accepted=self.durable)

    def healthy_ids(self) -> dict[str, frozenset[str]]:
        return self.listed

    async def allocatable(self, timeout_seconds: float) -> Any:
        self.asked += 1
        if self.offered is None:
            raise PodResourcesError("kubelet is not there")
        return SimpleNamespace(devices=[SimpleNamespace(resource=R, device_id=one) for one in sorted(self.offered)])

    async def register_again(self, resource: str) -> None:
        self.done.append((self.at, "register"))

    def resend_soon(self, resources: Iterable[str]) -> None:
        self.done.append((self.at, "repeat"))

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            self._ledger_service.ledger = Ledger.of(self.entries.values())
            await self._plugins.look()
            self.at += LOOK_SECONDS


@pytest.fixture
def node() -> Node:
    return Node()


async def test_an_id_that_just_left_our_list_is_still_ours(node: Node) -> None:
    """Kubelet is slow to act on a list, or a device goes and comes."""
    node.listed[R] = frozenset({"a", "b"})
    await node.look()
    node.listed[R] = frozenset()
    node.offered = {"a", "b"}
    await node.look(int(SETTLED_SECONDS / LOOK_SECONDS) - 1)
    assert not node.found
    await node.look(3)
    assert "kubelet offers a, b," in node.found[R]


async def test_healthy_ids_that_kubelet_lacks_are_registered_again_ever_less_often(node: Node) -> None:
    """As after the end of another plugin: our stream is open, and kubelet has nobody to ask for these devices."""
    node.listed[R] = frozenset({"a", "b"})
    await node.look()
    node.offered = {"b"}
    await node.look(int(SETTLED_SECONDS / LOOK_SECONDS))
    assert node.done == [], "kubelet may be late with our list, and one answer is none"
    await node.look()
    assert [word for _, word in node.done] == ["register"]
    assert not node.found, "nobody knows why"
    await node.look(100)
    times = [at for at, word in node.done if word == "register"]
    pauses = [later - at for at, later in pairwise(times)]
    assert len(times) > 3
    assert pauses == sorted(pauses)
    node.offered = {"a", "b"}
    await node.look(100)
    done = len(node.done)
    await node.look(200)
    assert len(node.done) == done


async def test_ids_that_became_healthy_just_now_are_not_missed(node: Node) -> None:
    for number in range(20):
        node.listed[R] = frozenset({f"new-{number}"})
        node.offered = {f"new-{number - 1}"} if number else set()
        await node.look(5)
    assert node.done == []


async def test_pods_with_ids_of_no_device_are_reported_as_of_unknown_origin(node: Node) -> None:
    node.offered = {"a", "b::0"}
    await node.look(2)
    assert node.found[R].endswith("Remove the other plugin; pods that it served keep their devices")
    node.offered = {"a", "GPU-7"}
    await node.look(2)
    assert "Remove the other plugin and the pods that it served" in node.found[R]


async def test_pods_with_unknown_ids_put_devices_in_doubt_once(node: Node) -> None:
    """Whoever says after that that they are free is believed, until there is another such pod."""
    node.pods = {(R, "a"), (R, "GPU-7"), ("other.example.com/radio", "GPU-9")}
    node.offered = {"a", "GPU-7", "GPU-8"}
    await node.look()
    assert not node.lost
    node.durable = False
    await node.look()
    node.durable = True
    await node.look(3)
    assert [(set(one.devices), one.reason.split(" of ")[0]) for one in node.lost] == [
        ({"a", "b"}, "pods have GPU-7")
    ] * 2
    node.pods.add((R, "GPU-8::1"))
    await node.look(3)
    assert [one.reason.split(" of ")[0] for one in node.lost[2:]] == ["pods have GPU-8::1"]


async def test_pods_with_our_ids_put_nothing_in_doubt(node: Node) -> None:
    """Each is its device's holder."""
    node.entries["b"] = replace(node.entries["b"], hold=Hold(units=("former",)))
    node.pods, node.offered = {(R, "b"), (R, "a::3"), (R, "former")}, {"a", "b", "GPU-7"}
    await node.look(4)
    assert node.found
    assert not node.lost


async def test_kubelet_is_asked_seldom_until_there_is_reason_to_doubt() -> None:
    node = Node(every=3)
    await node.look(9)
    assert node.asked == 3
    node.offered = {"a", "b"}
    await node.look(3)
    assert (node.asked, node.found) == (4, {})
    await node.look()
    assert node.asked == 5
    assert R in node.found


async def test_one_answer_with_unknown_ids_is_not_enough(node: Node) -> None:
    """It may be older than the list that it is compared with."""
    for offered in ({"a", "b"}, {"a"}, {"a", "c"}, {"a", "d"}, None):
        node.offered = offered
        await node.look()
        assert not node.found
        assert not node.done


async def test_kubelet_is_not_asked_while_it_has_none_of_our_lists(node: Node) -> None:
    node.listed, node.offered = {}, {"a", "b"}
    await node.look(3)
    assert node.asked == 0
    assert not node.found


async def test_a_competing_plugin_is_replaced_and_reported_gone(node: Node) -> None:
    node.offered = {"a", "b"}
    await node.look(2)
    assert [what for _, what in node.done] == ["register"]
    node.offered = {"a"}
    await node.look(int(SETTLED_SECONDS / LOOK_SECONDS))
    assert node.found
    await node.look(2)
    assert not node.found
    assert len(node.done) == 1


async def test_a_plugin_that_registers_again_and_again_is_answered_ever_less_often(node: Node) -> None:
    """In between our list is sent over the other's, and what the last of it said does not end the matter."""
    node.offered = {"a", "b"}
    await node.look(1000)
    times = [at for at, what in node.done if what == "register"]
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert pauses == sorted(pauses)
    assert RETRY_SECONDS <= pauses[0] <= RETRY_SECONDS + LOOK_SECONDS
    assert RETRY_MOST_SECONDS <= pauses[-1] <= RETRY_MOST_SECONDS + LOOK_SECONDS
    assert len(node.done) > 500
    node.offered = {"a"}  # our list, but kubelet would call the other one
    await node.look(5)
    assert node.found
