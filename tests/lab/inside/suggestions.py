"""What ``drabridge suggest`` says of devices of the shelf, and what its entries match. In the guest, JSON in and out.

``write NAME...``: {name: entry}. ``check``: reads that, and says {name: {"is": [syspaths], "matched": [syspaths]}}.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from drabridge.cli import main
from drabridge.cli.suggest import HEAD
from drabridge.inventory.suggest import SUGGESTED, suggest
from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_scope import UdevScope
from tests.lab.inside.found import find, find_all


def command(*words: str) -> str:
    """The output of a drabridge command, which runs in this process: starting another takes seconds here."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(list(words))
    return out.getvalue()


def suggested(names: Sequence[str]) -> dict[str, str]:
    """The entry of each device. All devices are read once, which the command does for each and takes seconds here."""
    everything = Udev(UdevScope(attributes=SUGGESTED)).enumerate()
    return {name: suggest(everything[find(name)], everything.values()) for name in names}


def matched(entries: Mapping[str, str]) -> dict[str, list[str]]:
    """The syspaths that each entry matches, in one configuration with all of them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(HEAD + "".join(_renamed(name, entry) for name, entry in entries.items()))
        rows = json.loads(command("match", "-c", str(file), "-o", "json"))
    found: dict[str, list[str]] = {name: [] for name in entries}
    for row in rows:
        found[row["resource"].removeprefix("example.com/")].append(row["syspath"])
    return {name: sorted(paths) for name, paths in found.items()}


def _renamed(name: str, entry: str) -> str:
    """Devices of one kind get one resource name: here each has its own."""
    return re.sub(r"\A- name: .*", f"- name: example.com/{name}", entry)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        print(json.dumps(suggested(sys.argv[2:])))
    else:
        entries = json.load(sys.stdin)
        answers = matched(entries)
        print(json.dumps({name: {"is": find_all(name), "matched": answers[name]} for name in entries}))
