"""A small world around the real ledger: kubelet, a scheduler, the API server, pods and claims, and what can go wrong.

Every message may be late by any time: kubelet acts on the last list that reached it, the scheduler on the last slices
that it saw, the agent on evidence gathered earlier. Time is one bit for each memory of it, "now" or "long ago":
"time passes" makes everything long ago, and may happen only when the timing assumptions that
the policy's numbers stand for are met: an Allocate's reply is recorded by kubelet, a new kubelet has re-synced, a
force-deleted pod's processes are dead, schedulers have seen withdrawn slices, kubelet has read that a device is gone.
The ledger's part is the real ``step``, memoised.
"""

from __future__ import annotations

from collections.abc import Iterator

from drabridge.inventory.devices import Presence
from drabridge.ledger.entries import Entry, Ledger, NodeState, Owner
from tests.ledger.search.agent import Agent
from tests.ledger.search.claims import claim_rules
from tests.ledger.search.faults import Faults
from tests.ledger.search.forget import aged, aged_a_while
from tests.ledger.search.ledgers import Ledgers
from tests.ledger.search.pods import pod_rules
from tests.ledger.search.rules import Outcomes, Rule, Stage, helps, stage, where
from tests.ledger.search.states import DEVICES, Claim, Config, K, P, State, hardware
from tests.ledger.search.truth import Checks


class World:
    """The transition relation: where everything begins, the rules, and what must hold."""

    def __init__(self, config: Config) -> None:
        self.config, self.ledgers = config, Ledgers(config)
        self.checks = Checks(self.ledgers)
        self.rules = tuple(self._rules())

    def initial(self) -> State:
        """Free devices in their lanes, an agent that has just merged, nothing offered yet."""
        entries = [
            Entry(device, lane=lane) for device, lane in zip(hardware(self.config), self.config.lanes, strict=False)
        ]
        return State(
            ledger=self.ledgers.intern(Ledger.of(entries, NodeState(boot_id="boot", merged=True))),
            healthy=0,
            api=0,
            scheduler=0,
            up=True,
            known=True,
            noticed=True,
            gathered=None,
            pods=((P.IDLE, -1),) * self.config.pods,
            claims=(Claim(),) * self.config.claims,
            faults=self.config.faults,
            moves=self.config.moves,
        )

    def successors(self, state: State) -> Iterator[tuple[str, State, bool]]:
        """Everything that can happen next: label, state, whether it may be counted on. Without any reduction."""
        for rule in self.rules:
            for label, after in rule.successors(state):
                yield label, after, rule.helps

    def _rules(self) -> Iterator[Rule]:
        yield from pod_rules(self.ledgers)
        yield from claim_rules(self.ledgers)
        yield helps(where("known", lambda state: not state.known), stage("", _resync))
        yield helps(where("scheduler api", lambda state: state.scheduler != state.api), stage("api", _see_slices))
        yield from Agent(self.ledgers).rules()
        yield helps(*self._time())
        if self.config.grace:
            yield helps(*self._while())
        yield from Faults(self.ledgers).rules()

    # --- time ---

    def _time(self) -> Iterator[Stage]:
        """Time passes when every timing assumption is met; see the head of the file."""
        yield where("up known noticed", lambda state: state.up and state.known and state.noticed)
        yield where("scheduler api", lambda state: state.scheduler == state.api)
        yield where(" ".join(f"pod{index}" for index in range(self.config.pods)), self._pods_settled)
        if self.config.grace:
            yield where(" ".join(f"claim{index}" for index in range(self.config.claims)), _no_zombies)
        if self.config.files_lost:  # nothing else shows the claim's devices of a force-deleted pod
            yield where(" ".join(f"claim{index}" for index in range(self.config.claims)), _claims_settled)
        yield stage("ledger healthy api", self._tick)

    def _while(self) -> Iterator[Stage]:
        """A while passes: longer than the usual absence, shorter than a grace period and the doubt about a pod that was
        never seen. Processes of force-deleted pods may run on.
        """
        yield where("up known noticed", lambda state: state.up and state.known and state.noticed)
        yield where(" ".join(f"pod{index}" for index in range(self.config.pods)), _admitted)
        yield stage("ledger", self._pass)

    def _pass(self, state: State) -> Outcomes:
        yield "a while passes", state._replace(ledger=self.ledgers.memo("while", state.ledger, aged_a_while))

    def _pods_settled(self, state: State) -> bool:
        phases = {phase for phase, _ in state.pods}
        return not phases & {P.CHOSEN, P.REPLIED} and (P.ZOMBIE not in phases or self.config.probe)

    def _tick(self, state: State) -> Outcomes:
        entries = self.ledgers.ledgers[state.ledger].entries
        for bit, name in enumerate(DEVICES):
            if name in entries and entries[name].device.presence is Presence.GONE and state.healthy >> bit & 1:
                return  # kubelet reads a list within a minute
        quarantined = any(entry.owner is Owner.QUARANTINE for entry in entries.values())
        if quarantined and not self.config.prompt and state.api != self.ledgers.offers(state.ledger)[1]:
            return  # the slices of a lost ledger are replaced by then
        yield "time passes", state._replace(ledger=self.ledgers.memo("tick", state.ledger, aged))


def _admitted(state: State) -> bool:
    return not {phase for phase, _ in state.pods} & {P.CHOSEN, P.REPLIED}


def _no_zombies(state: State) -> bool:
    return all(claim.kubelet != K.ZOMBIE for claim in state.claims)


def _claims_settled(state: State) -> bool:
    return not any(claim.api == 2 and claim.kubelet == K.RUNNING for claim in state.claims)


def _resync(state: State) -> Outcomes:
    yield "kubelet has re-synced its pods", state._replace(known=True)


def _see_slices(state: State) -> Outcomes:
    yield "the scheduler sees the slices", state._replace(scheduler=state.api)
