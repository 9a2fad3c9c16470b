"""One state of all those that differ only in the names of pods, of claims and of devices.

Every rule treats pods alike, claims alike and devices alike, and so does every invariant: what can happen to a state
can happen to the same state under other names. So one of them stands for all, whatever the world began with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ledger.search.forget import swap_claims, swap_devices, swap_gathered, swap_pods, unsequenced
from tests.ledger.search.ledgers import Ledgers
from tests.ledger.search.packing import Codes, Mapping, Numbers, Packing
from tests.ledger.search.states import SWAPPED, Claim, Gathered, Pod


class Symmetry:
    """Canonical forms of packed states."""

    def __init__(self, ledgers: Ledgers, packing: Packing) -> None:
        self.packing, self.config = packing, ledgers.config

        def of_ledgers(what: str, make: Any) -> Mapping:
            return Mapping(lambda: len(ledgers.ledgers), lambda number: ledgers.memo(what, number, make))

        self._settled = of_ledgers("settled", unsequenced)
        self._claims = of_ledgers("claims", swap_claims)
        self._devices = of_ledgers("devices", swap_devices)
        self._pods = of_ledgers("pods", swap_pods)
        self._pods_gathered = self._of_domain("gathered", _rename_pods_gathered)
        swaps = {"healthy": _swap_mask, "api": _swap_mask, "scheduler": _swap_mask, "gathered": _swap_gathered}
        swaps |= dict.fromkeys(packing.pods, _swap_pod) | dict.fromkeys(packing.claims, _swap_claim)
        self._gathered = self._of_domain("gathered", _rename_gathered)
        self._swaps = {name: self._of_domain(name, swap) for name, swap in swaps.items()}

    def _of_domain(self, name: str, swap: Any) -> Mapping:
        domain = self.packing.domains[name]
        return Mapping(lambda: len(domain.values), lambda number: domain.number(swap(domain.values[number])))

    def canonical(self, codes: Codes) -> Codes:
        """The representative of each state."""
        codes = self._ordered(self.settled(codes))
        if self.config.devices < 2:
            return codes
        return np.minimum(codes, self._ordered(self._swapped(codes)))

    def settled(self, codes: Codes) -> Codes:
        """Nobody gathers evidence: what the ledger remembers of the order of its own changes does not matter."""
        packing = self.packing
        ledgers = packing.of(codes, "ledger")
        settled = self._settled.array()[ledgers]
        if self.config.late_evidence:
            settled = np.where(packing.of(codes, "gathered") == packing.none, settled, ledgers)
        return packing.put(codes, "ledger", settled)

    def _ordered(self, codes: Codes) -> Codes:
        """Pods in order, claims in order; the ledger knows claims by name."""
        packing = self.packing
        if self.config.pods == 2:
            first, second = packing.of(codes, "pod0"), packing.of(codes, "pod1")
            codes = packing.put(codes, "pod0", np.minimum(first, second))
            codes = packing.put(codes, "pod1", np.maximum(first, second))
            if self.config.proofs:  # the ledger knows pods by name
                codes = self._pods_renamed(codes, first, second)
        if self.config.claims == 2:
            first, second = packing.of(codes, "claim0"), packing.of(codes, "claim1")
            ledgers = packing.of(codes, "ledger")
            renamed = self._claims.array()[ledgers]
            lower = renamed < ledgers
            if self.config.late_evidence:
                gathered = packing.of(codes, "gathered")
                renamed_too = self._gathered.array()[gathered]
                lower |= (renamed == ledgers) & (renamed_too < gathered)
            rename = (first > second) | ((first == second) & lower)
            if self.config.late_evidence:
                codes = packing.put(codes, "gathered", np.where(rename, renamed_too, gathered))
            codes = packing.put(codes, "claim0", np.minimum(first, second))
            codes = packing.put(codes, "claim1", np.maximum(first, second))
            codes = packing.put(codes, "ledger", np.where(rename, renamed, ledgers))
        return codes

    def _pods_renamed(self, codes: Codes, first: Numbers, second: Numbers) -> Codes:
        """The ledger, and evidence that is late, by the pods' new names."""
        packing = self.packing
        ledgers = packing.of(codes, "ledger")
        renamed = self._pods.array()[ledgers]
        lower = renamed < ledgers
        if self.config.late_evidence:
            gathered = packing.of(codes, "gathered")
            renamed_too = self._pods_gathered.array()[gathered]
            lower |= (renamed == ledgers) & (renamed_too < gathered)
        rename = (first > second) | ((first == second) & lower)
        if self.config.late_evidence:
            codes = packing.put(codes, "gathered", np.where(rename, renamed_too, gathered))
        return packing.put(codes, "ledger", np.where(rename, renamed, ledgers))

    def _swapped(self, codes: Codes) -> Codes:
        packing = self.packing
        result = packing.put(codes, "ledger", self._devices.array()[packing.of(codes, "ledger")])
        for name, swap in self._swaps.items():
            if name == "gathered" and not self.config.late_evidence:
                continue
            result = packing.put(result, name, swap.array()[packing.of(codes, name)])
        return result


def _swap_mask(mask: int) -> int:
    return SWAPPED[mask]


def _swap_gathered(seen: Gathered | None) -> Gathered | None:
    return seen and swap_gathered(seen)


def _rename_gathered(seen: Gathered | None) -> Gathered | None:
    return seen and seen._replace(allocated=seen.allocated and seen.allocated[::-1])


def _rename_pods_gathered(seen: Gathered | None) -> Gathered | None:
    return seen and seen._replace(
        recorded=tuple(SWAPPED[mask] for mask in seen.recorded), reported=SWAPPED[seen.reported]
    )


def _swap_pod(pod: Pod) -> Pod:
    phase, device = pod
    return pod if device < 0 else (phase, 1 - device)


def _swap_claim(claim: Claim) -> Claim:
    keeper = claim.keeper._replace(devices=SWAPPED[claim.keeper.devices])
    return claim._replace(devices=SWAPPED[claim.devices], keeper=keeper)
