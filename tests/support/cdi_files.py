"""CDI files as a vendor's program writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

KIND = "nvidia.com/gpu"


def device(name: str, **edits: Any) -> dict[str, Any]:
    """An entry of a file; without edits, a variable."""
    return {"name": name, "containerEdits": edits or {"env": [f"VENDOR={name}"]}}


def write_spec(path: Path, *devices: str | dict[str, Any], kind: str = KIND) -> None:
    """Write a file by rename; a device is its name, or an entry. JSON, which is YAML."""
    entries = [device(one) if isinstance(one, str) else one for one in devices]
    hidden = path.with_name(f"{path.name}.tmp")
    hidden.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": entries}))
    os.replace(hidden, path)
