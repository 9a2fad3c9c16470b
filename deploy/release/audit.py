"""Ask pip-audit whether a locked package has a known hole. Its data come from the package index."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LIMIT_SECONDS = 300.0


def known_holes(pinned: Path) -> list[str] | None:
    """Return one line for each known hole of a file's pinned packages; None if the data are not available.

    It is also None if the index says nothing of a package, because then nobody has looked.
    """
    words = (sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "-f", "json", "-r", str(pinned))
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return of_report(done.stdout)


def of_report(text: str) -> list[str] | None:
    """Return the findings in pip-audit's JSON; None if it is no report, or not about all packages."""
    try:
        packages = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    found = [
        f"{one['name']} {one['version']}: {hole['id']}, fixed in {', '.join(hole['fix_versions']) or 'no version yet'}"
        for one in packages
        for hole in one.get("vulns", ())
    ]
    if not found and (not packages or any("skip_reason" in one for one in packages)):
        return None
    return found
