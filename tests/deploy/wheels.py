"""Which wheels an aarch64 image installs, by the image's locks: ``python -m tests.deploy.wheels`` asks the index anew.

pip itself chooses them, for that platform and with ``--require-hashes``: it refuses a lock that lacks one. What it
chose is kept in ``wheels-aarch64.json``, so that a test without a network sees whether the locks still have it all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.image import IMAGE_FOLDER

CHOSEN = Path(__file__).parent / "wheels-aarch64.json"
LOCKS = ("build.lock", "requirements.lock")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")  # bookworm has glibc 2.36


def choose(lock: str) -> dict[str, str]:
    """SHA-256 by file name of every wheel that pip would install. Raises CalledProcessError if one cannot be had."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"),
                *("--target", f"{directory}/target", "--report", str(report), "--require-hashes"),
                *(part for name in PLATFORMS for part in ("--platform", name)),
                *("--python-version", "3.11", "--implementation", "cp"),
                *("--abi", "cp311", "--abi", "abi3", "--abi", "none", "--only-binary", ":all:"),
                *("-r", str(IMAGE_FOLDER / lock)),
            ],
            check=True,
        )
        found = [one["download_info"] for one in json.loads(report.read_text())["install"]]
    names = (unquote(urlsplit(one["url"]).path.rpartition("/")[2]) for one in found)
    return dict(sorted(zip(names, (one["archive_info"]["hashes"]["sha256"] for one in found), strict=True)))


def main() -> None:
    CHOSEN.write_text(json.dumps({lock: choose(lock) for lock in LOCKS}, indent=1) + "\n")


if __name__ == "__main__":
    main()
