"""What counts as given up: kubelet, the slices and the claims are asked, and what they say meanwhile counts as well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from drabridge.errors import ClusterError
from drabridge.lanes import acknowledgements
from drabridge.lanes.acknowledgements import ApiServerAcknowledgements, KubeletAcknowledgements
from drabridge.ledger import events as ev
from drabridge.ledger.effects import Decision
from drabridge.ledger.entries import ClaimRef, Entry, Lane, Ledger, MoveStep
from drabridge.ledger.policy import LedgerPolicy
from tests.support.ledger_node import NOON, Node, device
from tests.support.waiting import PATIENCE

UNIT = ("r", "GPU-0")
CLAIM = ClaimRef("uid", "team", "claim")


class Service:
    """A ledger whose events are kept."""

    def __init__(self, node: Node, *, accepts: bool = True) -> None:
        self.node, self.accepts = node, accepts
        self.policy = LedgerPolicy(quiesce_seconds=5.0)
        self.time = NOON + 100.0
        self.events: list[Any] = []
        self.lists = 0  # of claims

    @property
    def ledger(self) -> Ledger:
        return self.node.ledger

    def now(self) -> float:
        return self.time

    async def apply(self, event: Any) -> Decision:
        self.events.append(event)
        return Decision(self.accepts)


class Kubelet(Struct):
    """Its answers, and what happens while it makes them."""

    deaf_to: frozenset[str] = frozenset()  # resources whose lists it does not take
    offers: frozenset[ev.Unit] | None = frozenset()
    shows: frozenset[ev.Unit] | None = frozenset()
    sent: dict[str, frozenset[str]] = field(default_factory=dict)  # the Healthy ids of the last lists
    busy: list[str] = field(default_factory=list)
    while_asked: dict[str, Callable[[], object]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self.while_asked.get(what, lambda: None)()

    async def delivered(self, resources: Iterable[str], timeout_seconds: float) -> bool:
        self._ask("delivered")
        return self.deaf_to.isdisjoint(resources)

    def healthy_ids(self) -> dict[str, frozenset[str]]:
        return self.sent

    @property
    def busy_ids(self) -> frozenset[str]:
        return frozenset(self.busy)

    async def allocatable(self) -> frozenset[ev.Unit] | None:
        self._ask("allocatable")
        return self.offers

    async def shown(self) -> frozenset[ev.Unit] | None:
        self._ask("shown")
        return self.shows


def revoked() -> tuple[Node, Entry]:
    node = Node(device(0))
    node.yes(ev.SetLane("gpu-0", Lane.DRA, NOON))
    return node, node["gpu-0"]


async def asked(kubelet: Kubelet) -> tuple[list[Any], float, int]:
    """The events of one question, the pause after it, and how often evidence was hurried."""
    node, entry = revoked()
    service, hurries = Service(node), []
    subject: Any = KubeletAcknowledgements(service, kubelet, kubelet, lambda: hurries.append(1))  # type: ignore[arg-type]
    return service.events, await subject.fetch([entry]), len(hurries)


@pytest.mark.parametrize("others", [frozenset(), frozenset({"GPU-1"})])
async def test_kubelet_has_given_up_what_it_neither_offers_nor_shows_nor_asks_for(others: frozenset[str]) -> None:
    kubelet = Kubelet(offers=frozenset(("r", other) for other in others), sent={"r": others})
    events, pause, hurries = await asked(kubelet)
    assert [(type(one), one.device) for one in events] == [(ev.WithdrawnFromKubelet, "gpu-0")]
    assert (pause, hurries) == (acknowledgements.RETRY_SECONDS, 0)


@pytest.mark.parametrize(
    "kubelet",
    [
        Kubelet(deaf_to=frozenset({"r"})),
        Kubelet(offers=None),
        Kubelet(offers=frozenset({UNIT})),
        Kubelet(sent={"r": frozenset({"GPU-1"})}),
        Kubelet(shows=None),
        Kubelet(busy=["GPU-0"]),
        Kubelet(busy=["GPU-0::1"]),
    ],
    ids=[
        "no list taken",
        "no answer",
        "offered",
        "an older list",
        "no List",
        "in an Allocate",
        "a share in an Allocate",
    ],
)
async def test_in_doubt_kubelet_is_asked_again_soon(kubelet: Kubelet) -> None:
    events, pause, hurries = await asked(kubelet)
    assert (events, pause, hurries) == ([], acknowledgements.RETRY_SECONDS, 0)


@pytest.mark.parametrize("when", ["allocatable", "shown"])
async def test_an_allocate_that_comes_while_kubelet_answers_counts(when: str) -> None:
    """Kubelet has chosen the device by its older list: a claim that got it now would lose it, or a pod is refused."""
    kubelet = Kubelet()
    kubelet.while_asked[when] = lambda: kubelet.busy.append("GPU-0")
    assert (await asked(kubelet))[0] == []


async def test_an_allocate_that_is_over_when_kubelet_has_answered_counts() -> None:
    kubelet = Kubelet(busy=["GPU-0"])
    kubelet.while_asked["allocatable"] = kubelet.busy.clear
    assert (await asked(kubelet))[0] == []


async def test_a_pod_that_kubelet_shows_is_left_to_the_evidence() -> None:
    """It may be of an earlier plugin: no Allocate told of it, and a claim would share its device."""
    events, pause, hurries = await asked(Kubelet(shows=frozenset({UNIT})))
    assert (events, pause, hurries) == ([], acknowledgements.SHOWN_RETRY_SECONDS, 1)


async def test_kubelet_is_not_made_to_list_while_it_offers_the_device() -> None:
    kubelet = Kubelet(offers=frozenset({UNIT}))
    await asked(kubelet)
    assert kubelet.asked == ["delivered", "allocatable"]


async def test_kubelet_is_asked_nothing_before_it_has_taken_a_list() -> None:
    kubelet = Kubelet(deaf_to=frozenset({"r"}))
    await asked(kubelet)
    assert kubelet.asked == ["delivered"]


async def test_a_resource_whose_list_is_not_taken_delays_no_other_and_is_not_given_up() -> None:
    other = replace(device(1), device=replace(device(1).device, resource="s"))
    node = Node(device(0), other)
    for name in ("gpu-0", "gpu-1"):
        node.yes(ev.SetLane(name, Lane.DRA, NOON))
    service, kubelet = Service(node), Kubelet(deaf_to=frozenset({"s"}))
    subject: Any = KubeletAcknowledgements(service, kubelet, kubelet, lambda: None)  # type: ignore[arg-type]
    await subject.fetch(list(node.ledger.entries.values()))
    assert [one.device for one in service.events] == ["gpu-0"]


async def test_all_resources_are_waited_for_at_once() -> None:
    """Kubelet may be slow with each of their lists: a node has many resources, and one wait takes two seconds."""
    other = replace(device(1), device=replace(device(1).device, resource="s"))
    waiting, both = 0, asyncio.Event()

    class Slow(Kubelet):
        async def delivered(self, resources: Iterable[str], timeout_seconds: float) -> bool:
            nonlocal waiting
            waiting += 1
            if waiting == 2:
                both.set()
            await asyncio.wait_for(both.wait(), PATIENCE)
            return True

    node, kubelet = Node(device(0), other), Slow()
    for name in ("gpu-0", "gpu-1"):
        node.yes(ev.SetLane(name, Lane.DRA, NOON))
    service = Service(node)
    subject: Any = KubeletAcknowledgements(service, kubelet, kubelet, lambda: None)  # type: ignore[arg-type]
    await subject.fetch(list(node.ledger.entries.values()))
    assert {one.device for one in service.events} == {"gpu-0", "gpu-1"}


async def test_what_is_told_is_as_old_as_the_question() -> None:
    node, entry = revoked()
    service, kubelet = Service(node), Kubelet()
    kubelet.while_asked["allocatable"] = lambda: node.yes(ev.SetLane("gpu-0", Lane.LEGACY, NOON))
    before = node.ledger.seq
    subject: Any = KubeletAcknowledgements(service, kubelet, kubelet, lambda: None)  # type: ignore[arg-type]
    await subject.fetch([entry])
    assert [one.since_seq for one in service.events] == [before]


class Slices(Struct):
    """The slices: ``gone`` of them are in none."""

    synced_seq: int = 1 << 30
    gone: frozenset[str] | None = frozenset({"gpu-0"})
    asked: list[Collection[str]] = field(default_factory=list)

    async def withdrawn(self, names: Collection[str]) -> frozenset[str]:
        self.asked.append(names)
        if self.gone is None:
            raise ClusterError("no answer")
        return self.gone


class Server(Struct):
    cluster: object = "there"


def returning(step: MoveStep) -> tuple[Node, Entry]:
    node = Node(device(0, Lane.DRA))
    node.yes(ev.SetLane("gpu-0", Lane.LEGACY, NOON))
    if step is MoveStep.QUIESCING:
        node.yes(ev.WithdrawnFromSlices("gpu-0", node.ledger.seq, NOON))
    entry = node["gpu-0"]
    assert entry.move is not None
    assert entry.move.step is step
    return node, entry


def of_server(service: Service, slices: Slices, claims: Any = (), cluster: object = "there") -> Any:
    async def allocated() -> Any:
        service.lists += 1
        return claims

    return ApiServerAcknowledgements(service, slices, Server(cluster), allocated)  # type: ignore[arg-type]


async def test_slices_are_asked_once_they_follow_from_the_move() -> None:
    node, entry = returning(MoveStep.REVOKING)
    service, old = Service(node), Slices(synced_seq=entry.seq - 1)
    await of_server(service, old).fetch_slices([entry])
    assert (old.asked, service.events) == ([], [])
    new = Slices(synced_seq=entry.seq)
    await of_server(service, new).fetch_slices([entry])
    assert [(type(one), one.device, one.since_seq) for one in service.events] == [
        (ev.WithdrawnFromSlices, "gpu-0", entry.seq)
    ]


async def test_slices_that_show_the_device_or_cannot_be_asked_stop_the_move() -> None:
    node, entry = returning(MoveStep.REVOKING)
    service, silent = Service(node), Slices(gone=None)
    subject = of_server(service, silent)
    await subject.fetch_slices([entry])
    await subject.fetch_slices([entry])
    assert (len(silent.asked), service.events) == (1, [])
    service.time += acknowledgements.CLAIMS_RETRY_SECONDS
    await subject.fetch_slices([entry])
    assert len(silent.asked) == 2
    await of_server(service, Slices(gone=frozenset())).fetch_slices([entry])
    assert service.events == []


def claim(*, admin: bool = False, name: str = "gpu-0") -> tuple[ev.ClaimDevices, ...]:
    return (ev.ClaimDevices(CLAIM, (ev.DeviceUse(name, admin=admin),)),)


@pytest.mark.parametrize("claims", [(), claim(admin=True), claim(name="gpu-1")])
async def test_pods_get_what_no_claim_holds(claims: Any) -> None:
    node, entry = returning(MoveStep.QUIESCING)
    service = Service(node)
    await of_server(service, Slices(), claims).fetch_claims([entry])
    assert [(type(one), one.device, one.since_seq) for one in service.events] == [
        (ev.NoClaimListed, "gpu-0", node.ledger.seq)
    ]


async def test_claims_are_asked_for_after_the_quiet_time_only() -> None:
    node, entry = returning(MoveStep.QUIESCING)
    service = Service(node)
    service.time = NOON + 1.0
    assert await of_server(service, Slices()).fetch_claims([entry]) == pytest.approx(4.0, abs=0.1)
    assert service.events == []


@pytest.mark.parametrize(("claims", "cluster"), [(None, "there"), ((), None)])
async def test_claims_that_are_not_known_stop_the_move(claims: Any, cluster: object) -> None:
    node, entry = returning(MoveStep.QUIESCING)
    service = Service(node)
    subject = of_server(service, Slices(), claims, cluster)
    assert await subject.fetch_claims([entry]) == acknowledgements.CLAIMS_RETRY_SECONDS
    await subject.fetch_claims([entry])
    assert (service.events, service.lists) == ([], int(cluster is not None))  # a LIST costs the API server


async def test_a_claim_that_has_the_device_keeps_it() -> None:
    node, entry = returning(MoveStep.QUIESCING)
    service = Service(node)
    await of_server(service, Slices(), claim()).fetch_claims([entry])
    assert [type(one) for one in service.events] == [ev.ClaimAllocated]
    assert service.events[0].claim == CLAIM


async def test_a_claim_that_cannot_be_served_is_told_and_asked_about_later() -> None:
    node, entry = returning(MoveStep.QUIESCING)
    service = Service(node, accepts=False)
    subject = of_server(service, Slices(), claim())
    await subject.fetch_claims([entry])
    assert [type(one) for one in service.events] == [ev.ClaimAllocated, ev.SetLane]
    assert (service.events[1].device, service.events[1].lane) == ("gpu-0", Lane.LEGACY)
    assert "claim team/claim" in service.events[1].reason
    assert await subject.fetch_claims([entry]) == pytest.approx(acknowledgements.CLAIMS_RETRY_SECONDS, abs=0.1)
    assert len(service.events) == 2
