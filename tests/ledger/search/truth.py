"""The invariants about what is really the case, each looking only at the part of a state that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from drabridge.ledger.entries import Ledger
from tests.ledger.search import invariants
from tests.ledger.search.invariants import Truth
from tests.ledger.search.ledgers import Ledgers
from tests.ledger.search.rules import Outcomes, Stage, stage
from tests.ledger.search.states import DEVICES, UIDS, USING, Broken, Claim, K, P, Pod, State, bits


def _of_pods(pods: tuple[Pod, ...]) -> Truth:
    using: dict[str, set[str]] = {}
    promised: dict[str, set[str]] = {}
    in_allocate: set[str] = set()
    for index, (phase, device) in enumerate(pods):
        if phase in USING:
            using.setdefault(DEVICES[device], set()).add(f"p{index}")
        if phase == P.REPLIED or phase in USING:
            promised.setdefault(DEVICES[device], set()).add(f"p{index}")
        if phase in (P.CHOSEN, P.REPLIED, P.INIT, P.RUN):
            in_allocate.add(DEVICES[device])
    return Truth(pods=using, promised_pods=promised, in_allocate=in_allocate)


def _of_claims(claims: dict[str, Claim], *, recorded: bool = True) -> Truth:
    """``recorded``: the ledger is to know which claims are prepared, not only that they are allocated."""
    using: dict[str, set[str]] = {}
    uses: dict[str, set[str]] = {}
    told: tuple[dict[str, set[str]], ...] = ({}, {}, {})
    for uid, claim in claims.items():
        devices = {DEVICES[device] for device in bits(claim.devices)}
        if claim.api == 1:
            uses[uid] = devices
            if claim.kubelet == K.NEW:
                told[claim.told][uid] = devices
            elif claim.kubelet == K.RUNNING:  # "yes" to Prepare is as good as the condition
                told[1][uid] = devices
        if claim.kubelet in (K.RUNNING, K.ZOMBIE):
            for name in devices:
                using.setdefault(name, set()).add(uid)
    return Truth(claims=using, promised_claims=using if recorded else {}, uses=uses, leased=told[1], denied=told[2])


def whole(state: State, *, recorded: bool = True) -> Truth:
    """Everything that is the case."""
    pods, claims = _of_pods(state.pods), _of_claims(dict(zip(UIDS, state.claims, strict=False)), recorded=recorded)
    return Truth(
        pods.pods,
        claims.claims,
        pods.promised_pods,
        claims.promised_claims,
        {DEVICES[device] for device in bits(state.healthy)},
        {DEVICES[device] for device in bits(state.scheduler)},
        offered={DEVICES[device] for device in bits(state.api)},
        in_allocate=pods.in_allocate,
        uses=claims.uses,
        leased=claims.leased,
        denied=claims.denied,
    )


class Checks:
    """Every invariant, in parts: each raises :class:`Broken` where it does not hold.

    The parts lose nothing: I1 compares pods with claims, and no device here is a part of another, unless both are at
    one place: then only one of them is used; I2, I4, I6 and
    "listed" compare the ledger with one kind of holder; I3 compares it with what is offered.
    """

    def __init__(self, ledgers: Ledgers) -> None:
        self.ledgers = ledgers
        config = ledgers.config
        # Without files and without claims from kubelet, prepared cannot be told from allocated: either holds.
        self.recorded = config.claims_shown or not config.files_lost
        self.denials = "lost" not in config.kinds  # a lost record has lost them; a lease is needed all the same

    def parts(self) -> Iterator[Stage]:
        """Stages that never have an outcome."""
        config = self.ledgers.config
        pods = " ".join(f"pod{index}" for index in range(config.pods))
        claims = " ".join(f"claim{index}" for index in range(config.claims))
        yield stage(f"{pods} {claims}", self.holders)
        yield stage(f"ledger {pods}", self.pods)
        for index in range(config.claims):
            beside = " healthy api" if config.leases else ""
            yield stage(f"ledger claim{index}{beside}", partial(self.claim, index))
        if not config.leases:  # nobody gets a device by what the slices say alone: I3 has nothing to say
            yield stage("ledger healthy scheduler", self.offers)

    def check(self, state: State) -> None:
        """All of it at once."""
        self.holders(state)
        if self.ledgers.config.leases:
            state = state._replace(scheduler=0)
        self._hold(self.ledgers.ledgers[state.ledger], whole(state, recorded=self.recorded))

    def _hold(self, ledger: Ledger, truth: Truth) -> None:
        if not self.denials:
            truth = replace(truth, denied={})
        if violations := invariants.check_truth(ledger, truth, self.ledgers.config.policy):
            raise Broken(violations)

    def holders(self, state: State) -> Outcomes:
        truth = whole(state._replace(healthy=0, api=0, scheduler=0))
        if violations := tuple(invariants.one_holder(Ledger(), truth, self.ledgers.config.policy)):
            raise Broken(violations)
        used = sorted({*truth.pods, *truth.claims})
        if self.ledgers.config.one_place and len(used) > 1:
            raise Broken((invariants.Violation("I1", used[0], f"used while {used[1]}, the same hardware, is used"),))
        return ()

    def pods(self, state: State) -> Outcomes:
        self._hold(self.ledgers.ledgers[state.ledger], _of_pods(state.pods))
        return ()

    def claim(self, index: int, state: State) -> Outcomes:
        truth = _of_claims({UIDS[index]: state.claims[index]}, recorded=self.recorded)
        if self.ledgers.config.leases:
            shown = self.ledgers.offers(state.ledger)[1] if self.ledgers.config.prompt else state.api
            healthy, offered = (frozenset(DEVICES[one] for one in bits(mask)) for mask in (state.healthy, shown))
            truth = replace(truth, healthy=healthy, offered=offered)
        self._hold(self.ledgers.ledgers[state.ledger], truth)
        return ()

    def offers(self, state: State) -> Outcomes:
        truth = whole(state._replace(api=0, pods=(), claims=()))
        self._hold(self.ledgers.ledgers[state.ledger], truth)
        return ()
