"""What an agent writes of its devices for the one that follows it: for how long their holders may still end."""

from __future__ import annotations

import pytest

from drabridge.coexistence.hardware import held_devices, known_device
from drabridge.inventory.devices import Device
from drabridge.ledger.entries import ClaimHold, ClaimPhase, ClaimRef, Entry, Hold, Lane, Ledger, LedgerDevice, Owner

CLAIM = ClaimRef("uid", "ns", "claim")


def of(hold: Hold | None, *claims: float) -> float | None:
    """The grace that is written of a device with this hold and claims of these graces."""
    held = tuple(ClaimHold(CLAIM, ClaimPhase.PREPARED, 0.0, grace=grace) for grace in claims)
    owner = Owner.LEGACY if hold else Owner.DRA_PREPARED
    entry = Entry(LedgerDevice("d", "a/b", ("D",), syspath="/sys/d"), owner, Lane.LEGACY, hold, held)
    (written,) = held_devices(Ledger().replace((entry,), seq=1))
    return written.grace


def test_the_longest_grace_of_the_holders_is_written() -> None:
    assert of(Hold(grace=30.0)) == 30.0
    assert of(None, 30.0, 60.0) == 60.0


@pytest.mark.parametrize("claims", [(), (30.0,)])
def test_a_grace_that_is_not_known_is_never_taken_for_a_short_one(claims: tuple[float, ...]) -> None:
    assert of(Hold(grace=None), *claims) is None
    assert of(None, *claims, 0.0) is None


def test_a_device_is_written_with_the_resource_under_which_kubelet_shows_pods_on_it() -> None:
    assert known_device(Device("d", "D", "a/b", syspath="/sys/d")).resources == ("a/b",)
