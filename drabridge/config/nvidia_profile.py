"""Find the shipped profile for NVIDIA's GPUs: ``deploy/examples/nvidia-gpu.yaml``, the only copy in the sources."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

NAME = "nvidia-gpu.yaml"


def nvidia_profile() -> str:
    """Return the text of the profile: the build puts it beside this module (``hatch_build.py``)."""
    packaged = files("drabridge.config") / NAME
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    checkout = Path(__file__).resolve().parents[2]  # an editable install, or no install at all
    return (checkout / "deploy/examples" / NAME).read_text(encoding="utf-8")
