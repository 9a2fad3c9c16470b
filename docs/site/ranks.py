"""Rank pages in the site's search: what somebody wants to do goes before what somebody wants to understand."""

from __future__ import annotations

from typing import Any

LATER = ("decisions/", "benchmarks.", "comparison.", "testing.", "architecture.", "recipes.", "glossary.")
BOOST = 0.1


def on_page_content(html: str, page: Any, **_: object) -> str:
    """Tell the search, which reads this of a page's head."""
    if page.file.src_uri.startswith(LATER):
        page.meta.setdefault("search", {})["boost"] = BOOST
    return html
