"""A real agent has AMD's and Intel's GPUs, from recorded trees: names, ids, attributes, partitions, health."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent import umockdev_gpus
from tests.agent.umockdev_examples import EXAMPLES
from tests.support.umockdev import needs_umockdev, run_under_umockdev, tree

pytestmark = needs_umockdev


@pytest.mark.parametrize("case", sorted(umockdev_gpus.CASES))
def test_gpus(case: str) -> None:
    run_under_umockdev("tests.agent.umockdev_gpus", case)


def on_machine(file: Path, *command: str) -> str:
    """The output of a command of drabridge on a machine that a file describes."""
    words = ["umockdev-run", "--device", str(file), "--", sys.executable, "-m", "drabridge", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, check=True).stdout


@pytest.mark.parametrize(
    ("machine", "example"), [("amd-mi308x-cpx", "amd-gpu-partitions"), ("intel-flex170-b60", "intel-gpu")]
)
def test_a_record_of_gpus_has_all_that_makes_them_devices(machine: str, example: str, tmp_path: Path) -> None:
    """And no unique id of AMD's, which the compute driver writes otherwise than sysfs."""
    config = str(EXAMPLES / f"{example}.yaml")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(tree(machine))
    second.write_text(on_machine(first, "record", "-c", config))
    before, after = (json.loads(on_machine(file, "devices", "-c", config, "-o", "json")) for file in (first, second))
    assert [row["id"] for row in before] == [row["id"] for row in after]
    assert {row["presence"] for row in after} == {"present"}
    unique = {row["attributes"].get("deviceID", "none") for row in before}
    assert not [text for text in unique if text in second.read_text()]
    assert len({row["attributes"].get("deviceID", "none") for row in after}) == len(unique)
