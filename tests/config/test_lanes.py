"""Lanes: numbers, percentages, the rest, floors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config.lanes import NOTHING, REST, Lanes, LaneShare, Selection, parse_share
from drabridge.config.problems import Problems
from tests.support.configurations import loaded


@pytest.mark.parametrize(
    ("lanes", "total", "expected"),
    [
        ("{}", 8, (8, 0)),
        ("{dra: 2}", 8, (6, 2)),
        ("{legacy: 2}", 8, (2, 6)),
        ("{legacy: 6, dra: 2}", 8, (6, 2)),
        ("{legacy: 6, dra: 2}", 9, (7, 2)),  # nobody claims the ninth: legacy
        ("{legacy: 6, dra: 2}", 7, (6, 1)),  # too few: legacy first, its users are already there
        ("{legacy: 6, dra: 2}", 3, (3, 0)),
        ("{legacy: 6, dra: 2, minDra: 1}", 3, (2, 1)),
        ("{legacy: 6, dra: 2, minDra: 2, minLegacy: 2}", 3, (2, 1)),
        ("{legacy: '*', dra: 50%}", 8, (4, 4)),
        ("{legacy: '*', dra: 50%}", 1, (0, 1)),  # half a device is rounded up
        ("{legacy: 50%, dra: 50%}", 3, (2, 1)),
        ("{legacy: 0%, dra: '*'}", 4, (0, 4)),
        ("{legacy: 0}", 4, (0, 4)),
        ("{dra: '*', legacy: 1}", 0, (0, 0)),
        ("{legacy: '*'}", 4, (4, 0)),  # what the other leaves is nothing
        ("{dra: '*'}", 4, (0, 4)),
        ("{dra: {match: {sysname: x}}}", 4, (4, 0)),
    ],
)
def test_targets(lanes: str, total: int, expected: tuple[int, int]) -> None:
    assert loaded(f"lanes: {lanes}").resources[0].lanes.targets(total) == expected


SHARES = st.one_of(
    st.none(), st.just(REST), st.integers(0, 20).map(lambda n: LaneShare(count=n)),
    st.integers(0, 100).map(lambda n: LaneShare(percent=n)),
)  # fmt: skip


@given(SHARES, SHARES, st.integers(0, 5), st.integers(0, 5), st.integers(0, 20))
def test_every_device_is_in_one_lane_and_floors_hold(
    legacy: LaneShare | None, dra: LaneShare | None, min_legacy: int, min_dra: int, total: int
) -> None:
    try:
        lanes = Lanes(legacy=legacy, dra=dra, min_legacy=min_legacy, min_dra=min_dra)
    except ValueError:
        return
    got_legacy, got_dra = lanes.targets(total)
    assert got_legacy + got_dra == total
    assert min(got_legacy, got_dra) >= 0
    assert got_legacy >= min(min_legacy, total)
    if total >= min_legacy + min_dra:
        assert got_dra >= min_dra


@pytest.mark.parametrize(
    ("value", "share"),
    [
        (6, LaneShare(count=6)),
        ("6", LaneShare(count=6)),
        ("50%", LaneShare(percent=50)),
        ("*", REST),
        (0, NOTHING),
        (" * ", REST),
    ],
)
def test_shares(value: object, share: LaneShare) -> None:
    assert parse_share(value) == share
    assert parse_share(str(share)) == share


@pytest.mark.parametrize("value", [-1, "-1", "101%", "1.5", "half", "", None, True, [], "٣", "1000000", 100_001, "5 %"])
def test_not_shares(value: object) -> None:
    with pytest.raises(Problems):
        parse_share(value)


def test_selection() -> None:
    lanes = loaded("lanes: {dra: {match: {attr: {serial: 0403}}}}").resources[0].lanes
    legacy, dra = lanes.resolved
    assert legacy == REST
    assert isinstance(dra, Selection)
    assert dra.match[0].attrs["serial"].matches("0403")
    assert lanes.uses_dra
