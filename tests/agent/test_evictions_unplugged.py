"""Pods whose device has left, or was exchanged, are evicted where the configuration says so; others stay."""

from __future__ import annotations

from tests.support.umockdev import needs_umockdev, run_under_umockdev

pytestmark = needs_umockdev


def test_who_lost_the_device_is_evicted_and_nobody_else() -> None:
    run_under_umockdev("tests.agent.umockdev_evictions")
