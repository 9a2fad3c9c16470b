"""Take the section of one version out of CHANGELOG.md: it is the release note."""

from __future__ import annotations

import re


class NoSectionError(Exception):
    """The changelog has no section for the version."""


def of_version(changelog: str, version: str) -> str:
    """Return the text below ``## VERSION``, without its heading. Raises NoSectionError."""
    heading = re.compile(rf"^## \[?{re.escape(version)}\]?( .*)?$", re.MULTILINE)
    found = heading.search(changelog)
    if not found:
        hint = f'rename its section "Unreleased" to "{version}", and begin a new one'
        raise NoSectionError(f"CHANGELOG.md has no section {version}: {hint}")
    rest = changelog[found.end() :]
    following = re.search(r"^## ", rest, re.MULTILINE)
    text = rest[: following.start() if following else None].strip()
    if not text:
        raise NoSectionError(f"CHANGELOG.md: the section {version} is empty")
    return text + "\n"
