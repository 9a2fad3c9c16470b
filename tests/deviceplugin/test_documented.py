"""The plugin in the library's README and page is short, and serves a kubelet as it stands there."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.deviceplugin.small_kubelet import MiniKubelet
from tests.support.waiting import HANG_SECONDS, until

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/deviceplugin.md", "deviceplugin/README.md")
KVM = "example.com/kvm"


def program(page: str) -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def test_both_show_the_same_plugin_in_25_lines() -> None:
    assert program(PAGES[0]) == program(PAGES[1])
    assert len([line for line in program(PAGES[0]).splitlines() if line]) <= 25


@pytest.mark.parametrize("there", [True, False])
async def test_it_offers_the_node_where_the_machine_has_it(
    kubelet: MiniKubelet, directory: Path, tmp_path: Path, there: bool
) -> None:
    """A reader who copies it gets a node that works, and none where there is no KVM."""
    node = tmp_path / "kvm"
    if there:
        node.touch()
    mine = program(PAGES[0]).replace('"/dev/kvm"', repr(str(node)))
    mine = mine.replace("/var/lib/kubelet/device-plugins", str(directory))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", mine), env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        await until(lambda: KVM in kubelet.clients and bool(kubelet.client(KVM).lists), 3 * HANG_SECONDS)
        assert len(kubelet.health(KVM)) == (100 if there else 0)
        if there:
            answer = await kubelet.allocate(["kvm-7"], resource=KVM)
            (device,) = answer.container_responses[0].devices
            assert (device.host_path, device.container_path, device.permissions) == (str(node), str(node), "rw")
    finally:
        process.kill()
        await process.wait()
