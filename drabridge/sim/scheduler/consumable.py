"""Consumable capacity (KEP-5075): what one share of a device takes.

Its request policy has rounded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from drabridge.sim.apiserver.quantity import Quantity
from drabridge.sim.apiserver.status import JSON

Amounts = Mapping[str, Quantity]


def consumed(capacities: Mapping[str, JSON], requests: Mapping[str, str]) -> dict[str, Quantity] | None:
    """Amount per capacity that a share takes; None when the device cannot serve the requests at all.

    Without a request a policy's default is taken, without a policy all of the capacity.
    """
    if not requests.keys() <= capacities.keys():
        return None
    taken: dict[str, Quantity] = {}
    for name, capacity in capacities.items():
        whole = Quantity.parse(capacity["value"])
        amount = _rounded(requests.get(name), capacity.get("requestPolicy"), whole)
        if amount is None or amount > whole:
            return None
        taken[name] = amount
    return taken


def covers(capacities: Mapping[str, JSON], requests: Mapping[str, str]) -> bool:
    """Whether a device that is given as a whole is large enough."""
    return all(
        name in capacities and Quantity.parse(capacities[name]["value"]) >= Quantity.parse(amount)
        for name, amount in requests.items()
    )


def fits(capacities: Mapping[str, JSON], used: Amounts, wanted: Amounts) -> bool:
    """Whether what is used and what is wanted stay within every capacity together."""
    zero = Quantity(Fraction(0))
    return all(
        used.get(name, zero) + amount <= Quantity.parse(capacities[name]["value"]) for name, amount in wanted.items()
    )


def _rounded(asked: str | None, policy: JSON | None, whole: Quantity) -> Quantity | None:
    if policy is None or "default" not in policy:
        return Quantity.parse(asked) if asked is not None else whole
    wanted = Quantity.parse(asked if asked is not None else policy["default"])
    if "validValues" in policy:
        larger = [value for value in map(Quantity.parse, policy["validValues"]) if value >= wanted]
        return min(larger, default=None)
    if "validRange" not in policy:
        return wanted
    span = policy["validRange"]
    low = Quantity.parse(span["min"])
    if wanted <= low:
        return low
    if "step" in span:
        step = Quantity.parse(span["step"]).value
        steps = -((low.value - wanted.value) // step)
        wanted = Quantity(low.value + steps * step, low.format)
    if "max" in span and wanted > Quantity.parse(span["max"]):
        return None
    return wanted
