"""Tell which CDI devices of other programs' files a container runtime finds, and why it does not find one. Pure.

:mod:`drabridge.inventory.cdi_file` says what one file defines, :mod:`drabridge.inventory.cdi_index` when files are
looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from drabridge.system.untrusted import cut

if TYPE_CHECKING:
    from drabridge.inventory.cdi_file import SpecNames

NAMED = 3  # other names in a reason: enough to see that a file names devices by index, not by UUID

_ANY_PROGRAM = "its vendor's program writes that file"


def _nvidias_hint(name: str, directory: str) -> str:
    """Return how to make a file with this name. Not all versions of nvidia-ctk use UUIDs without the option."""
    by_uuid = " --device-name-strategy=uuid" if name.startswith(("GPU-", "MIG-")) else ""
    return f"run nvidia-ctk cdi generate{by_uuid} --output={directory}/nvidia.yaml, or restart nvidia-cdi-refresh"


class CdiNames(Struct, frozen=True):
    """The CDI devices that a runtime would find, of the wanted kinds.

    ``places``: qualified name -> the file that defines it. ``conflicts``: names that two files of one directory define,
    with both files: no runtime takes either. ``unusable``: files that cannot be read, each with its reason.
    ``drivers``: file -> the version of NVIDIA's driver whose libraries it mounts.
    """

    directories: tuple[str, ...]
    places: Mapping[str, str] = MappingProxyType({})
    conflicts: Mapping[str, tuple[str, str]] = MappingProxyType({})
    unusable: tuple[str, ...] = ()
    drivers: Mapping[str, str] = MappingProxyType({})

    def missing(self, name: str) -> str:
        """Return why a runtime would not find the device, and what to do; "" if it would."""
        if name in self.places:
            return ""
        if both := self.conflicts.get(name):
            where = " and in ".join(map(cut, both))  # kubelet gets this message and accepts only valid text
            return f"CDI device {name} is in {where}, so runtimes take neither: remove one of them"
        nvidias = name.startswith("nvidia.com/") and self.directories
        hint = _nvidias_hint(name.partition("=")[2], self.directories[0]) if nvidias else _ANY_PROGRAM
        kind = name.partition("=")[0] + "="
        others = sorted(one.removeprefix(kind) for one in self.places if one.startswith(kind))[:NAMED]
        said = f"; files have the names {', '.join(others)}" if others else ""
        said += f"; {self.unusable[0]}" if self.unusable else ""
        return f"CDI device {name} is in no file of {', '.join(self.directories)}: {hint}{said}"


def other_drivers(names: CdiNames, gpus: Iterable[Mapping[str, str]]) -> list[str]:
    """Return a sentence for each file of another NVIDIA driver than the loaded one. ``gpus``: their fields."""
    version = next((gpu["driver_version"] for gpu in gpus if gpu.get("driver_version")), "")
    return [
        f"{cut(path)} is of NVIDIA's driver {driver}, and {version} is loaded: containers cannot start with it. Run "
        f"nvidia-ctk cdi generate --output={cut(path)}, or restart nvidia-cdi-refresh"
        for path, driver in names.drivers.items()
        if version and driver != version
    ]


NO_NAMES = CdiNames(())


def resolve(directories: Sequence[tuple[str, Iterable[tuple[str, SpecNames]]]], unusable: Iterable[str]) -> CdiNames:
    """Return what a runtime finds in these directories; a later directory takes precedence over an earlier one.

    Each directory is its path and its files (path, names). As in ``refresh`` of pkg/cdi/cache.go, a name that two files
    of one directory define is lost, even if a directory with higher precedence defines it, too.
    """
    places: dict[str, str] = {}
    conflicts: dict[str, tuple[str, str]] = {}
    for _, files in directories:
        here: dict[str, str] = {}
        for path, spec in files:
            for name in (f"{spec.kind}={name}" for name in spec.names):
                if name in here:
                    conflicts.setdefault(name, (here[name], path))
                here.setdefault(name, path)
        places.update(here)
    found = {name: path for name, path in places.items() if name not in conflicts}
    drivers = {path: spec.driver for _, files in directories for path, spec in files if spec.driver}
    return CdiNames(tuple(path for path, _ in directories), found, conflicts, tuple(unusable), drivers)
