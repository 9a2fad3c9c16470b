"""``--node`` and ``--all-nodes``: the same command in the agents' pods, by a kubectl that says what it was asked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.cli import main, pods

KUBECTL = """\
#!/bin/sh
echo "$*" >> "$0.asked"
case "$*" in
  *"get pods"*) cat "$0.pods";;
  *pod-b*) echo '{"words": "'"$*"'"}'; printf '\\033[31moh\\n' >&2; exit 3;;
  *) echo '{"words": "'"$*"'"}';;
esac
"""
ROOT = "/var/lib/k0s/kubelet"


def pod(
    name: str, node: str, *, phase: str = "Running", container: str = "agent", source: str = "hostPath"
) -> dict[str, Any]:
    volumes = [{"name": "dev", "hostPath": {"path": "/dev"}}, {"name": "plugin", source: {"path": ROOT}}]
    mounts = [{"name": "dev", "mountPath": "/dev"}, {"name": "plugin", "mountPath": f"{ROOT}/plugins/x.example.com"}]
    return {
        "metadata": {"name": name, "namespace": "drabridge"},
        "spec": {"nodeName": node, "containers": [{"name": container, "volumeMounts": mounts}], "volumes": volumes},
        "status": {"phase": phase},
    }


PODS = (
    pod("pod-b", "node-b"),
    pod("pod-a", "node-a"),
    pod("a-tenants", "node-a", source="emptyDir"),
    pod("ended", "node-c", phase="Succeeded"),
    pod("coordinator", "node-c", container="coordinator"),
)
Asked = Callable[[], list[str]]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A kubectl in the PATH; what it was asked to run in pods."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    (tmp_path / "kubectl.pods").write_text(json.dumps({"items": PODS}))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return lambda: [line for line in (tmp_path / "kubectl.asked").read_text().splitlines() if "get pods" not in line]


@pytest.mark.parametrize(
    ("words", "inside"),
    [
        (["status", "--node", "node-a"], f"drabridge status --socket {ROOT}/plugins/x.example.com/control.sock"),
        (["status", "--node=node-a", "--socket", "/x"], "drabridge status --socket /x"),
        (["--node", "node-a"], ""),
        (
            ["devices", "--node", "node-a", "-o", "wide"],
            f"drabridge devices -o wide --socket {ROOT}/plugins/x.example.com/control.sock",
        ),
        (
            ["lanes", "--node", "node-a", "set", "a.com/b", "legacy=0", "dra=50%"],
            f"drabridge lanes set a.com/b legacy=0 dra=50% --socket {ROOT}/plugins/x.example.com/control.sock",
        ),
    ],
)
def test_the_command_runs_in_the_pod_without_the_words_that_chose_it(
    words: list[str], inside: str, asked: Asked
) -> None:
    if not inside:
        with pytest.raises(SystemExit):  # the option belongs to a command
            main(words)
        return
    assert main(words) == 0
    assert asked() == [f"exec -n drabridge pod-a -c agent -- {inside}"]


def test_kubectls_own_options_are_handed_to_it(asked: Asked) -> None:
    assert main(["status", "--node", "node-a", "--context", "desk", "--kubeconfig", "/k"]) == 0
    (line,) = asked()
    assert line.startswith("--kubeconfig=/k --context=desk exec -n drabridge pod-a ")
    assert "desk" not in line.partition(" -- ")[2]


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_every_agent_answers_and_the_worst_exit_status_counts(
    output: str, read: Callable[[str], Any], asked: Asked, capsys: Output
) -> None:
    assert main(["status", "--all-nodes", "-o", output]) == 3
    out, err = capsys.readouterr()
    assert [*read(out)] == ["node-a", "node-b"]
    assert "drabridge status -o" in read(out)["node-a"]["words"]
    assert err == "node-b: \\x1b[31moh\n", "what a pod says does nothing to the terminal"
    assert len(asked()) == 2


@pytest.mark.parametrize("answer", ["exec yes", "exec yes >&2", "exec sleep 100", "echo '{['"])
def test_a_pod_that_answers_without_end_or_sense_hides_no_other(
    answer: str, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """Who has taken over a node has its agent's pod, too, and an administrator asks all of them."""
    monkeypatch.setattr(pods, "ANSWER_SECONDS", 1.0 if "sleep" in answer else 60.0)
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.replace("*pod-b*)", f"*pod-b*) {answer};;\n  *never*)"))
    assert main(["status", "--all-nodes", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    assert [*json.loads(out)] == ["node-a"]
    assert err.startswith("node-b: ")
    assert len(err) < 100


def test_tables_of_several_nodes_have_headings(asked: Asked, capsys: Output) -> None:
    assert main(["devices", "--node", "node-b", "--node", "node-a"]) == 3
    out = capsys.readouterr().out
    assert out.index("node-a:\n") < out.index("pod-a") < out.index("node-b:\n") < out.index("pod-b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "--node", "node-z"], "no agent runs on a node node-z. Agents run on node-a, node-b"),
        (["status", "--node", "node-c"], "no agent runs on a node node-c"),
        (["status", "--all-nodes", "--watch"], "--watch shows one agent"),
    ],
)
def test_what_cannot_be_asked_is_refused(words: list[str], said: str, asked: Asked, capsys: Output) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_without_kubectl(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["status", "--all-nodes"]) == 1
    assert "there is no kubectl in the PATH" in capsys.readouterr().err
