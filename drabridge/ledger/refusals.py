"""Word a refusal: who holds the device, since when, and what a person can do about it."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from drabridge.ledger.effects import Refusal, RefusalCode, Side
from drabridge.ledger.entries import DRA_OWNERS, ClaimHold, ClaimPhase, Entry, Hold, Lane, Owner

_DAY_SECONDS = 86_400.0
_OFFERED_TO = {
    Lane.LEGACY: "is offered to pods with resource limits, not to claims",
    Lane.DRA: "is offered to claims, not to pods with resource limits",
    Lane.SHARED: "is offered to both sides and needs a confirmed lease",
    Lane.LEGACY_TO_DRA: "is being moved from the legacy lane to the dra lane",
    Lane.DRA_TO_LEGACY: "is being moved from the dra lane to the legacy lane",
}
# A pod whose Allocate failed is not retried by kubelet; a claim keeps the devices that it was given.
_OTHER_DEVICE_HINT = {
    Side.LEGACY: "the pod that replaces this one gets another device",
    Side.DRA: "delete the pod, and the claim unless it is of a template, for another device",
}


def _time(then: float, now: float) -> str:
    """``14:02 UTC``, with the date in front if ``then`` is a day or longer ago."""
    moment = datetime.fromtimestamp(then, UTC)
    return moment.strftime("%H:%M UTC" if 0 <= now - then < _DAY_SECONDS else "%Y-%m-%d %H:%M UTC")


def _time_with_seconds(then: float) -> str:
    """``14:02:05 UTC``: for times that matter for less than an hour."""
    return datetime.fromtimestamp(then, UTC).strftime("%H:%M:%S UTC")


def holder(entry: Entry, exclude_hold: Hold | None = None, exclude_claims: tuple[ClaimHold, ...] = ()) -> str:
    """Name who holds the device, without times; "" if nobody does, or only holders that are excluded."""
    names = []
    if entry.hold and exclude_hold is None:
        if entry.owner is Owner.QUARANTINE:
            names = ["an unknown holder"]
        else:
            names = [f"pod {pod}" for pod in entry.hold.pods] or ["a pod that kubelet has not shown yet"]
    excluded = {held.claim.uid for held in exclude_claims}
    names += [f"claim {held.claim}" for held in entry.holders if held.claim.uid not in excluded]
    return " and ".join(names)


def with_advice(refused: Refusal, side: Side) -> Refusal:
    """Return the refusal of a held device with what to do about it, which depends on the side that asked."""
    if refused.code not in (RefusalCode.CLAIM_HELD, RefusalCode.LEGACY_HELD, RefusalCode.CORDONED):
        return refused
    until = "it is in service again" if refused.code is RefusalCode.CORDONED else "it is released"
    wait = f"wait until {until}, or " if side is Side.DRA else ""
    return replace(refused, hint=f"{wait}{_OTHER_DEVICE_HINT[side]}{refused.hint and f'; {refused.hint}'}")


def held(entry: Entry, at: float) -> Refusal:
    """Refuse a device that has a holder."""
    name, since = entry.name, _time(entry.since, at)
    if entry.owner is Owner.QUARANTINE:
        message = f"{name} is in quarantine since {since}: the record of who holds it was lost"
        hint = (
            "it is offered again once kubelet and the API server show that nobody uses it; "
            f"'drabridge status' says what is missing, 'drabridge lanes release {name}' ends it by hand"
        )
        return Refusal(name, RefusalCode.QUARANTINE, message, hint)
    if entry.owner is Owner.CONFLICT:
        message = f"{name} is claimed by {holder(entry)} at once since {since}"
        hint = "stop one of the two; the device is offered again when only one is left"
        return Refusal(name, RefusalCode.CONFLICT, message, hint)
    if entry.owner in DRA_OWNERS:
        more = f" and {len(entry.holders) - 1} more" if len(entry.holders) > 1 else ""
        return exclusive(entry, entry.holders[0], at, more)
    assert entry.hold is not None
    message = f"{name} is held by {holder(entry)}, allocated {_time(entry.hold.allocated_at, at)}"
    return Refusal(name, RefusalCode.LEGACY_HELD, message)


def overlaps(entry: Entry, relative: Entry, at: float) -> Refusal:
    """Refuse a device whose hardware overlaps with a held one: a part of a held whole, or the other way round."""
    why = held(relative, at)
    message = f"{entry.name} shares its hardware with {relative.name}: {why.message}"
    return replace(why, device=entry.name, message=message)


def other_lane(entry: Entry, side: Side) -> Refusal:
    """Refuse a device that is free, but not for this side."""
    hint = _OTHER_DEVICE_HINT[side]
    if entry.lane in (Lane.LEGACY, Lane.DRA, Lane.SHARED):
        hint += f"; 'drabridge lanes set' gives the {Lane.LEGACY if side is Side.LEGACY else Lane.DRA} lane more"
    elif side is Side.DRA:
        hint = "kubelet tries again, and will find it moved"
    return Refusal(entry.name, RefusalCode.OTHER_LANE, f"{entry.name} {_OFFERED_TO[entry.lane]}", hint)


def not_present(entry: Entry) -> Refusal:
    """Refuse a device whose hardware is gone or faulty."""
    hint = "'drabridge devices' says what is wrong; delete the pod so that another device is chosen"
    return Refusal(entry.name, RefusalCode.NOT_PRESENT, f"{entry.name} is {entry.device.presence}", hint)


def cordoned(entry: Entry, by: Entry) -> Refusal:
    """Refuse a device that is out of service to somebody who does not have it; ``by``: itself, or a relative."""
    why = f"out of service: {by.device.cordoned}"
    message = f"{entry.name} {'is' if by.name == entry.name else f'shares its hardware with {by.name}, which is'} {why}"
    hint = f"'drabridge devices uncordon {by.name}' puts it back into service"
    return Refusal(entry.name, RefusalCode.CORDONED, message, hint)


def unknown(name: str) -> Refusal:
    """Refuse a device of a name that the ledger does not know."""
    hint = "'drabridge devices' lists the devices; delete the pod so that one of them is chosen"
    return Refusal(name, RefusalCode.UNKNOWN, f"there is no device {name} on this node", hint)


def overcommitted(entry: Entry, capacity: str, wanted: int, left: int) -> Refusal:
    """Refuse a share that is larger than what the other shares leave."""
    message = f"{entry.name} has {left} of {capacity} left and {wanted} is asked for"
    hint = "wait for another claim to end or ask for less"
    return Refusal(entry.name, RefusalCode.OVERCOMMITTED, message, hint)


def exclusive(entry: Entry, other: ClaimHold, at: float, more: str = "") -> Refusal:
    """Refuse a device that another claim holds and that cannot be shared with it."""
    how = "prepared" if other.phase is ClaimPhase.PREPARED else "allocated"
    left = "" if other.api_allocated else " and not unprepared since it was deallocated"
    if other.lingers:
        how, until = "unprepared", _time_with_seconds(other.lingers_until)
        left = f"; processes of its pod, which nobody saw end, may use it until {until}"
    message = f"{entry.name} is held by claim {other.claim}{more}, {how} {_time(other.since, at)}{left}"
    hint = left and f"if nothing uses it any more, 'drabridge lanes release {entry.name}' ends that"
    return Refusal(entry.name, RefusalCode.CLAIM_HELD, message, hint)


def pending(entry: Entry) -> Refusal:
    """Refuse a device that kubelet has not given up yet."""
    hint = "kubelet tries again; the scheduler should not have bound the pod before the lease was confirmed"
    return Refusal(entry.name, RefusalCode.PENDING, f"the lease of {entry.name} is not confirmed yet", hint)


def starting(name: str) -> Refusal:
    """Refuse a device before the agent has merged its ledger with kubelet's view."""
    message = f"the agent is starting and does not know yet who holds {name}"
    hint = "it takes a few seconds; if it stays so, the agent's log says what it waits for"
    return Refusal(name, RefusalCode.STARTING, message, hint)


def stale(name: str, what: str) -> Refusal:
    """Refuse an answer about an earlier state of the device."""
    return Refusal(name, RefusalCode.STALE, f"{name}: {what}", "ask again")


def no_lease(entry: Entry) -> Refusal:
    """Refuse a device of the shared lane to a claim for which no scheduler waits."""
    message = f"{entry.name} is offered to both sides, and the claim's allocation has no binding condition"
    hint = "let a scheduler that honours binding conditions allocate the claim anew, or use the dra lane"
    return Refusal(entry.name, RefusalCode.NO_LEASE, message, hint)


def denied(entry: Entry) -> Refusal:
    """Refuse a device to a claim that was denied the device's lease, and that is still allocated it."""
    hint = "the scheduler takes the allocation back and chooses another device"
    return Refusal(entry.name, RefusalCode.DENIED, f"the claim was denied the lease of {entry.name}", hint)


def in_use(entry: Entry, what: str) -> Refusal:
    """Refuse an operator's request that contradicts what is known."""
    return Refusal(entry.name, RefusalCode.IN_USE, f"{entry.name}: {what}", "stop its user first")
