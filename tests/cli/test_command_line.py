"""The command line as a whole: help, exit codes, tables, and which libraries a command imports."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from drabridge.cli import COMMANDS, main, version
from drabridge.cli.output import cell, show, table
from tests.support.waiting import HANG_SECONDS


def test_version_names_its_libraries_and_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "-o", "json"]) == 0
    rows = {row["name"]: row["version"] for row in json.loads(capsys.readouterr().out)}
    assert {"drabridge", "python", "grpcio", "protobuf", "kernel"} <= rows.keys()


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["version", "--nonsense"], ["version", "-o", "xml"]])
def test_bad_usage_is_2_and_points_to_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert "--help" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "example" in out
    assert f"drabridge {command}" in out


def test_help_of_the_whole_imports_nothing_heavy() -> None:
    code = "import sys; from drabridge.cli import build_parser; build_parser(None); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=5 * HANG_SECONDS, check=True
    )
    assert not {"grpc", "msgspec", "pyudev", "kubernetes", "prometheus_client", "yaml"} & set(done.stdout.split())


ROWS = [{"device": "gpu-0", "pods": ["a/b", "c/d"], "held": True, "note": None}]


def test_a_terminal_that_is_not_utf_8_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="iso-8859-1"))
    monkeypatch.setattr(version, "run", lambda _: print("a…z"))
    main(["version"])
    assert out.getvalue() == b"a?z\n"


def test_cells_show_lists_and_missing_values_on_one_line() -> None:
    assert table(ROWS, ("device", "pods", "held", "note")).splitlines() == [
        "DEVICE  PODS     HELD  NOTE",
        "gpu-0   a/b,c/d  yes   -",
    ]
    assert cell("evil\x1b[2Jname\n") == r"evil\x1b[2Jname\n"


def test_rows_are_shown_as_json_yaml_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, "json", columns=("device",))
    assert json.loads(capsys.readouterr().out) == ROWS
    show(ROWS, "yaml", columns=("device",))
    assert "device: gpu-0" in capsys.readouterr().out
    show(ROWS, "wide", columns=("device",), wide=("held",))
    assert "HELD" in capsys.readouterr().out
    show([], "table", columns=("device",), empty="no devices")
    assert capsys.readouterr() == ("", "no devices\n")
