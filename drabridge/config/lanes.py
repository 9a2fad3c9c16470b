"""Lanes: how many of a resource's devices each API may offer while nobody holds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct

from drabridge.config.checker import check
from drabridge.config.declaration import Model, Parse
from drabridge.config.field_types import text_of
from drabridge.config.matcher import Match
from drabridge.config.problems import Problem, unmet

_PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)
COUNT_MAX = 100_000


class LaneShare(Struct, frozen=True):
    """A part of a resource's devices: a number, a percentage, or the rest. Exactly one of the three is meant."""

    count: int | None = None
    percent: int | None = None

    @property
    def rest(self) -> bool:
        """Whether this is ``*``: whatever the other lane leaves."""
        return self.count is None and self.percent is None

    def of(self, total: int) -> int | None:
        """Return the number of devices out of ``total``; None for the rest. Percentages are rounded half up."""
        if self.percent is not None:
            return (total * self.percent + 50) // 100
        return None if self.count is None else min(self.count, total)

    def to_data(self) -> int | str:
        """Return the share as the file writes it."""
        return self.count if self.count is not None else str(self)

    def __str__(self) -> str:
        return "*" if self.rest else f"{self.percent}%" if self.count is None else str(self.count)


REST = LaneShare()
NOTHING = LaneShare(count=0)


def parse_share(value: object) -> LaneShare:
    """Read ``6``, ``"6"``, ``"50%"`` or ``"*"``, from the file or the Node's annotation. Raises Problems."""
    if isinstance(value, LaneShare):
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 6:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= COUNT_MAX:
            raise unmet(f"a number from 0 to {COUNT_MAX}")
        return LaneShare(count=value)
    text = text_of(value, 'a number of devices, "50%" or "*"').strip()
    if text == "*":
        return REST
    if (found := _PERCENT.fullmatch(text)) and int(found[1]) <= 100:
        return LaneShare(percent=int(found[1]))
    raise unmet('a number of devices, a percentage from "0%" to "100%", or "*" for the rest')


class Selection(Model, frozen=True):
    """The devices of a lane, chosen by the operator instead of counted."""

    match: Annotated[Match, Meta(min_length=1)]
    """Which of the resource's devices, with the same keys as `match` of the resource."""


def _lane(value: Any) -> LaneShare | Selection:
    if isinstance(value, dict):
        return check(Selection, value)
    return value if isinstance(value, Selection) else parse_share(value)


_NUMBERS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 0, "maximum": COUNT_MAX},
    {"type": "string", "pattern": r"^(\*|\d{1,6}|(\d{1,2}|100)%)$"},
]
SharedLane = Annotated[LaneShare, Parse(parse_share, {"anyOf": _NUMBERS, "x-type": "number, percentage or *"})]
Lane = Annotated[
    LaneShare | Selection,
    Parse(
        _lane,
        {
            "anyOf": [*_NUMBERS, {"$ref": f"#/$defs/{Selection.__name__}"}],
            "x-type": "number, percentage, * or {match: ...}",
        },
    ),
]


def _beside(lane: LaneShare | Selection | None, other: LaneShare | Selection | None) -> LaneShare | Selection:
    """Return the lane; if it is left out, the rest, or nothing if the other lane has ``*``."""
    return lane if lane is not None else NOTHING if other == REST else REST


class Lanes(Model, frozen=True):
    """Where a free device may be offered. Devices that are held stay where they are until they are released."""

    legacy: Lane | None = None
    """Through the DevicePlugin API: a number, `"50%"`, `"*"` for the rest, or `{match: [...]}` for chosen devices."""
    dra: Lane | None = None
    """Through ResourceClaims, written in the same way. If neither lane is given, legacy has all devices; if one is
    given, the other has the rest."""
    shared: SharedLane | None = None
    """Through both, by a lease: a free device goes to the first who asks. A number, a percentage, or `"*"`; none when
    left out. Needs Kubernetes 1.36; without it these devices stay in the legacy lane."""
    min_legacy: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    """Never fewer than this many devices in the legacy lane, whatever an annotation or command asks for."""
    min_dra: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    """Never fewer than this many devices in the dra lane."""

    def _problems(self) -> Iterator[Problem]:
        legacy, dra = self.resolved
        if isinstance(legacy, Selection) and self.uses_leases:
            yield Problem("a number beside lanes.shared", "leave legacy out, or lanes.shared", ("legacy",))
        counts = [lane for lane in (legacy, dra, self.shared) if isinstance(lane, LaneShare)]
        if sum(lane.rest for lane in counts) > 1:
            yield Problem('"*" in one lane only', 'say how many the others get, for example legacy: "*", dra: 2')
        if sum(lane.percent or 0 for lane in counts) > 100:
            given = " and ".join(map(str, counts))
            yield Problem(f"at most 100% together, not {given}", "lower one, or use * for the rest")
        for name, lane, floor in (("legacy", legacy, self.min_legacy), ("dra", dra, self.min_dra)):
            left_out = self.shared == REST and (self.legacy if name == "legacy" else self.dra) is None
            if isinstance(lane, LaneShare) and lane.count is not None and lane.count < floor and not left_out:
                key = "minLegacy" if name == "legacy" else "minDra"
                yield Problem(f"at least {key} ({floor}) devices", f"raise lanes.{name} or lower {key}", (name,))

    @property
    def resolved(self) -> tuple[LaneShare | Selection, LaneShare | Selection]:
        """(legacy, dra) with the default filled in for a lane that is not given."""
        if self.shared == REST:
            return self.legacy or NOTHING, self.dra or NOTHING
        if self.legacy is None and self.dra is None:
            return REST, NOTHING
        return _beside(self.legacy, self.dra), _beside(self.dra, self.legacy)

    @property
    def uses_dra(self) -> bool:
        """Whether a device can ever be offered through ResourceClaims."""
        return self.resolved[1] not in (NOTHING, LaneShare(percent=0)) or self.min_dra > 0 or self.uses_leases

    @property
    def uses_leases(self) -> bool:
        """Whether a free device can be offered through both APIs."""
        return self.shared is not None and self.shared not in (NOTHING, LaneShare(percent=0))

    def targets(self, total: int) -> tuple[int, int]:
        """Return how many of ``total`` devices the lanes get: (legacy with shared, dra). The sum is ``total``.

        Floors come first, legacy before dra when there are too few for both. Then come the numbers, legacy first: its
        users are already there. Devices that neither number asks for go to legacy. Selections count as the rest: the
        caller resolves them, since only the caller knows the devices.
        """
        legacy, dra = (lane if isinstance(lane, LaneShare) else REST for lane in self.resolved)
        floor_legacy = min(self.min_legacy, total)
        floor_dra = min(self.min_dra, total - floor_legacy)
        wanted_legacy, wanted_dra = legacy.of(total), dra.of(total)
        if self.shared is not None and wanted_legacy is not None:
            both = self.shared.of(total)
            wanted_legacy = None if both is None else wanted_legacy + both
        if wanted_legacy is None:
            wanted_legacy = total - (wanted_dra or 0)
        if wanted_dra is None:
            wanted_dra = total - wanted_legacy
        got_dra = min(wanted_dra, total - min(wanted_legacy, total))
        got_dra = min(max(got_dra, floor_dra), total - floor_legacy)
        return total - got_dra, got_dra

    def shared_of(self, total: int) -> int:
        """Return how many of the first number of :meth:`targets` are shared: those beyond the legacy lane's number."""
        if self.shared is None:
            return 0
        both, legacy = self.targets(total)[0], self.resolved[0]
        kept = legacy.of(total) if isinstance(legacy, LaneShare) and self.shared.rest else 0
        wanted = self.shared.of(total)
        return max(0, min(both - max(kept or 0, self.min_legacy), both if wanted is None else wanted))
