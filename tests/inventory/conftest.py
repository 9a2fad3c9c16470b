"""Fixtures of real hardware: a udevd of our own, its absence, loop devices."""

from __future__ import annotations

from tests.support.udevd import loop, no_udevd, udevd

__all__ = ["loop", "no_udevd", "udevd"]
