"""``make gpu`` with stand-ins: each step of a machine with a GPU, on the simulated node."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.gpu import pack
from tests.gpu.__main__ import main
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


def test_pieces_are_never_too_large_and_are_the_whole_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PIECE_BYTES", 20_000)
    content = {f"{size}.whl": b"x" * size for size in (200, 30_000, 12_000)}
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    pieces = pack._pieces(tmp_path, [tmp_path / name for name in content])
    sizes = [(piece / pack.PART).stat().st_size for piece in pieces]
    assert len(sizes) == 3
    assert max(sizes) <= 20_000
    whole = io.BytesIO(b"".join((piece / pack.PART).read_bytes() for piece in pieces))
    with tarfile.open(fileobj=whole) as archive:
        assert {one.name: archive.extractfile(one).read() for one in archive} == content  # type: ignore[union-attr]


def test_a_packed_program_runs_with_the_libraries_that_the_machine_lacks(tmp_path: Path) -> None:
    pack._tool(tmp_path, "ip", Path(shutil.which("ip") or ""))
    assert "libelf" in " ".join(one.name for one in (tmp_path / "lib").iterdir())
    done = subprocess.run([tmp_path / "ip", "-Version"], capture_output=True, text=True, check=True, env={})
    assert "iproute2" in done.stdout


def test_a_machine_that_has_no_package_yet_can_unpack_them() -> None:
    words = [sys.executable, "-S", "-c", "import tests.gpu.__main__, tests.gpu.pack"]
    subprocess.run(words, cwd=ROOT, env={}, check=True)
