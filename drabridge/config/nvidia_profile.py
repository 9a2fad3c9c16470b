"""Find the shipped profiles for NVIDIA's GPUs in ``deploy/examples``, the only copies in the sources."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

GPUS = "nvidia-gpu.yaml"
WITH_MIG = "nvidia-mig.yaml"


def nvidia_profile(name: str = GPUS) -> str:
    """Return the text of a profile: the build puts it beside this module (``hatch_build.py``)."""
    packaged = files("drabridge.config") / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    checkout = Path(__file__).resolve().parents[2]  # an editable install, or no install at all
    return (checkout / "deploy/examples" / name).read_text(encoding="utf-8")
