"""What counts as a vendor's software that runs: by sockets, and whether somebody listens on them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drabridge.coexistence.vendor_software import VendorSoftware, is_vendors
from drabridge.system.paths import Paths
from tests.support.waiting import short_directory

NVIDIA = "gpu.nvidia.com"
UID = "0123abcd-0123-abcd-0123-0123456789ab"
PLUGIN, REGISTRATION = "device-plugins/nvidia-gpu.sock", f"plugins_registry/{NVIDIA}-reg.sock"


class Node:
    """Kubelet's directories, and whether this agent serves claims."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state: Any = None
        self._listening: list[socket.socket] = []
        for name in ("device-plugins", "plugins_registry"):
            (root / name).mkdir()

    def listen(self, name: str) -> socket.socket:
        here = socket.socket(socket.AF_UNIX)
        here.bind(str(self.root / name))
        here.listen()
        self._listening.append(here)
        return here

    def software(self, driver: str = NVIDIA) -> VendorSoftware:
        claims: Any = SimpleNamespace()
        one = VendorSoftware(Paths.of(driver, kubelet=self.root), driver, claims)
        claims.state = self.state
        return one

    def close(self) -> None:
        for one in self._listening:
            one.close()


@pytest.fixture
def node() -> Iterator[Node]:
    with short_directory() as root:
        node = Node(root)
        yield node
        node.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (PLUGIN, "NVIDIA's device plugin ({})"),
        (REGISTRATION, f"NVIDIA's DRA driver {NVIDIA} ({{}})"),
        (f"plugins_registry/{NVIDIA}-{UID}-reg.sock", f"NVIDIA's DRA driver {NVIDIA} ({{}})"),
        (f"plugins_registry/{NVIDIA}-0123-reg.sock", ""),  # a standby of ours
        (f"plugins_registry/{NVIDIA}munity-reg.sock", ""),
        (f"plugins_registry/{NVIDIA}-{UID}-reg.sock-reg.sock", ""),
        ("device-plugins/drabridge-nvidia.sock", ""),
    ],
)
async def test_a_socket_of_the_vendor_s_names_on_which_somebody_listens_is_named(
    node: Node, name: str, words: str
) -> None:
    software, path = node.software(), node.root / name
    await software.look()
    assert software.found == ""
    listening = node.listen(name)
    await software.look()
    if not words:
        assert software.found == ""
        return
    assert software.found.startswith(f"{words.format(path)} runs on this node, and only one may serve it")
    listening.close()
    await software.look()
    assert software.found == "", "it has left a dead socket"
    path.unlink()
    path.write_text("no socket")
    await software.look()
    assert software.found == ""


async def test_both_kinds_are_named_in_one_sentence(node: Node) -> None:
    for name in (PLUGIN, REGISTRATION):
        node.listen(name)
    software = node.software()
    await software.look()
    assert f"{PLUGIN}) and NVIDIA's DRA driver {NVIDIA} (" in software.found


async def test_under_a_name_of_its_own_nobody_is_in_its_way(node: Node) -> None:
    node.listen(PLUGIN)
    node.listen("plugins_registry/own.example.com-reg.sock")
    software = node.software("own.example.com")
    await software.look()
    assert software.found == ""


@pytest.mark.parametrize(
    ("state", "name", "theirs"),
    [
        (SimpleNamespace(serving=True), REGISTRATION, False),
        (SimpleNamespace(serving=True), f"plugins_registry/{NVIDIA}-{UID}-reg.sock", True),
        (SimpleNamespace(serving=False), REGISTRATION, True),
        (None, REGISTRATION, True),
    ],
)
async def test_the_plain_name_is_its_own_while_it_serves_claims(
    node: Node, state: Any, name: str, theirs: bool
) -> None:
    node.state = state
    node.listen(name)
    software = node.software()
    await software.look()
    assert bool(software.found) is theirs


async def test_directories_that_are_not_there_have_no_software(node: Node) -> None:
    for name in ("device-plugins", "plugins_registry"):
        (node.root / name).rmdir()
    software = node.software()
    await software.look()
    assert software.found == ""


def test_a_file_that_may_be_the_vendor_s_is_left_when_ours_are_removed(node: Node) -> None:
    for name in ("checkpoint.json", "ledger.jsonl"):
        (node.root / name).write_text("")
    node.listen("dra.sock")
    node.listen("dead.sock").close()
    names = ("checkpoint.json", "ledger.jsonl", "dra.sock", "dead.sock", "not-there")
    assert [is_vendors(node.root / name) for name in names] == [True, False, True, False, False]
