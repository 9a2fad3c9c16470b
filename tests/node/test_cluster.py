"""What clusters of real programs promise. Marked ``cluster``: each test that needs one starts its own, and ends it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node import cluster as c
from tests.node.__main__ import main
from tests.node.cluster import Cluster, NodeSpec
from tests.node.errors import NodeError
from tests.node.machine import Network
from tests.node.releases import release


def test_without_root_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NodeError, match="Nodes need root"):
        c.check_host()


def test_a_folder_that_nodes_cannot_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c, "check_host", lambda: None)
    with pytest.raises(NodeError, match="a node has files of its own there"):
        Cluster.up(Path("/tmp/cluster"))


def test_the_places_that_are_refused_are_those_of_a_machine() -> None:
    text = (Path(c.__file__).parent / "boot.sh").read_text()
    (places,) = re.findall(r"^for place in (.*); do$", text, re.MULTILINE)
    assert places.split() == [*c.KEPT]


def test_all_missing_packages_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(c, "PACKAGES", {"no-such-program": "one", "/no/such/file": "two", "sh": "dash"})
    with pytest.raises(NodeError, match=r"apt-get install one two$"):
        c.check_host()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status"], "There is no cluster in "),
        (["up", "--nodes", "0"], "--nodes: 1 to 20"),
        (["up", "--gate", "DRAExtendedResource"], "write NAME=VALUE"),
        (["up", "--gate", "DRAExtendedResource=on"], "a feature gate is true or false"),
        (["up", "--release", "1.20"], "Known releases"),
        (["build", "1.20"], "Known releases"),
        (["pin", "1.36"], "write it as 1.36.3"),
    ],
)
def test_bad_words_are_answered_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.setenv("DRABRIDGE_TEST_CLUSTER", str(tmp_path))
    monkeypatch.setattr(c, "check_host", lambda: None)
    assert main(words) == 1
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "python -m tests.node up --release 1.37 --nodes 3" in capsys.readouterr().out


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two nodes beside that of the other tests."""
    if not os.environ.get("DRABRIDGE_TEST_CLUSTER"):
        pytest.skip("starts real nodes: make cluster")
    folder = Path("/var/tmp") / f"drabridge-{os.getpid()}"
    made = Cluster.up(folder, nodes=[NodeSpec("node-a", 0), NodeSpec("node-b", 0, labels={"example.com/b": "yes"})])
    try:
        yield made
    finally:
        Cluster.open(folder).clean()
        assert not folder.exists()
        assert not Path(f"/sys/class/net/{made.network.bridge}").exists()
        words = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert not [one for one in words if str(folder).encode() in one], "a frozen program is ended, too"


def node_info(cluster: Cluster, name: str) -> dict[str, str]:
    said = cluster.get(f"/api/v1/nodes/{name}")
    assert said
    info: dict[str, str] = json.loads(said)["status"]["nodeInfo"]
    return info


@pytest.mark.cluster
def test_nodes_differ_in_all_that_a_machine_has_of_its_own(two_nodes: Cluster) -> None:
    a, b = (node_info(two_nodes, name) for name in ("node-a", "node-b"))
    assert a["bootID"] != b["bootID"]
    assert a["kubeletVersion"] == b["kubeletVersion"] == f"v{release().version}"
    said = two_nodes.get("/api/v1/nodes?labelSelector=example.com/b")
    assert said
    assert [one["metadata"]["name"] for one in json.loads(said)["items"]] == ["node-b"]
    for place in ("/var/lib/kubelet", "/run", "/tmp", "/etc/cdi", "/var/log"):
        (two_nodes.node("node-a").path(place) / "mark").touch()
        assert not (two_nodes.node("node-b").path(place) / "mark").exists(), place
        assert not (Path(place) / "mark").exists(), place


@pytest.mark.cluster
def test_a_reboot_ends_all_processes_and_keeps_the_disk(two_nodes: Cluster) -> None:
    node, before = two_nodes.node("node-b"), node_info(two_nodes, "node-b")["bootID"]
    old = node.init()
    for place in ("/var/lib/kubelet", "/run"):
        (node.path(place) / "mark").touch()
    node.off()
    assert (node.disk("/var/lib/kubelet") / "mark").exists()
    two_nodes.reboot("node-b")
    two_nodes.wait_ready()
    assert node.init() != old
    assert not Path(f"/proc/{old}").exists()
    assert (node.path("/var/lib/kubelet") / "mark").exists()
    assert not (node.path("/run") / "mark").exists()

    def another() -> bool:
        return node_info(two_nodes, "node-b")["bootID"] != before

    two_nodes._wait("kubelet to tell the new boot id", 60, another, node, "kubelet")
    assert node.path("/run/boot_id").read_text().strip() == node_info(two_nodes, "node-b")["bootID"]


@pytest.mark.cluster
def test_a_cut_cable_parts_a_node_from_the_api_server_alone(two_nodes: Cluster) -> None:
    node, ask = two_nodes.node("node-b"), ["timeout", "2", "bash", "-c", f"</dev/tcp/{c.SERVICE}/443"]
    node.run(ask)
    node.cut()
    try:
        with pytest.raises(NodeError):
            node.run(ask)
        two_nodes.node("node-a").run(ask)
        assert node.pid("kubelet")
    finally:
        node.heal()
    two_nodes._wait("the cable to be there", 30, lambda: c._works(node, ask), node, "kubelet")


@pytest.mark.cluster
def test_a_disk_is_one_node_s_alone(two_nodes: Cluster) -> None:
    disk = two_nodes.add_disk("node-a")
    uevent = f"/sys/class/block/{disk}/uevent"
    two_nodes.node("node-a").run(["cat", uevent])
    with pytest.raises(NodeError, match="No such file"):
        two_nodes.node("node-b").run(["cat", uevent])


@pytest.mark.cluster
def test_programs_are_stopped_killed_frozen_and_started(two_nodes: Cluster) -> None:
    folder = str(two_nodes.folder)

    def say(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tests.node", *words],
            env={**os.environ, "DRABRIDGE_TEST_CLUSTER": folder},
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr

    first = two_nodes.node("node-a").pid("kubelet")
    say("kill", "kubelet", "--node", "node-a")
    assert two_nodes.node("node-a").pid("kubelet") is None
    assert "kubelet does not run on node-a." in say("kill", "kubelet", "--node", "node-a")
    assert say("start", "kubelet", "--node", "node-a") == ""
    assert two_nodes.node("node-a").pid("kubelet") not in (None, first)
    say("freeze", "kubelet", "--node", "node-a")
    stat = Path(f"/proc/{two_nodes.node('node-a').pid('kubelet')}/stat").read_text()
    assert stat.rpartition(")")[2].split()[0] == "T"
    say("thaw", "kubelet", "--node", "node-a")
    assert (
        Path(f"/proc/{two_nodes.node('node-a').pid('kubelet')}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    )
    say("freeze", "kubelet", "--node", "node-b")  # until the end
    say("stop", "scheduler")
    rows = json.loads(say("status", "-o", "json"))["machines"]
    assert rows[0]["programs"]["scheduler"] is None
    assert "scheduler off" in say("status")
    say("start", "scheduler")
    assert "There is no node 'node-x'. Nodes: node-a, node-b." in say("reboot", "node-x")
    assert "kubelet" in say("logs", "kubelet", "--lines", "5")


@pytest.mark.cluster
def test_a_cluster_that_cannot_begin_says_why_and_leaves_nothing_running(two_nodes: Cluster) -> None:
    folder = Path(f"{two_nodes.folder}-3")
    try:
        with pytest.raises(
            NodeError, match=r"(?s)apiserver ended for the API server.*unrecognized feature gate: NoSuch"
        ):
            Cluster.up(folder, gates={"NoSuch": True})
        made = Cluster.open(folder)
        assert not made.runs()
        assert not Path(f"/sys/class/net/{made.network.bridge}").exists()
    finally:
        Cluster.open(folder).clean()


@pytest.mark.cluster
def test_a_second_cluster_does_not_disturb_the_first(two_nodes: Cluster) -> None:
    other = Cluster.up(Path(f"{two_nodes.folder}-2"))
    try:
        assert other.network != two_nodes.network
        assert other.get("/api/v1/nodes/node-a") is None
        assert two_nodes.ready("node-a")
    finally:
        other.clean()
    assert two_nodes.ready("node-a")


def test_networks_of_clusters_do_not_meet() -> None:
    words = {part for n in range(50) for part in (Network(n).host, Network(n).address(0), Network(n).pods(1))}
    assert len(words) == 150
    assert all(len(Network(n).link(20)) <= 15 for n in range(50)), "names of interfaces (IFNAMSIZ)"
