"""Define a conversion's settings and findings, and how node labels become CEL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Literal

from msgspec import Struct, field

# --- node labels ----------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")
# GPU feature discovery adds these to the product's name on nodes that share or split GPUs; no attribute has them.
_NO_PRODUCT = re.compile(r"-SHARED$|-MIG-")


class Label(Struct, frozen=True):
    """A node label about devices, and the attribute or capacity of a device with the same meaning.

    ``text``: equal but for spaces, which a label has as dashes, and for case. ``major`` and ``minor``: a part of a
    version. ``mebibytes``: a capacity as a number. ``implied``: true for every device of the resource.
    """

    says: Literal["text", "major", "minor", "mebibytes", "implied"]
    name: str = ""


# nvidia/k8s-device-plugin, docs/gpu-feature-discovery: labels; attributes as in deploy/examples/nvidia-gpu.yaml.
NVIDIA: Mapping[str, Label] = {
    "nvidia.com/gpu.present": Label("implied"),
    "nvidia.com/gpu.product": Label("text", "productName"),
    "nvidia.com/gpu.family": Label("text", "architecture"),
    "nvidia.com/gpu.memory": Label("mebibytes", "memory"),
    "nvidia.com/gpu.compute.major": Label("major", "cudaComputeCapability"),
    "nvidia.com/gpu.compute.minor": Label("minor", "cudaComputeCapability"),
    "nvidia.com/cuda.driver-version.major": Label("major", "driverVersion"),
    "nvidia.com/cuda.driver-version.minor": Label("minor", "driverVersion"),
    "nvidia.com/cuda.driver.major": Label("major", "driverVersion"),
    "nvidia.com/cuda.driver.minor": Label("minor", "driverVersion"),
    "nvidia.com/cuda.runtime-version.major": Label("major", "cudaDriverVersion"),
    "nvidia.com/cuda.runtime.major": Label("major", "cudaDriverVersion"),
}
PROFILES: Mapping[str, Mapping[str, Label]] = {"nvidia.com/gpu": NVIDIA}


class Published(Struct, frozen=True):
    """What the driver publishes of a resource's devices: names without a domain belong to the driver."""

    driver: str
    texts: frozenset[str] = frozenset()  # attributes that are text
    versions: frozenset[str] = frozenset()  # attributes that are versions
    capacity: frozenset[str] = frozenset()


class Term(Struct, frozen=True):
    """One condition on a node's label, as ``matchExpressions`` has it."""

    label: str
    operator: str
    values: tuple[str, ...] = ()


def cel(term: Term, resource: str, published: Published) -> str | None:
    """Return the CEL that replaces a condition on a label; "" if every device meets it.

    None if that is impossible: an unknown label, an operator without meaning here, an unpublished attribute.
    """
    label = PROFILES.get(resource, {}).get(term.label)
    if label is None or not all(map(_WORD.fullmatch, term.values)):
        return None
    if label.says == "implied":
        return "" if term.operator == "Exists" or (term.operator, term.values) == ("In", ("true",)) else None
    known = {"mebibytes": published.capacity, "text": published.texts}
    names = known.get(label.says, published.versions)
    if label.name not in names or not term.values:
        return None
    place = "capacity" if label.says == "mebibytes" else "attributes"
    found = f'device.{place}["{published.driver}"].{label.name}'
    said = _text(found, term) if label.says == "text" else _number(found, label, term)
    if said is None:
        return None
    # A device without the key would end the scheduler's search on all nodes ("no such key"). A node without the label
    # is one that NotIn accepts.
    return f"(!has({found}) || {said})" if term.operator == "NotIn" else f"has({found}) && {said}"


def _number(found: str, label: Label, term: Term) -> str | None:
    if not all(value.isascii() and value.isdecimal() for value in term.values):
        return None
    numbers = tuple(str(int(value)) for value in term.values)
    if label.says == "mebibytes":
        return _compared(term.operator, [(f'{found}.compareTo(quantity("{number}Mi"))', "0") for number in numbers])
    return _compared(term.operator, [(f"{found}.{label.says}()", number) for number in numbers])


def _text(found: str, term: Term) -> str | None:
    if term.operator not in ("In", "NotIn") or any(map(_NO_PRODUCT.search, term.values)):
        return None
    words = (value.replace(".", "[.]").replace("-", "[ -]") for value in term.values)
    matches = f'{found}.matches("(?i)^({"|".join(words)})$")'
    return matches if term.operator == "In" else f"!{matches}"


def _compared(operator: str, pairs: list[tuple[str, str]]) -> str | None:
    if operator in ("Gt", "Lt"):
        ((left, right),) = pairs[:1]
        return f"{left} {'>' if operator == 'Gt' else '<'} {right}"
    if operator not in ("In", "NotIn"):
        return None
    sign, joint = ("==", " || ") if operator == "In" else ("!=", " && ")
    joined = joint.join(f"{left} {sign} {right}" for left, right in pairs)
    return f"({joined})" if len(pairs) > 1 and operator == "In" else joined


# --- settings and findings ------------------------------------------------------------------------------------------


class Device(Struct, frozen=True):
    """How devices of an extended resource are claimed: the DeviceClass, and what selectors can ask for.

    ``shares``: how many of the resource one device counts as. ``claims_share``: several claims may hold one device.
    ``selectors``: CEL that each of its claims has.
    """

    device_class: str
    published: Published | None = None  # None: node selectors stay as they are
    shares: int = 1
    claims_share: bool = False
    selectors: tuple[str, ...] = ()


class Settings(Struct, frozen=True):
    """Which resources are converted, and which kinds have pod templates beyond those that are known."""

    devices: Mapping[str, Device]
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Level(Enum):
    """How much a finding matters."""

    NOTE = "note"  # converted, or irrelevant: for information
    LEFT = "left"  # stays on limits: do what the hint says
    ERROR = "error"  # the file could not be read


class Finding(Struct, frozen=True):
    """One thing that a person must know, with its place: ``hint`` says what to do next."""

    level: Level
    line: int  # from 1; 0: the whole file
    subject: str
    message: str
    hint: str = ""
    file: str = ""

    def __str__(self) -> str:
        where = ":".join(part for part in (self.file, str(self.line or "")) if part)
        said = f"{self.level.value}: {where}: " if where else f"{self.level.value}: "
        said += f"{self.subject}: {self.message}" if self.subject else self.message
        return f"{said}. {self.hint[:1].upper()}{self.hint[1:]}" if self.hint else said
