"""A device that a lane's selection names keeps its lane while it is unplugged."""

from __future__ import annotations

import pytest

from tests.support.umockdev import needs_umockdev, run_under_umockdev

pytestmark = needs_umockdev


@pytest.mark.parametrize("lane", ["dra", "legacy"])
def test_a_device_selected_for_a_lane_keeps_it_while_it_flaps(lane: str) -> None:
    run_under_umockdev("tests.agent.umockdev_chosen", lane)
