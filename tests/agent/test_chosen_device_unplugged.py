"""Lanes by selection: what is chosen stays chosen while it is away."""

from __future__ import annotations

import pytest

from tests.agent import test_renamed_parts

pytestmark = test_renamed_parts.pytestmark


@pytest.mark.parametrize("lane", ["dra", "legacy"])
def test_a_chosen_device_that_flaps_keeps_its_lane(lane: str) -> None:
    test_renamed_parts.run("tests.agent.umockdev_chosen", lane)
