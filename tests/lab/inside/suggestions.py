"""``drabridge suggest`` for the devices of the shelf, and what its entries match. Run in the guest, JSON in and out.

``write NAME...``: {name: entry}. ``check``: reads that, and says {name: {"is": [syspaths], "matched": [syspaths]}}.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

from drabridge.cli import main
from tests.lab.inside.found import find, find_all


def command(*words: str) -> str:
    """The output of a drabridge command, which runs in this process: starting another takes seconds here."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(list(words))
    return out.getvalue()


def matched(entry: str) -> list[str]:
    """The syspaths of what a whole configuration matches."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(entry)
        return sorted(row["syspath"] for row in json.loads(command("match", "-c", str(file), "-o", "json")))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        print(json.dumps({name: command("suggest", find(name)) for name in sys.argv[2:]}))
    else:
        entries = json.load(sys.stdin)
        print(json.dumps({name: {"is": find_all(name), "matched": matched(entry)} for name, entry in entries.items()}))
