"""Builds are used whole or not at all. A script stands in for Go; the real one builds the nodes of ``make cluster``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node import build
from tests.node.errors import NodeError
from tests.node.releases import DEFAULT, HERE, release, releases
from tests.support.waiting import HANG_SECONDS

ROOT = HERE.parents[1]
GO = """\
#!/bin/sh
echo "$@" >>{root}/said
echo example.com/first/package
{more}
for word; do [ "$before" = -o ] && target=$word; before=$word; done
case $target in
*/) for name in server test-driver sample-device-plugin containerd ctr; do echo program >"$target$name"; done;;
*) echo program >"$target";;
esac
"""


class Place:
    """A machine with another Go, and an empty cache."""

    def __init__(self, root: Path, more: str = "") -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.go(more)

    def go(self, more: str) -> None:
        (self.bin / "go").write_text(GO.format(root=self.root, more=more))
        (self.bin / "go").chmod(0o755)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(self.root / "cache")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.node", *words],
            cwd=ROOT,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str]:
        with self.start(*words) as process:
            text, _ = process.communicate(timeout=HANG_SECONDS)
            return process.returncode, text

    def said(self) -> list[str]:
        path = self.root / "said"
        return path.read_text().splitlines() if path.exists() else []

    def builds(self) -> list[str]:
        return sorted(path.name for path in (self.root / "cache/drabridge/node").glob("*") if path.is_dir())


def test_a_release_is_built_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    code, text = place.run("build")
    assert code == 0, text
    folders = [Path(line) for line in text.splitlines() if line.startswith(str(tmp_path))]
    assert [path.name.rpartition("-")[0] for path in folders] == [
        f"kubernetes-{release().version}",
        "etcd",
        "containerd",
    ]
    for name in ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "dra-test-driver"):
        assert (folders[0] / name).read_text() == "program\n", name
    assert (folders[1] / "etcd").exists()
    before = place.said()
    assert place.run("build")[0] == 0
    assert place.said() == before, "the second time nothing is built"


def test_a_build_that_fails_shows_the_end_of_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path, "echo 'undefined: kubelet.New'; exit 1")
    code, text = place.run("build")
    assert code == 1
    assert f"kubernetes-{release().version} cannot be built; the end of {tmp_path}/cache/drabridge/node/" in text
    assert text.strip().endswith("undefined: kubelet.New")
    assert "Traceback" not in text
    assert place.builds() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_was_killed_is_begun_again(tmp_path: Path, number: signal.Signals) -> None:
    place = Place(tmp_path, f"touch {tmp_path}/begun; sleep 1000")
    with place.start("build") as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(HANG_SECONDS)
        subprocess.run(["pkill", "-KILL", "-f", str(place.bin / "go")], check=False)
    place.go("")
    code, text = place.run("build")
    assert code == 0, text
    assert [name.rpartition("-")[0] for name in place.builds()] == [
        "containerd",
        "etcd",
        f"kubernetes-{release().version}",
    ]


def test_without_go_one_sentence_says_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NodeError, match=r"Go is not installed.*`make test` needs none"):
        build.built(release())
    with pytest.raises(NodeError, match="Go is not installed"):
        build.pin("1.36.3")


def test_a_change_of_what_a_build_is_made_of_makes_another(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum", "main.go"):
        (tmp_path / name).write_text("")
    keys = set()
    for name in ("go.mod", "go.sum", "main.go"):
        keys.add(build.Module("x", tmp_path, (tmp_path / "main.go",)).key())
        (tmp_path / name).write_text("more")
    keys.add(build.Module("x", tmp_path, (tmp_path / "main.go",)).key())
    assert len(keys) == 4


def test_the_promised_releases_are_pinned_with_checksums() -> None:
    known = releases()
    assert [one.name for one in known] == ["1.34", "1.35", "1.36", "1.37"]
    assert DEFAULT in [one.name for one in known]
    for one in known:
        staged = "v0." + one.version.removeprefix("1.")
        text = (one.folder / "go.mod").read_text()
        assert f"k8s.io/api => k8s.io/api {staged}" in text, "the staging modules are of the same release"
        assert f"k8s.io/kubernetes v{one.version} h1:" in (one.folder / "go.sum").read_text()


@pytest.mark.parametrize("name", ["1.33", "1.36.99", "latest", ""])
def test_an_unknown_release_is_answered_by_the_known_ones(name: str) -> None:
    with pytest.raises(NodeError, match=r"Known releases: 1\.34 \(1\.34\.\d+\), 1\.35"):
        release(name)
