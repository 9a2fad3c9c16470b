"""``make gpu`` with stand-ins: each step of a machine with a GPU, on the simulated node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import pack
from tests.gpu.__main__ import main
from tests.node.errors import NodeError
from tests.support.nvml import needs_compiler
from tests.support.umockdev import ROOT, needs_umockdev, run_under_umockdev


@pytest.mark.deep
@pytest.mark.umockdev
@needs_umockdev[1]
@needs_compiler
def test_every_step_sees_what_is_expected(tmp_path: Path) -> None:
    results = tmp_path / "gpu.json"
    said = run_under_umockdev("tests.gpu", "run", "--simulated", "--json", str(results))
    steps = json.loads(results.read_text())["steps"]
    assert [one["step"] for one in steps if one["outcome"] != "ok"] == [], said


def test_without_a_driver_nothing_is_started_and_the_error_says_what_can_be_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.gpu.real.DRIVER_FILE", tmp_path / "version")
    assert main(["run"]) == 2
    assert "--stand-in" in capsys.readouterr().err


def test_a_piece_is_never_too_large_for_its_transfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PIECE_BYTES", 100)
    monkeypatch.setattr(pack, "SPARE_BYTES", 10)
    archives = [tmp_path / f"{size}.tar.xz" for size in (20, 80, 30, 60)]
    for one in archives:
        one.write_bytes(b"x" * int(one.name.partition(".")[0]))
    pieces = pack._pieces(tmp_path, archives)
    assert [sorted(one.name for one in piece.iterdir()) for piece in pieces] == [
        ["80.tar.xz"],
        ["30.tar.xz", "60.tar.xz"],
        ["20.tar.xz"],
    ]
    large = tmp_path / "large.tar.xz"
    large.write_bytes(b"x" * 91)
    with pytest.raises(NodeError, match=r"large\.tar\.xz has"):
        pack._pieces(tmp_path, [large])


def test_a_packed_program_runs_with_the_libraries_that_the_machine_lacks(tmp_path: Path) -> None:
    pack._tool(tmp_path, "ip", Path(shutil.which("ip") or ""))
    assert "libelf" in " ".join(one.name for one in (tmp_path / "lib").iterdir())
    done = subprocess.run([tmp_path / "ip", "-Version"], capture_output=True, text=True, check=True, env={})
    assert "iproute2" in done.stdout


def test_a_machine_that_has_no_package_yet_can_unpack_them() -> None:
    words = [sys.executable, "-S", "-c", "import tests.gpu.__main__, tests.gpu.pack"]
    subprocess.run(words, cwd=ROOT, env={}, check=True)
