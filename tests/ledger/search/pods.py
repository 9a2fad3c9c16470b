"""What a legacy pod goes through: kubelet chooses a device, asks the agent, records it, runs it and forgets it."""

from __future__ import annotations

from collections.abc import Iterator

from drabridge.ledger import events as ev
from tests.ledger.search.ledgers import Ledgers
from tests.ledger.search.rules import Outcomes, Rule, Stage, ends, happens, helps, stage, where
from tests.ledger.search.states import DEVICES, NOW, P, State, bits, with_pod


def pod_rules(ledgers: Ledgers) -> Iterator[Rule]:
    """The rules of every pod."""
    for index in range(ledgers.config.pods):
        yield from _Pod(ledgers, index).rules()


class _Pod:
    def __init__(self, ledgers: Ledgers, index: int) -> None:
        self.ledgers, self.config, self.index, self.field = ledgers, ledgers.config, index, f"pod{index}"

    def rules(self) -> Iterator[Rule]:
        everyone = " ".join(f"pod{index}" for index in range(self.config.pods))
        yield happens(self.is_in(P.IDLE), stage(f"{everyone} healthy", self.chosen))
        yield helps(self.is_in(P.CHOSEN), stage(f"{self.field} up ledger", self.allocate))
        yield helps(self.is_in(P.REPLIED, P.INIT), stage(self.field, self.live))
        unreported = (P.REPLIED, P.ZOMBIE, P.SKIPPED)
        yield ends(
            self.is_in(*unreported, *(() if self.config.proofs else (P.INIT, P.RUN))), stage(self.field, self.end)
        )
        if self.config.proofs:
            yield ends(self.is_in(P.INIT, P.RUN), stage(self.field, self.end_reported))
            yield happens(self.is_in(P.ENDED), stage(self.field, self.end))
        fault = where("faults", lambda state: state.faults)
        if "crash" in self.config.kinds:
            up = where("up", lambda state: state.up)
            yield happens(fault, up, self.is_in(P.CHOSEN), stage(f"{self.field} ledger faults", self.crash))
        if "force" in self.config.kinds:
            yield happens(fault, self.is_in(P.INIT, P.RUN), stage(f"{self.field} faults", self.force_delete))

    def is_in(self, *phases: P) -> Stage:
        """Whether the pod is in one of these phases, and no earlier pod is just like it: its twin does the same."""
        if not self.index or self.config.proofs:
            return where(self.field, lambda state: state.pods[self.index][0] in phases)
        twin = self.index - 1

        def applies(state: State) -> bool:
            return state.pods[self.index][0] in phases and state.pods[twin] != state.pods[self.index]

        return where(f"pod{twin} {self.field}", applies)

    def chosen(self, state: State) -> Outcomes:
        taken = {device for phase, device in state.pods if P.CHOSEN <= phase <= P.RUN}
        for free in bits(state.healthy):
            if free not in taken:
                yield f"kubelet chooses d{free} for p{self.index}", with_pod(state, self.index, P.CHOSEN, free)

    def answer(self, state: State) -> tuple[int, bool]:
        """What the real step makes of the Allocate, and whether it says yes."""
        device = state.pods[self.index][1]
        name = DEVICES[device]
        return self.ledgers.apply(state.ledger, ("allocate", device), lambda: ev.Allocate({name: (name,)}, NOW))

    def allocate(self, state: State) -> Outcomes:
        failed = with_pod(state, self.index, P.DONE)
        if not state.up:
            yield f"p{self.index}: no agent for Allocate", failed
            return
        device = state.pods[self.index][1]
        number, accepted = self.answer(state)
        after = with_pod(state, self.index, P.REPLIED, device) if accepted else failed
        said = "yes" if accepted else "no"
        yield f"Allocate d{device} for p{self.index}: {said}", after._replace(ledger=number)

    def crash(self, state: State) -> Outcomes:
        """The agent is killed while it answers."""
        device = state.pods[self.index][1]
        number, accepted = self.answer(state)
        failed = with_pod(state, self.index, P.DONE)
        if self.config.reply_before_durable and accepted:
            told = with_pod(state, self.index, P.REPLIED, device)
            yield f"Allocate d{device}: yes, FAULT crash before it is durable", self.ledgers.down(told)
        yield f"Allocate d{device}: FAULT crash before it is durable", self.ledgers.down(failed)
        late = failed._replace(ledger=number)
        yield f"Allocate d{device}: FAULT crash before the reply", self.ledgers.down(late)

    def live(self, state: State) -> Outcomes:
        phase, device = state.pods[self.index]
        if phase == P.REPLIED:
            yield f"p{self.index} becomes INIT", with_pod(state, self.index, P.INIT, device)
        yield f"p{self.index} becomes RUN", with_pod(state, self.index, P.RUN, device)

    def end(self, state: State) -> Outcomes:
        yield f"p{self.index} ends", with_pod(state, self.index, P.DONE)

    def end_reported(self, state: State) -> Outcomes:
        yield (
            f"p{self.index} ends and kubelet reports it",
            with_pod(state, self.index, P.ENDED, state.pods[self.index][1]),
        )

    def force_delete(self, state: State) -> Outcomes:
        zombie = with_pod(state, self.index, P.ZOMBIE, state.pods[self.index][1])
        yield f"FAULT p{self.index} is force-deleted", zombie._replace(faults=state.faults - 1)
