"""Run the agent with one rule missing: ``python -m tests.support.broken_agent VARIANT run ...``.

It shows that a check notices. The variants of the ledger are those that its exhaustive search hunts
(:mod:`tests.ledger.search.mutants`); those below break what joins the ledger to the world.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from drabridge.cli import main
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.ledger import service
from tests.ledger.search.mutants import MUTANTS


def _kubelet_is_not_asked() -> None:
    async def nothing(self: KubeletEvidence) -> frozenset[tuple[str, str]]:
        return frozenset()

    KubeletEvidence.allocatable = nothing  # type: ignore[method-assign]


def _nobody_looks_at_nodes() -> None:
    async def nobody(self: OtherEvidence, names: set[str]) -> Mapping[str, str]:
        return {}

    OtherEvidence.in_use = nobody  # type: ignore[method-assign]


WIRING: Mapping[str, Callable[[], None]] = {
    "kubelet is not asked before a move": _kubelet_is_not_asked,
    "open nodes are not looked for": _nobody_looks_at_nodes,
}


def break_agent(variant: str) -> None:
    """Make this process such an agent. KeyError for a variant that there is not."""
    if variant in WIRING:
        WIRING[variant]()
        return
    mutant = {mutant.name: mutant for mutant in MUTANTS}[variant]

    def step(ledger: Any, event: Any, policy: Any) -> Any:
        return mutant.config.step(ledger, event, policy)

    vars(service)["step"] = step


if __name__ == "__main__":
    break_agent(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
