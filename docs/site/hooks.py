"""What mkdocs asks while it builds the site: its name with the version, the search's ranks, a search from disk.

What somebody wants to do goes before what somebody wants to understand.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

VERSION = Path(__file__).resolve().parents[2] / "drabridge/__init__.py"
WORKER = "file_worker.js"
FETCHED = "https://unpkg.com/iframe-worker/shim"  # what the theme's plugin `offline` has in place of ours
LATER = (
    "decisions/",
    "deviceplugin.",
    "benchmarks.",
    "comparison.",
    "testing.",
    "architecture.",
    "recipes.",
    "glossary.",
)
BOOST = 0.1


def on_config(config: Any) -> Any:
    """Name the site by the version that it describes."""
    if found := re.search(r'__version__ = "(.+)"', VERSION.read_text(encoding="utf-8") if VERSION.exists() else ""):
        config.site_name = f"{config.site_name} {found[1]}"
    return config


def on_page_content(html: str, page: Any, **_: object) -> str:
    """Tell the search, which reads this of a page's head."""
    if page.file.src_uri.startswith(LATER):
        page.meta.setdefault("search", {})["boost"] = BOOST
    return html


def on_post_page(output: str, page: Any, **_: object) -> str:
    """Let a page take the stand-in of the search's worker from the site itself."""
    return output.replace(FETCHED, "../" * page.file.dest_uri.count("/") + f"assets/{WORKER}")


def on_post_build(config: Any) -> None:
    """Put that stand-in there."""
    shutil.copy(Path(__file__).parent / WORKER, Path(config.site_dir) / "assets" / WORKER)
