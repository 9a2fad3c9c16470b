"""``kubectl drabridge``: kubectl finds the command in the PATH and hands everything on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kubectl


def kubectl(*words: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(["kubectl", *words], env=env, capture_output=True, text=True, check=False, timeout=60)


def test_every_command_of_migrate_is_there() -> None:
    answer = kubectl("drabridge", "migrate", "report", "--rbac")
    assert answer.returncode == 0, answer.stderr
    assert "drabridge-migrate-report" in answer.stdout


def test_the_exit_status_is_handed_on() -> None:
    answer = kubectl("drabridge", "migrate", "switch", "team-a")
    assert answer.returncode == 2
    assert "belong together" in answer.stderr


def test_the_help_says_how_it_was_called() -> None:
    answer = kubectl("drabridge", "status", "--help")
    assert answer.stdout.startswith("usage: kubectl drabridge status ")
    assert "\n  kubectl drabridge status --watch\n" in answer.stdout
    assert kubectl("drabridge", "nothing").stderr.startswith("kubectl drabridge: ")
