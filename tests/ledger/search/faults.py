"""What can go wrong as a whole: an agent is killed, kubelet restarts, the node reboots, a ledger or a device is lost.

Faults in the middle of a request are with the requests: see the modules ``pods`` and ``claims``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from drabridge.inventory.devices import Presence
from drabridge.ledger import events as ev
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import Entry, Ledger, NodeState
from tests.ledger.search.agent import UP
from tests.ledger.search.ledgers import Ledgers
from tests.ledger.search.rules import Outcomes, Rule, happens, stage, where
from tests.ledger.search.states import DEVICES, NOW, K, P, State, hardware, with_claim, with_pod


def _without_id(name: str, ledger: Ledger) -> Ledger:
    return ledger.replace((), (name,))


class Faults:
    """The rules of whole faults; each takes one of the faults that are left."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.ledgers, self.config = ledgers, ledgers.config

    def rules(self) -> Iterator[Rule]:
        """Those of the configured kinds."""
        left = where("faults", lambda state: state.faults)
        pods = stage(" ".join(f"pod{index}" for index in range(self.config.pods)), self.requests_break)
        kinds = self.config.kinds
        if "crash" in kinds:
            yield happens(left, UP, stage("ledger faults", self.crash))
        if "kubelet" in kinds:
            yield happens(left, stage("faults", self.kubelet_restarts), pods)
        if "forget" in kinds:
            skipped = [stage(f"pod{index}", partial(self.skipped, index)) for index in range(self.config.pods)]
            yield happens(left, stage("faults", self.kubelet_forgets), pods, *skipped)
        if "reboot" in kinds:
            zombies = [stage(f"pod{index}", partial(self.zombies_die, index)) for index in range(self.config.pods)]
            claims = [stage(f"claim{index}", partial(self.prepared_die, index)) for index in range(self.config.claims)]
            yield happens(left, stage("ledger faults", self.reboot), pods, *zombies, *claims)
        if "lost" in kinds:
            yield happens(left, stage("faults", self.lose))
            if self.config.files_lost:
                files = [stage(f"claim{index}", partial(self.file_lost, index)) for index in range(self.config.claims)]
                yield happens(left, stage("faults", self.lose_all), *files)
        if "unplug" in kinds:
            yield happens(left, UP, stage("ledger faults", self.unplug))

    def crash(self, state: State) -> Outcomes:
        yield "FAULT the agent is killed", self.ledgers.down(state)

    def kubelet_restarts(self, state: State) -> Outcomes:
        after = state._replace(healthy=0, known=False, noticed=False, faults=state.faults - 1)
        yield "FAULT kubelet restarts", after

    def kubelet_forgets(self, state: State) -> Outcomes:
        for _, after in self.kubelet_restarts(state):
            yield "FAULT kubelet restarts without its checkpoint", after

    def skipped(self, index: int, state: State) -> Outcomes:
        """Its containers run: kubelet asks for nothing again, and knows of nothing."""
        phase, device = state.pods[index]
        yield "", with_pod(state, index, P.SKIPPED, device) if phase in (P.INIT, P.RUN) else state

    def requests_break(self, state: State) -> Outcomes:
        """Whom kubelet was admitting, it rejects."""
        pods = ((P.DONE, -1) if P.CHOSEN <= phase <= P.REPLIED else (phase, device) for phase, device in state.pods)
        yield "", state._replace(pods=tuple(pods))

    def reboot(self, state: State) -> Outcomes:
        down = self.ledgers.down(state)
        number, _ = self.ledgers.apply(down.ledger, ("boot",), lambda: ev.NodeBooted("another boot", NOW))
        yield "FAULT the node reboots", down._replace(ledger=number, known=False)

    def zombies_die(self, index: int, state: State) -> Outcomes:
        if state.pods[index][0] in (P.ZOMBIE, P.SKIPPED):
            state = state._replace(pods=(*state.pods[:index], (P.DONE, -1), *state.pods[index + 1 :]))
        yield "", state

    def prepared_die(self, index: int, state: State) -> Outcomes:
        claim = state.claims[index]
        kubelet = {K.RUNNING: K.TRIED, K.ZOMBIE: K.DONE}.get(K(claim.kubelet), claim.kubelet)
        yield "", with_claim(state, index, claim._replace(cdi=False, kubelet=kubelet))

    def lose(self, state: State) -> Outcomes:
        empty = self.ledgers.memo("free" if self.config.restart_as_free else "lost", 0, self._lost)
        down = self.ledgers.down(state._replace(ledger=empty))
        yield "FAULT the agent is killed and its ledger is lost", down._replace(ledger=empty)

    def lose_all(self, state: State) -> Outcomes:
        for _, down in self.lose(state):
            yield "FAULT the agent is killed, its ledger and the CDI files of claims are lost", down

    def file_lost(self, index: int, state: State) -> Outcomes:
        yield "", with_claim(state, index, state.claims[index]._replace(cdi=False))

    def _lost(self, ledger: Ledger) -> Ledger:
        fresh = Ledger.of(
            map(Entry, hardware(self.config)),
            NodeState(boot_id="boot"),
        )
        if self.config.restart_as_free:
            return fresh
        return step(fresh, ev.RecordLost(NOW, reason="lost"), self.config.policy).applied_to(fresh)

    def unplug(self, state: State) -> Outcomes:
        for bit, name in enumerate(DEVICES):
            entry = self.ledgers.ledgers[state.ledger].entries.get(name)
            if entry and entry.device.presence is Presence.PRESENT:
                number, _ = self.ledgers.apply(state.ledger, ("unplug", bit), partial(self._without, state.ledger, bit))
                if self.config.drop_ids:
                    number = self.ledgers.memo(f"dropped {bit}", number, partial(_without_id, name))
                yield f"FAULT {name} is unplugged", state._replace(ledger=number, faults=state.faults - 1)

    def _without(self, number: int, bit: int) -> ev.Discovered:
        rest = [entry.device for name, entry in self.ledgers.ledgers[number].entries.items() if name != DEVICES[bit]]
        return ev.Discovered(tuple(rest), NOW, cordoned=self.ledgers.cordoned(number))
