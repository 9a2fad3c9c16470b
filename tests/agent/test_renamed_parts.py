"""A whole device and its parts are renamed while a pod has one of them: nobody gets an overlapping one."""

from __future__ import annotations

import pytest

from tests.support.umockdev import needs_umockdev, run_under_umockdev

CASES = [
    ("parent", "part", "restart"),
    ("link:physfn", "whole", "reload"),
]


OVERLAPS = [
    ("group-child", "reload"),
    ("child-group", "restart"),
    ("parent-child", "restart"),
    ("child-parent", "reload"),
    ("group-child", "restart, claims"),
    ("side-by-side", ""),
]
pytestmark = needs_umockdev


@pytest.mark.parametrize(("by", "held", "how"), CASES)
def test_a_part_and_its_whole_are_never_held_at_once(by: str, held: str, how: str) -> None:
    run_under_umockdev("tests.agent.umockdev_parts", by, held, how)


@pytest.mark.parametrize(("case", "how"), OVERLAPS)
def test_a_device_and_its_companion_are_never_held_at_once(case: str, how: str) -> None:
    run_under_umockdev("tests.agent.umockdev_overlap", case, how)
