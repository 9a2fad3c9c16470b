"""One round of evidence over real sockets: what kubelet says, and how fresh its checkpoint provably is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from drabridge.evidence.kubelet import KubeletEvidence, KubeletList, absent
from drabridge.ledger.entries import Entry, Hold, Lane, Ledger, LedgerDevice, NodeState, Owner
from drabridge.ledger.events import Observed
from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.timings import Timings
from podresources import Client
from tests.support.kubelet_peers import GPU, Plugin, device
from tests.support.waiting import PATIENCE, short_directory

OTHER = "other.example.com/port"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.evidence.kubelet.BARRIER_SECONDS", 2.0 * PATIENCE)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """Where kubelet does not write its file, and that is waited for."""
    monkeypatch.setattr("drabridge.evidence.kubelet.BARRIER_SECONDS", 0.3)


class Peer:
    """A kubelet with a plugin of two devices, and a witness that asks it."""

    def __init__(self, kubelet: SimKubelet, plugin: Plugin, client: Client) -> None:
        self.kubelet = kubelet
        self.plugin = plugin
        self.resends = True
        self.resent: list[list[str]] = []
        self.questions: list[float] = []  # when kubelet was to be asked
        self.witness = KubeletEvidence(client, kubelet.node.device_plugin_dir, self._resend, time.time, self._quiet)

    async def _quiet(self) -> None:
        self.questions.append(time.time())
        await asyncio.sleep(0.01)

    async def _resend(self, resources: Iterable[str], timeout_seconds: float) -> bool:
        self.resent.append(list(resources))
        if self.resends:
            await self.plugin.send([device("d0"), device("d1")])
        return True

    async def look(self, *held: str) -> Observed:
        """A round for a ledger in which pods hold these devices."""
        entries = [Entry(LedgerDevice(name, GPU, (name,))) for name in ("d0", "d1")]
        entries = [replace(e, owner=Owner.LEGACY, hold=Hold((e.name,))) if e.name in held else e for e in entries]
        return await self.witness.gather(Ledger.of(entries, NodeState(merged=True), seq=7))


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    with short_directory() as root:
        async with SimKubelet(root, timings=Timings.fast()) as kubelet:
            plugin = Plugin(root, "p.sock", [device("d0"), device("d1")])
            await plugin.serve()
            await plugin.register()
            await kubelet.wait_for_resource(GPU, healthy=2)
            async with Client(kubelet.node.podresources_socket) as client:
                try:
                    yield Peer(kubelet, plugin, client)
                finally:
                    await plugin.stop()


def pod(name: str) -> PodSpec:
    return PodSpec("default", name, uid=f"uid-{name}", containers=(Container("main", {GPU: 1}),))


async def test_what_is_listed_needs_no_barrier() -> None:
    async with peer() as one:
        await one.kubelet.run_pod(pod("a"))
        before = await one.look()
        assert before.listed is not None
        ((resource, unit),) = before.listed
        assert resource == GPU
        seen = await one.look(unit)
        assert [str(ref) for ref in (seen.listed or {})[GPU, unit]] == ["default/a (container main)"]
        assert seen.checkpoint is None
        assert seen.since_seq == 7
        assert not one.resent


async def test_another_plugin_s_unit_of_the_same_id_is_another_unit() -> None:
    async with peer() as one:
        other = Plugin(one.kubelet.node.device_plugin_dir.parent, "o.sock", [device("d0"), device("d1")], OTHER)
        await other.serve()
        await other.register()
        await one.kubelet.wait_for_resource(OTHER, healthy=2)
        await one.kubelet.run_pod(pod("a"))
        ((_, unit),) = (await one.look()).listed or {}
        await one.kubelet.run_pod(PodSpec("default", "b", uid="b", containers=(Container("main", {OTHER: 2}),)))
        seen = await one.look("d0", "d1")
        assert set(seen.listed or ()) == {(GPU, unit), (OTHER, "d0"), (OTHER, "d1")}
        assert seen.checkpoint is not None, "a hold would end: of our device the List shows nothing"
        assert set(seen.checkpoint.pods) == set(seen.listed or ())
        assert set(await one.witness.allocatable() or ()) == {
            (name, f"d{n}") for name in (GPU, OTHER) for n in range(2)
        }
        await other.stop()


async def test_evidence_is_as_old_as_its_first_question() -> None:
    async with peer() as one:
        asked = time.time()
        seen = await one.look("d0")
        assert seen.checkpoint is not None
        assert asked <= seen.at <= one.questions[0]


async def test_the_barrier_makes_kubelet_write_what_it_has_just_dropped() -> None:
    async with peer() as one:
        await one.kubelet.run_pod(pod("a"))
        ((_, unit),) = (await one.look()).listed or {}
        await one.kubelet.finish_pod("uid-a")
        stale = one.witness.read_checkpoint()
        assert stale is not None
        assert (GPU, unit) in stale.pods  # nobody has asked kubelet yet, so nobody has told the file
        assert not stale.barrier
        seen = await one.look(unit)
        assert one.resent == [[GPU]]
        assert seen.listed == {}
        assert seen.checkpoint is not None
        assert seen.checkpoint.barrier
        assert seen.checkpoint.pods == {}


async def test_a_plain_init_container_is_in_the_checkpoint_alone() -> None:
    async with peer() as one:
        init = Container("init", {GPU: 1}, run_seconds=30)
        spec = PodSpec("default", "a", uid="uid-a", init_containers=(init,), containers=(Container("main"),))
        running = asyncio.create_task(one.kubelet.run_pod(spec))
        await one.kubelet.wait_for(lambda: one.kubelet.resources[GPU].allocated)
        (unit,) = one.kubelet.resources[GPU].allocated
        seen = await one.look(unit)
        assert seen.listed == {}
        assert seen.checkpoint is not None
        assert seen.checkpoint.barrier
        assert [(ref.uid, ref.container) for ref in seen.checkpoint.pods[GPU, unit]] == [("uid-a", "init")]
        await one.kubelet.delete_pod("uid-a")
        await running


async def test_devices_on_their_way_to_claims_are_asked_about_behind_the_barrier() -> None:
    async with peer() as one:
        entry = Entry(LedgerDevice("d0", GPU, ("d0",)), lane=Lane.LEGACY_TO_DRA)
        seen = await one.witness.gather(Ledger.of([entry], NodeState(merged=True)))
        assert one.resent == [[GPU]]
        assert seen.checkpoint is not None
        assert seen.checkpoint.barrier


async def test_pods_shown_by_the_list_or_the_checkpoint_are_shown() -> None:
    async with peer() as one:
        assert await one.witness.shown() == frozenset()
        await one.kubelet.run_pod(pod("a"))
        init = Container("init", {GPU: 1}, run_seconds=30)
        spec = PodSpec("default", "b", uid="uid-b", init_containers=(init,), containers=(Container("main"),))
        running = asyncio.create_task(one.kubelet.run_pod(spec))
        await one.kubelet.wait_for(lambda: len(one.kubelet.resources[GPU].allocated) == 2)
        assert len((await one.look()).listed or {}) == 1
        assert set(await one.witness.shown() or ()) == {(GPU, "d0"), (GPU, "d1")}
        one.kubelet.faults.podresources = ListFault.ERROR
        assert await one.witness.shown() is None
        one.kubelet.faults.podresources = ListFault.NONE
        await one.kubelet.delete_pod("uid-b")
        await running


async def test_a_file_that_was_not_written_again_is_no_barrier(impatient: None) -> None:
    async with peer() as one:
        one.resends = False
        seen = await one.look("d0")
        assert seen.listed == {}
        assert seen.checkpoint is not None
        assert not seen.checkpoint.barrier


async def test_a_file_that_is_gone_or_garbage_is_unknown(impatient: None) -> None:
    async with peer() as one:
        one.resends = False
        file = one.kubelet.node.device_plugin_dir / "kubelet_internal_checkpoint"
        file.write_text("{")
        assert (await one.look("d0")).checkpoint is None
        file.unlink()
        assert (await one.look("d0")).checkpoint is None


@pytest.mark.parametrize("fault", [ListFault.ERROR, ListFault.GARBAGE])
async def test_a_list_that_fails_is_unknown_and_says_why(fault: ListFault) -> None:
    async with peer() as one:
        one.kubelet.faults.podresources = fault
        seen = await one.look("d0")
        assert seen.listed is None
        assert seen.checkpoint is None
        assert one.witness.error
        one.kubelet.faults.podresources = ListFault.NONE
        assert (await one.look()).listed == {}
        assert not one.witness.error


async def test_a_list_that_hangs_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.evidence.kubelet.LIST_SECONDS", 0.3)
    async with peer() as one:
        one.kubelet.faults.podresources = ListFault.HANG
        began = time.monotonic()
        assert (await one.look("d0")).listed is None
        assert time.monotonic() - began < 3 * PATIENCE


async def test_a_socket_that_is_gone_is_unknown() -> None:
    async with peer() as one:
        await one.kubelet.stop()
        one.kubelet.node.podresources_socket.unlink()
        assert (await one.look("d0")).listed is None
        assert await one.witness.allocatable() is None


def test_a_hold_that_kubelet_counts_elsewhere_is_looked_for_there() -> None:
    held = Entry(LedgerDevice("d0", GPU, ("d0",)), Owner.LEGACY, hold=Hold(("d0",), resource=OTHER))
    ledger = Ledger.of([held])
    assert absent(ledger, {(OTHER, "d0::1"): ()}) == absent(ledger, {(GPU, "d0"): ()}) == []
    assert absent(ledger, {("third", "d0"): (), (OTHER, "d1"): ()}) == [held]


async def test_a_list_waits_for_a_quiet_moment() -> None:
    async with peer() as one:
        order: list[str] = []
        gate = asyncio.Event()

        async def quiet() -> None:
            order.append("asked")
            await gate.wait()
            order.append("quiet")

        async with Client(one.kubelet.node.podresources_socket) as client:
            witness = KubeletEvidence(client, one.kubelet.node.device_plugin_dir, one._resend, time.time, quiet)
            looking = asyncio.create_task(witness.list_pods())
            await asyncio.sleep(0.05)
            assert order == ["asked"]
            assert not one.kubelet.calls.of("List")
            gate.set()
            assert await looking == KubeletList({})
        assert order == ["asked", "quiet"]
        assert len(one.kubelet.calls.of("List")) == 1
