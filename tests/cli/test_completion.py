"""Completion of commands and options, as bash and kubectl do it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from drabridge.cli import COMMANDS, main
from drabridge.cli.completion import for_kubectl

Output = pytest.CaptureFixture[str]
CASES = [
    ("st", {"status"}),
    ("", {*COMMANDS, "--version", "--help"}),
    ("status --no", {"--node"}),
    ("migrate re", {"report"}),
    ("migrate report --fail", {"--fail-on"}),
    ("lanes --node x se", {"set"}),
    ("check-config --js", {"--json-schema"}),
    ("status report", set()),
]


@pytest.mark.parametrize(("line", "found"), CASES)
def test_bash_completes(line: str, found: set[str], capsys: Output) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = ["drabridge", *line.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    script += f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _drabridge; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert (set(done.stdout.split()), done.stderr) == (found, "")


@pytest.mark.parametrize(("line", "found"), CASES)
def test_kubectl_is_told_what_may_follow(
    line: str, found: set[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-drabridge", *line.split(" ")])
    assert for_kubectl() == 0
    *words, directive = capsys.readouterr().out.split()
    assert (set(words), directive) == (found, ":4" if found else ":0")


def test_zsh_uses_the_same_script(capsys: Output) -> None:
    main(["completion", "zsh"])
    assert "bashcompinit\n_drabridge()" in capsys.readouterr().out
