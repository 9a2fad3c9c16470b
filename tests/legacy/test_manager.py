"""Which ids kubelet is known to have: only those may be missed in its answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deviceplugin import ListedDevice
from deviceplugin.model import ListedHealth
from drabridge.legacy.manager import LegacyManager

IDS = (ListedDevice("a", ListedHealth.HEALTHY), ListedDevice("b", ListedHealth.UNHEALTHY))
TAKEN = {"registered": True, "sent_version": 7, "left_out": 0}


@pytest.mark.parametrize(
    ("state", "known"),
    [
        ({}, {"r": {"a"}}),
        ({"registered": False}, {}),
        ({"sent_version": 6}, {}),
        (
            {"left_out": 1},
            {},
        ),  # of a list that was cut kubelet lacks ids for ever
    ],
)
def test_ids_are_known_of_a_whole_list_that_kubelet_has(state: dict[str, Any], known: dict[str, set[str]]) -> None:
    current = SimpleNamespace(value=IDS, version=7)
    served = SimpleNamespace(
        plugin=SimpleNamespace(devices=lambda: SimpleNamespace(current=current)),
        server=SimpleNamespace(state=SimpleNamespace(**(TAKEN | state))),
    )
    manager: Any = SimpleNamespace(_served={"r": served})
    assert LegacyManager.healthy_ids(manager) == known
