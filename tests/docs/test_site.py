"""The site builds strictly: every page is in its navigation, every link and anchor leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
    done = build(tmp_path / "site", root=tmp_path)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
