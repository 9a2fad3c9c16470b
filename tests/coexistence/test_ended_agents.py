"""What an ended agent left held is free once nobody can have it; in doubt its file names it for others on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from drabridge.coexistence.ended_agents import EndedAgents
from drabridge.coexistence.hardware import KnownDevice
from drabridge.coexistence.host_mounts import HostMounts
from drabridge.coexistence.other_agents import HardwareFile, OtherAgents
from drabridge.coexistence.withheld import WithheldDevices
from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.evidence.pod_objects import watched_pod
from drabridge.inventory.devices import Device, Snapshot
from drabridge.kube.api import UnreachableError
from drabridge.ledger.entries import Ledger, NodeState, PodRef
from drabridge.ledger.events import CheckpointRead, Observed
from drabridge.ledger.policy import LedgerPolicy
from drabridge.system.paths import Paths
from tests.evidence.api_pods import FPGA, GPU, container, pod
from tests.support.waiting import short_directory

OTHER = "other.example.com"
POLICY = LedgerPolicy(absent_seconds=10.0, grace_seconds=30.0)
PODS = (PodRef("default", "a", "m"),)
NOON = 1_000.0
LEDGER = Ledger.of((), NodeState("boot", merged=True))


class Node:
    """A node whose former agent of another driver left ``pieces`` held; nobody can be seen to have them."""

    def __init__(self, withheld: WithheldDevices, file: Any) -> None:
        self._withheld = withheld
        self.file = file
        self.now = NOON
        self.rounds = 0
        self.thorough = 0
        # What kubelet and the API server say.
        self.listed: dict[Any, Any] | None = {}
        self.checkpoint: CheckpointRead | None = CheckpointRead({}, barrier=True)
        self.claimed: frozenset[str] | None = frozenset()
        self.allocated: frozenset[str] | None = frozenset()
        api: Any = None
        others: Any = SimpleNamespace(pods=PodWatch(api, "node-a", lambda: None, now=lambda: self.now))
        self.others = others
        self.others.pods.listed(())
        service: Any = SimpleNamespace(policy=POLICY, now=lambda: self.now, ledger=LEDGER)
        self.service = service
        kubelet: Any = SimpleNamespace(gather=self._gather, devices_claimed_from=self._claimed_from)
        self.agents = EndedAgents(withheld, service, kubelet, self.others, self._allocated_by, clock=lambda: self.now)

    async def _gather(self, ledger: Ledger, *, thoroughly: bool = False) -> Observed:
        self.rounds += 1
        self.thorough += thoroughly
        return Observed(self.now, 0, self.listed, self.checkpoint if thoroughly else None)

    async def _claimed_from(self, driver: str) -> frozenset[str] | None:
        assert driver == OTHER
        return self.claimed

    async def _allocated_by(self, driver: str) -> frozenset[str] | None:
        assert driver == OTHER
        return self.allocated

    async def pass_(self, seconds: float) -> None:
        """Let time pass; the agent looks each second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            await self.agents.look()

    @property
    def left(self) -> list[str]:
        """The devices that the file still names."""
        return [piece["name"] for piece in json.loads(self.file.read_bytes())["pieces"]]


PIECE = KnownDevice("gpu-0", "g0", ("/sys/devices/0",), "default/a", (GPU,))


@asynccontextmanager
async def node(*pieces: KnownDevice) -> AsyncIterator[Node]:
    with short_directory() as root:
        (root / "plugins_registry").mkdir()
        file = root / "plugins_registry" / f".drabridge-{OTHER}.hardware"
        file.write_bytes(msgspec.json.encode(HardwareFile(pieces, ended=True)))
        paths = Paths.of("first.example.com", kubelet=root)
        others = OtherAgents(paths, "first.example.com", "node-a")
        withheld = WithheldDevices(others, HostMounts(root / "sys", root / "proc"))
        devices = tuple(Device(f"own-{n}", f"o{n}", "r", piece.places[0]) for n, piece in enumerate(pieces))
        await withheld.update(Snapshot(1, devices), Ledger())
        one = Node(withheld, file)
        await one.agents.look()
        yield one
        others.close()


async def test_a_device_is_free_when_no_holder_was_seen_for_as_long_as_its_processes_may_run() -> None:
    short = KnownDevice("gpu-1", "g1", ("/sys/devices/1",), "default/b", (GPU,), grace=5.0)
    async with node(PIECE, short) as one:
        await one.pass_(10)
        assert one.left == ["gpu-0", "gpu-1"]
        await one.pass_(10)
        assert one.left == ["gpu-0"], "its holder had five seconds to end"
        await one.pass_(19)
        assert one.left == ["gpu-0"], "of its holder that is not known"
        await one.pass_(1)
        assert one.left == []
        assert (one.rounds, one.thorough) == (10, 5), "each is a question to kubelet, and a write of its checkpoint"
        await one.pass_(60)
        assert one.rounds == 10


async def test_the_time_begins_again_when_a_holder_is_seen() -> None:
    async with node(PIECE) as one:
        await one.pass_(30)
        one.listed = {(GPU, "g0"): PODS}
        await one.pass_(10)
        one.listed = {}
        await one.pass_(40)
        assert one.left == ["gpu-0"]
        await one.pass_(10)
        assert one.left == []


async def test_kubelet_is_asked_once_while_its_list_shows_the_pod() -> None:
    """The other questions cost kubelet more: a write of its checkpoint for each resource."""
    async with node(PIECE) as one:
        one.listed, before, written = {(GPU, "g0"): PODS}, one.thorough, one.file.stat().st_ctime_ns
        await one.pass_(100)
        assert one.thorough == before
        assert one.left == ["gpu-0"]
        assert one.file.stat().st_ctime_ns == written, "and nothing is written"


async def test_the_time_begins_again_when_its_agent_was_back_meanwhile() -> None:
    async with node(PIECE) as one:
        await one.pass_(30)
        left, agents = one._withheld.left, one._withheld._agents
        agents.left = {}
        await one.pass_(1)
        agents.left = left
        await one.pass_(39)
        assert one.left == ["gpu-0"]
        await one.pass_(10)
        assert one.left == []


def suspended(one: Node) -> None:
    one.service.ledger = Ledger.of((), NodeState("boot", merged=True, releases_suspended_until=NOON + 1_000))


def not_merged(one: Node) -> None:
    one.service.ledger = Ledger.of((), NodeState("boot"))


def may_run_yet(one: Node) -> None:
    """A pod that asked for such a device is gone from the API server, and was not seen to end."""
    one.others.pods.listed((watched_pod(pod("a", container("m", gpu=1))),))
    one.others.pods.slack = lambda: 1_000.0
    one.others.pods.listed(())


DOUBTS: dict[str, Any] = {
    "kubelet lists a pod": lambda one: setattr(one, "listed", {(GPU, "g0"): PODS}),
    "a share of it": lambda one: setattr(one, "listed", {(GPU, "g0::1"): PODS}),
    "the checkpoint shows one": lambda one: setattr(
        one, "checkpoint", CheckpointRead({(GPU, "g0"): PODS}, barrier=True)
    ),
    "kubelet is away": lambda one: setattr(one, "listed", None),
    "there is no checkpoint": lambda one: setattr(one, "checkpoint", None),
    "the checkpoint may be old": lambda one: setattr(one, "checkpoint", CheckpointRead({}, barrier=False)),
    "a claim's pod": lambda one: setattr(one, "claimed", frozenset({"gpu-0"})),
    "claims of pods are not known": lambda one: setattr(one, "claimed", None),
    "an allocated claim": lambda one: setattr(one, "allocated", frozenset({"gpu-0"})),
    "claims are not known": lambda one: setattr(one, "allocated", None),
    "a pod asks for more than kubelet shows": lambda one: one.others.pods.listed(
        (watched_pod(pod("a", container("m", gpu=1))),)
    ),
    "pods are not known": lambda one: one.others.pods.lost(UnreachableError("no answer")),
    "there is no API server": lambda one: setattr(one.others, "pods", None),
    "a pod may run yet": may_run_yet,
    "releases are suspended": suspended,
    "the ledger is not merged": not_merged,
}


@pytest.mark.parametrize("doubt", DOUBTS.values(), ids=DOUBTS)
async def test_in_doubt_a_device_stays_held(doubt: Any) -> None:
    async with node(PIECE) as one:
        doubt(one)
        await one.pass_(300)
        assert one.left == ["gpu-0"]


async def test_what_an_older_agent_left_stays_held_without_a_resource_to_look_for() -> None:
    async with node(KnownDevice("gpu-0", "g0", ("/sys/devices/0",), "default/a")) as one:
        await one.pass_(300)
        assert one.left == ["gpu-0"]


CERTAIN: dict[str, Any] = {
    "another device of the resource": lambda one: setattr(one, "listed", {(GPU, "g1"): PODS}),
    "such an id of another resource": lambda one: setattr(one, "listed", {(FPGA, "g0"): PODS}),
    "a claim's other device": lambda one: setattr(one, "claimed", frozenset({"gpu-1"})),
    "another allocated device": lambda one: setattr(one, "allocated", frozenset({"gpu-1"})),
    "a pod asks for another resource": lambda one: one.others.pods.listed(
        (watched_pod(pod("a", container("m", fpga=1))),)
    ),
    "releases were suspended until now": lambda one: setattr(
        one.service, "ledger", Ledger.of((), NodeState("boot", merged=True, releases_suspended_until=NOON + 10))
    ),
}


@pytest.mark.parametrize("known", CERTAIN.values(), ids=CERTAIN)
async def test_what_others_have_keeps_no_device_held(known: Any) -> None:
    async with node(PIECE) as one:
        known(one)
        await one.pass_(50)
        assert one.left == []
