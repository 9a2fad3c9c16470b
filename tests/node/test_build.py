"""What a build of real programs promises before it begins; `make cluster` shows the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.sim.releases import RELEASES
from tests.node import build
from tests.node.errors import NodeError
from tests.node.releases import DEFAULT, release, releases


def test_without_go_one_sentence_says_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NodeError, match=r"Go is not installed.*`make test` needs none"):
        build.built(release())
    with pytest.raises(NodeError, match="Go is not installed"):
        build.pin("1.36.3")


def test_the_promised_releases_are_pinned_with_checksums() -> None:
    known = releases()
    assert [one.name for one in known] == [*RELEASES]
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
