"""A resource name with an attribute in it: a resource begins with its first device, and lasts."""

from __future__ import annotations

from tests.support.umockdev import needs_umockdev, run_under_umockdev

pytestmark = needs_umockdev


def test_a_resource_begins_with_its_first_device() -> None:
    run_under_umockdev("tests.agent.umockdev_named")
