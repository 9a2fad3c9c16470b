"""The site builds strictly: every page is in its navigation, every link and anchor leads somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from tests.support.waiting import HANG_SECONDS

pytest.importorskip("mkdocs", reason="mkdocs-material (dependency group `docs`) is not installed")

SETTINGS = "docs/site/mkdocs.yml"  # below the root


def build(site: Path, *, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", SETTINGS, "--site-dir", str(site)]
    return subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS * 4,
        check=False,
    )


def test_it_builds_strictly(tmp_path: Path) -> None:
    done = build(tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    assert pages <= built
    assert not [path for path in (tmp_path / "site").rglob("*") if path.suffix in (".py", ".pyc", ".yml")]


def test_diagrams_are_diagrams(tmp_path: Path) -> None:
    assert build(tmp_path / "site").returncode == 0
    source = (ROOT / "docs/architecture.md").read_text().count("```mermaid")
    assert source >= 7
    assert len(re.findall(r'<pre class="mermaid">', (tmp_path / "site/architecture.html").read_text())) == source


def test_a_dead_link_fails_it(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).parent.mkdir(parents=True)
    (tmp_path / "docs/index.md").write_text("# Start\n\n[nowhere](nowhere.md)\n")
    settings = re.sub(r"^nav:.*", "", (ROOT / SETTINGS).read_text(), flags=re.DOTALL | re.MULTILINE)
    (tmp_path / SETTINGS).write_text(settings)
    (tmp_path / "docs/site/ranks.py").write_bytes((ROOT / "docs/site/ranks.py").read_bytes())
    (tmp_path / "docs/images").mkdir()
    (tmp_path / "docs/images/icon.svg").write_bytes((ROOT / "docs/images/icon.svg").read_bytes())
    done = build(tmp_path / "site", root=tmp_path)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the built site searches."""
    site = tmp_path_factory.mktemp("site")
    done = build(site)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((site / "search/search_index.json").read_text())
    return found


def words(text: str, separator: str) -> list[str]:
    plain = re.sub(r"<[^>]+>", " ", text).lower()
    return [word.rstrip("s") for word in re.split(separator, plain) if word]


def ranked(index: dict[str, Any], query: str) -> list[str]:
    """Sections that have every word, the best first: as the theme weighs title and text, and the page's boost."""
    settings = index["config"]
    weight = {name: settings["fields"][name]["boost"] for name in ("title", "text")}
    asked = words(query, settings["separator"])
    scores: dict[str, float] = {}
    for one in index["docs"]:
        has = {name: words(one[name], settings["separator"]) for name in weight}
        if all(any(word in has[name] for name in weight) for word in asked):
            score = sum(
                weight[name] * has[name].count(word) / (5 + len(has[name])) for word in asked for name in weight
            )
            scores[one["location"]] = score * one.get("boost", 1.0)
    return sorted(scores, key=lambda place: (-scores[place], place))


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("kvm", "devices.html#kvm-a-node-that-many-pods-share"),
        ("camera", "devices.html#cameras-and-capture-cards"),
        ("serial adapter", "devices.html#serial-adapters"),
        ("disk", "devices.html#disks"),
        ("sound card", "devices.html#sound-cards"),
        ("pod stuck terminating", "operations.html#pods-stuck-terminating-after-the-agent-was-removed"),
        ("UnexpectedAdmissionError", "operations.html#pod-failed-with-unexpectedadmissionerror-is-held-by-claim"),
        ("no healthy devices present", "operations.html#pod-failed-allocate-failed-due-to-no-healthy-devices-present"),
        ("quarantine", "operations.html#device-in-quarantine"),
        ("LeaseDenied", "operations.html#pod-with-a-claim-stays-pending-leasedenied"),
        ("two GPUs", "gpus.html#two-gpus-in-one-pod"),
        ("time slicing", "nvidia.html#time-slicing-and-mps"),
        ("uninstall", "installation.html#uninstall"),
    ],
)
def test_the_search_finds_first_what_helps(index: dict[str, Any], query: str, place: str) -> None:
    assert ranked(index, query)[0] == place


def test_what_explains_is_ranked_behind_what_helps(index: dict[str, Any]) -> None:
    later = {one["location"].partition("#")[0] for one in index["docs"] if one.get("boost", 1.0) < 1}
    assert {"benchmarks.html", "comparison.html", "decisions/12-cdi.html"} <= later
    assert not later & {"operations.html", "devices.html", "configuration.html", "installation.html"}


def test_the_site_links_the_repository_and_the_next_page(tmp_path: Path) -> None:
    assert build(tmp_path / "site").returncode == 0
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    page = (tmp_path / "site/configuration.html").read_text()
    assert f'href="{urls["Repository"]}"' in page
    assert re.search(r'href="devices.html"[^>]*class="[^"]*md-footer__link--next', page)
    assert "md-footer__link--prev" in page
