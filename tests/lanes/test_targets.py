"""What people are told of shared devices that are not shared, or not as many."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.config import load
from drabridge.kube.connection import ClaimsOff
from drabridge.lanes.targets import LaneTargets
from drabridge.ledger.entries import Lane
from tests.lanes.planned_ledger import devices, ledger_of

CONFIG = load("""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: gpu.example.com
resources:
- {name: example.com/r, match: [{subsystem: pci}], lanes: {shared: 2}}
""")
FOUND = [replace(device, resource="example.com/r") for device in devices(4)]
OFF = ClaimsOff("there is no API server", "give --kubeconfig")
UNKNOWN = "it is not known yet whether the API server keeps binding conditions"


@pytest.mark.parametrize(
    ("keeps_leases", "off", "why"),
    [
        (True, None, ""),
        (None, None, f"1 of 2 shared devices are for pods only: {UNKNOWN}"),
        (False, None, "2 of 2 shared devices are for pods only: the API server does not keep binding conditions"),
        (None, OFF, "1 of 2 shared devices are for pods only: there is no API server"),
        (False, OFF, "1 of 2 shared devices are for pods only: there is no API server"),
    ],
)
def test_the_reason_is_the_one_that_a_person_can_do_something_about(
    keeps_leases: bool | None, off: ClaimsOff | None, why: str
) -> None:
    ledger = ledger_of(FOUND, {0: Lane.SHARED})
    targets: Any = LaneTargets(
        lambda: CONFIG,
        lambda: {device.name: device for device in FOUND},
        Some(current=Some(complete=True)),  # type: ignore[arg-type]
        Some(ledger=ledger, now=lambda: 1000.0),  # type: ignore[arg-type]
        Some(lanes=lambda resource: resource.lanes, uncertain=lambda resource: False),  # type: ignore[arg-type]
        Some(claims_off=off),  # type: ignore[arg-type]
        Some(keeps_leases=keeps_leases),
        tuple,
    )
    assert targets.plan(CONFIG.resources[0]).notes == ([why] if why else [])
