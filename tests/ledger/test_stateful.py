"""Random events and disk faults: the invariants hold and no acknowledged change is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from drabridge.errors import HostError
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import ClaimPhase, ClaimRef, ClaimShare, Lane, Ledger, LedgerDevice, Owner, PodRef
from drabridge.ledger.events import (
    AgentStarted,
    Allocate,
    CheckpointRead,
    ClaimAllocated,
    ClaimDeallocated,
    ClaimDevices,
    DeviceUse,
    Discovered,
    Event,
    KubeletStarted,
    ManualRelease,
    NoClaimListed,
    NodeBooted,
    Observed,
    Prepare,
    RecordLost,
    SetLane,
    Unprepare,
    WithdrawnFromKubelet,
    WithdrawnFromSlices,
)
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.store import Loaded, Store
from tests.ledger.search import invariants

POLICY = LedgerPolicy()
FACTS = (
    LedgerDevice("whole", "r", ("W",)),
    LedgerDevice("part-0", "r", ("P0",), root="whole"),
    LedgerDevice("part-1", "r", ("P1",), root="whole"),
    LedgerDevice("single", "r", ("S",)),
    LedgerDevice("split", "r", ("T::0", "T::1")),
    LedgerDevice("shared", "r", ("H",), shareable=True, capacity=(("memory", 10),)),
)
NAMES = [facts.name for facts in FACTS]
UNITS = {facts.name: facts.units for facts in FACTS}
POD = (PodRef("ns", "pod", "c"),)

names = st.sampled_from(NAMES)
some = st.lists(names, min_size=1, max_size=2, unique=True)
uids = st.sampled_from(["u0", "u1", "u2"])
seen = st.none() | st.lists(names, max_size=3, unique=True)


class PowerCut(BaseException):
    """The machine stops inside an fsync. Not an Exception: nothing may handle it."""


class Machine(RuleBasedStateMachine):
    """The real step and the real store; ``ledger`` is what was acknowledged, ``maybe`` what else may be on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="dra-ledger-"))
        self.clock = 1000.0
        self.trouble = ""
        self.ledger = Ledger()
        self.maybe: list[Ledger] = []

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    def fsync(self, fd: int) -> None:
        if self.trouble == "fail":
            raise OSError(5, "Input/output error")
        if self.trouble == "cut":
            raise PowerCut
        os.fsync(fd)

    @initialize()
    def begin(self) -> None:
        self.store = Store(self.directory, node="n", fsync=self.fsync)
        assert self.store.load().kind is Loaded.FRESH
        self.store.rewrite(self.ledger)
        self.happen(NodeBooted("boot-0", self.clock))
        self.happen(Discovered(FACTS, self.clock, {"single": Lane.DRA, "shared": Lane.DRA}))
        self.happen(AgentStarted(self.clock))

    def happen(self, event: Event) -> bool:
        """Do what the service does: compute the step, write it, then adopt it."""
        done = step(self.ledger, event, POLICY)
        after = done.applied_to(self.ledger)
        assert not invariants.check_step(self.ledger, event, after, POLICY)
        if not done.decision.accepted:
            assert not done.changes, "a refused event changed something"
            assert all(refusal.message for refusal in done.decision.refusals)
        if done.durable:
            self.maybe.append(after)  # whether it is refused or not, until something is on disk
            try:
                self.store.append(after, [entry.name for entry in done.changes], done.removed)
            except HostError:
                return False
            self.maybe.clear()
        self.ledger = after
        return done.decision.accepted

    # --- events ---

    @rule(chosen=some)
    def allocate(self, chosen: list[str]) -> None:
        if self.happen(Allocate({name: UNITS[name][:1] for name in chosen}, self.clock)):
            for name in chosen:
                assert self.ledger.entries[name].owner is Owner.LEGACY

    @rule(uid=uids, chosen=some, share=st.sampled_from([None, 4, 8]), admin=st.booleans())
    def prepare(self, uid: str, chosen: list[str], share: int | None, admin: bool) -> None:
        shared = None if share is None else ClaimShare(f"{uid}-share", (("memory", share),))
        uses = tuple(DeviceUse(name, shared if name == "shared" else None, admin) for name in chosen)
        if self.happen(Prepare(ClaimRef(uid), uses, self.clock)):
            for name in chosen:
                claims = self.ledger.entries[name].claims
                assert any(c.claim.uid == uid and c.phase is ClaimPhase.PREPARED and c.admin is admin for c in claims)

    @rule(uid=uids, chosen=some)
    def claim_allocated(self, uid: str, chosen: list[str]) -> None:
        self.happen(ClaimAllocated(ClaimRef(uid), tuple(map(DeviceUse, chosen)), self.clock))

    @rule(uid=uids)
    def claim_deallocated(self, uid: str) -> None:
        self.happen(ClaimDeallocated(uid, self.clock))

    @rule(uid=uids)
    def unprepare(self, uid: str) -> None:
        self.happen(Unprepare(uid, self.clock))

    @rule(listed=seen, checkpoint=seen, barrier=st.booleans(), api=st.booleans(), late=st.integers(0, 3))
    def observe(
        self, listed: list[str] | None, checkpoint: list[str] | None, barrier: bool, api: bool, late: int
    ) -> None:
        event = Observed(
            self.clock,
            self.ledger.seq - late,
            _pods(listed),
            None if checkpoint is None else CheckpointRead(_pods(checkpoint) or {}, barrier),
            {} if api else None,
        )
        self.happen(event)

    @rule(name=names, lane=st.sampled_from([Lane.LEGACY, Lane.DRA]))
    def set_lane(self, name: str, lane: Lane) -> None:
        self.happen(SetLane(name, lane, self.clock))

    @rule(
        name=names,
        late=st.integers(0, 2),
        kind=st.sampled_from([WithdrawnFromKubelet, WithdrawnFromSlices, NoClaimListed]),
    )
    def acknowledge(
        self, name: str, late: int, kind: type[WithdrawnFromKubelet | WithdrawnFromSlices | NoClaimListed]
    ) -> None:
        self.happen(kind(name, self.ledger.seq - late, self.clock))

    @rule(chosen=st.sets(names))
    def plug(self, chosen: set[str]) -> None:
        self.happen(Discovered(tuple(facts for facts in FACTS if facts.name in chosen), self.clock))

    @rule(name=names, ended=st.booleans())
    def resolve(self, name: str, ended: bool) -> None:
        holders = self.ledger.entries[name].holders if ended and name in self.ledger.entries else ()
        self.happen(ManualRelease(name, self.clock, frozenset(held.claim.uid for held in holders)))

    @rule()
    def kubelet_starts(self) -> None:
        self.happen(KubeletStarted(self.clock))

    @rule(boot=st.sampled_from(["boot-0", "boot-1"]))
    def reboot(self, boot: str) -> None:
        self.happen(NodeBooted(boot, self.clock))

    @rule(seconds=st.sampled_from([1.0, 15.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock += seconds

    # --- the disk ---

    @rule()
    def the_disk_fails_once(self) -> None:
        self.trouble = "fail"
        before = self.ledger
        self.happen(Allocate({"single": ("S",)}, self.clock))
        self.trouble = ""
        if self.ledger is not before:
            assert not step(before, Allocate({"single": ("S",)}, self.clock), POLICY).durable

    @rule(name=names, torn=st.floats(0, 1), kept=st.booleans())
    def the_power_is_cut(self, name: str, torn: float, kept: bool) -> None:
        """Inside the fsync of a commit or a rewrite: any part of what was not synced may be on the disk."""
        before = {path.name: path.read_bytes() for path in self.directory.iterdir()}
        self.trouble = "cut"
        with contextlib.suppress(PowerCut):
            self.happen(Allocate({name: UNITS[name][:1]}, self.clock))
        self.trouble = ""
        path = self.store.path
        new, old = path.read_bytes(), before[path.name]
        if new.startswith(old):
            path.write_bytes(new[: len(old) + round(torn * (len(new) - len(old)))])
        elif not kept:  # renames that were not synced may be undone
            for other, content in before.items():
                (self.directory / other).write_bytes(content)
        self.start_again(expect={Loaded.COMPLETE, Loaded.REPAIRED})

    @rule()
    def the_agent_is_killed(self) -> None:
        self.start_again(expect={Loaded.COMPLETE})

    def start_again(self, expect: set[Loaded]) -> None:
        """Everything acknowledged is there. An unfinished write may be: it holds more devices, never fewer."""
        self.store.close()
        self.store = Store(self.directory, node="n", fsync=self.fsync)
        loaded = self.store.load()
        assert loaded.kind in expect, loaded.message
        assert _durable(loaded.ledger) in [_durable(ledger) for ledger in (self.ledger, *self.maybe)]
        self.take_over(loaded.ledger)

    def take_over(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.maybe.clear()
        self.store.rewrite(ledger)
        prepared = {
            held.claim: tuple(
                DeviceUse(name, admin=ledger.entries[name].claim(held.claim.uid) is None)
                for name in ledger.by_claim[held.claim.uid]
            )
            for entry in ledger.entries.values()
            for held in entry.holders
            if held.phase is ClaimPhase.PREPARED
        }
        self.happen(AgentStarted(self.clock, tuple(ClaimDevices(claim, uses) for claim, uses in prepared.items())))

    @rule(where=st.floats(0, 0.999), bit=st.integers(0, 7))
    def the_file_rots(self, where: float, bit: int) -> None:
        """Flip one bit anywhere but in the last byte: each held device stays held or is in quarantine."""
        held = {name for name, entry in self.ledger.entries.items() if entry.owner is not Owner.NONE}
        content = bytearray(self.store.path.read_bytes())
        content[int(where * (len(content) - 1))] ^= 1 << bit
        self.store.path.write_bytes(content)
        self.store.close()
        self.store = Store(self.directory, node="n", fsync=self.fsync)
        loaded = self.store.load()
        assert loaded.doubtful
        ledger = step(loaded.ledger, RecordLost(self.clock, reason=loaded.message), POLICY).applied_to(loaded.ledger)
        ledger = step(ledger, Discovered(FACTS, self.clock), POLICY).applied_to(ledger)
        for name in held:
            assert ledger.entries[name].owner is not Owner.NONE
        self.take_over(ledger)

    # --- always ---

    @invariant()
    def the_ledger_is_sound(self) -> None:
        assert not invariants.check_ledger(self.ledger, POLICY)
        for entry in self.ledger.entries.values():
            if entry.owner is not Owner.QUARANTINE:
                assert len({held.claim.uid for held in entry.holders}) <= 1 or entry.device.shareable


def _pods(listed: list[str] | None) -> dict[tuple[str, str], tuple[PodRef, ...]] | None:
    return None if listed is None else {("r", unit): POD for name in listed for unit in UNITS[name][:1]}


def _durable(ledger: Ledger) -> dict[str, object]:
    """The part of a ledger that a commit keeps: everything except evidence."""
    return {
        name: (
            entry.owner,
            entry.lane,
            entry.claims,
            entry.move,
            entry.device,
            entry.hold and entry.hold.units,
        )
        for name, entry in ledger.entries.items()
    }


TestLedgerAndStore = Machine.TestCase
TestLedgerAndStore.settings = settings(
    max_examples=int(os.environ.get("LEDGER_EXAMPLES", "100")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
