"""Run the files of ``inside`` in one guest: each is a test here, whose output has theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.guest import Guest
from tests.lab.image import chosen_kernel

pytestmark = pytest.mark.lab

FILES = sorted(path.stem for path in (Path(__file__).parent / "inside").glob("test_*.py"))


@pytest.mark.parametrize("name", FILES)
def test_in_the_guest(shared_guest: Guest, name: str) -> None:
    if name == "test_network_functions" and "nic" not in shared_guest.devices:
        pytest.skip("this QEMU has no network card with virtual functions: 8.0 has")
    if name == "test_iommufd" and chosen_kernel() != "ubuntu":
        pytest.skip("Debian's kernel has no IOMMUFD: DRABRIDGE_LAB_KERNEL=ubuntu has")
    shared_guest.passes(f"{name}.py")
