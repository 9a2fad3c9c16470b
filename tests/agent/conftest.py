"""Fixtures of real hardware, shared with the inventory's tests: a udevd of our own, its absence, loop devices."""

from __future__ import annotations

from tests.inventory.conftest import loop, no_udevd, udevd

__all__ = ["loop", "no_udevd", "udevd"]
