"""The site builds strictly: every page is in its navigation, every link and anchor leads somewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from drabridge import __version__
from tests.docs.pages import ROOT
from tests.support.waiting import HANG_SECONDS

pytest.importorskip("mkdocs", reason="mkdocs-material (dependency group `docs`) is not installed")

pytestmark = pytest.mark.slow
BROWSER = shutil.which("chromium") or ""
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_it_has_every_page_and_no_program(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}
    assert not [path for path in site.rglob("*") if path.suffix in (".py", ".pyc", ".yml")]


def test_diagrams_are_diagrams(site: Path) -> None:
    source = (ROOT / "docs/architecture.md").read_text().count("```mermaid")
    assert source >= 7
    assert len(re.findall(r'<pre class="mermaid">', (site / "architecture.html").read_text())) == source


def test_a_dead_link_fails_it(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).parent.mkdir(parents=True)
    (tmp_path / "docs/index.md").write_text("# Start\n\n[nowhere](nowhere.md)\n")
    settings = re.sub(r"^nav:.*", "", (ROOT / SETTINGS).read_text(), flags=re.DOTALL | re.MULTILINE)
    (tmp_path / SETTINGS).write_text(settings)
    (tmp_path / "docs/site/hooks.py").write_bytes((ROOT / "docs/site/hooks.py").read_bytes())
    (tmp_path / "docs/images").mkdir()
    (tmp_path / "docs/images/icon.svg").write_bytes((ROOT / "docs/images/icon.svg").read_bytes())
    done = build(tmp_path / "site", root=tmp_path)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr


@pytest.fixture(scope="module")
def index(site: Path) -> dict[str, Any]:
    """What the built site searches."""
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
        ("time slicing", "nvidia.html#time-slicing-and-shares"),
        ("uninstall", "installation.html#uninstall"),
    ],
)
def test_the_search_finds_first_what_helps(index: dict[str, Any], query: str, place: str) -> None:
    assert ranked(index, query)[0] == place


@pytest.mark.chromium
@pytest.mark.skipif(not BROWSER, reason="no chromium here (Debian: apt-get install chromium)")
@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("kvm", "devices.html?h=kvm#kvm-a-node-that-many-pods-share"),
        ("two GPUs", "gpus.html?h=two+gpus#two-gpus-in-one-pod"),
    ],
)
def test_the_search_works_in_pages_that_are_opened_from_disk(
    site: Path, query: str, place: str, tmp_path: Path
) -> None:
    """A browser starts no Worker for such a page; the site brings what stands in for it, and asks no other server."""
    assert "https://unpkg.com/iframe-worker" not in (site / "index.html").read_text()
    page = f"file://{site}/index.html?q={quote(query)}"
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=15000",
    ]
    done = subprocess.run(
        [BROWSER, *flags, "--dump-dom", page], capture_output=True, text=True, check=True, timeout=2 * HANG_SECONDS
    )
    links = [
        one.removeprefix(f"file://{site}/") for one in re.findall(r'href="(file[^"]*\?h=[^"]*#[^"]*)"', done.stdout)
    ]
    assert links, done.stderr[-1000:]
    assert links[0] == place


def test_what_explains_is_ranked_behind_what_helps(index: dict[str, Any]) -> None:
    later = {one["location"].partition("#")[0] for one in index["docs"] if one.get("boost", 1.0) < 1}
    assert {"benchmarks.html", "comparison.html", "decisions/12-cdi.html"} <= later
    assert not later & {"operations.html", "devices.html", "configuration.html", "installation.html"}


def test_the_site_links_the_repository_and_the_next_page_and_has_a_version(site: Path) -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    page = (site / "configuration.html").read_text()
    assert f'href="{urls["Repository"]}"' in page
    assert re.search(r'href="devices.html"[^>]*class="[^"]*md-footer__link--next', page)
    assert "md-footer__link--prev" in page
    assert f"drabridge {__version__}</title>" in page
