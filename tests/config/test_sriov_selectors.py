"""What the configuration's page says of the SR-IOV plugin's selectors: each matches the functions that it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from drabridge.config import load
from drabridge.inventory.match import matches
from tests.support.configurations import document
from tests.support.udev_tree import pci

PAGE = Path(__file__).parents[2] / "docs/configuration.md"
SELECTORS = {
    '`vendors: ["15b3"]`, `devices: ["1018"]`': [("0000:3b:01.0", "ens1f0", n) for n in range(12)],
    '`drivers: ["vfio-pci"]`': [("0000:3b:01.0", "ens1f0", n) for n in range(12)],
    "`pciAddresses`": [("0000:3b:01.1", "ens1f0", 1)],
    '`rootDevices: ["0000:3b:00.0"]`': [("0000:3b:01.0", "ens1f0", n) for n in range(12)],
    '`pfNames: ["ens1f0"]`': [("0000:3b:01.0", "ens1f0", n) for n in range(12)],
    '`pfNames: ["ens1f0#0-3,6"]`': [("0000:3b:01.0", "ens1f0", n) for n in (0, 1, 2, 3, 6)],
}


def row(selector: str) -> str:
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {selector} |")]
    return line


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_selector_matches_what_it_should(selector: str) -> None:
    text = re.findall(r"`([^`]*)`", row(selector).removeprefix(f"| {selector} |"))[0]
    (match,) = load(document(f"match: [{{subsystem: pci, {text}}}]")).resources[0].match
    functions = [
        (address, name, number)
        for address, name in (("0000:3b:01.0", "ens1f0"), ("0000:3b:01.1", "ens1f0"), ("0000:5e:01.0", "ens2f0"))
        for number in range(12)
    ]
    found = []
    for address, name, number in functions:
        ours = address.startswith("0000:3b")
        udev = pci(
            address,
            "0x15b3" if ours else "0x8086",
            "0x1018",
            "0x020000",
            "vfio-pci" if ours else "ice",
            physfn="0000:3b:00.0" if ours else "0000:5e:00.0",
        )
        if matches(replace(udev, properties={"SRIOV_PF_NAME": name, "SRIOV_VF": str(number)}), (match,)):
            found.append((address, name, number))
    assert set(SELECTORS[selector]) <= set(found)
    assert all(name == "ens1f0" for _, name, _ in found)
    if "#" in selector:
        assert {number for _, _, number in found} == {0, 1, 2, 3, 6}
    if selector == "`pciAddresses`":
        assert {address for address, _, _ in found} == {"0000:3b:01.0", "0000:3b:01.1"}


def test_the_rest_of_the_table_loads() -> None:
    for selector in ("`isRdma: true`", "`needVhostNet: true`"):
        keys = re.findall(r"`([^`]*)`", row(selector).removeprefix(f"| {selector} |"))
        text = "\n".join(key.replace("[..., ", "[") for key in keys)
        assert yaml.safe_load(text)
        assert load(document(f"match: [{{subsystem: pci}}]\n{text}"))
