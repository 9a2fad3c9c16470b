"""Find every place in a text that names devices, whatever the document is: keys, values, and texts within values.

This module does not know how places are converted. A place that an alias repeats counts once, where it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum

from msgspec import Struct

from drabridge.yaml_reader import MappingNode, Node, Path, Scalar, SequenceNode, key_text, target

# Domains whose names are devices or labels of them: the vendors' device plugins, feature discovery and schedulers. Of
# domains with a slash only names that begin so.
_DOMAINS = (
    "nvidia.com", "amd.com", "gpu.intel.com", "habana.ai", "squat.ai", "smarter-devices", "rdma", "devices.kubevirt.io",
    "aws.amazon.com/neuron", "google.com/tpu", "cloud.google.com/gke-accel", "cloud.google.com/gke-gpu",
    "cloud.google.com/gke-tpu", "k8s.amazonaws.com/accelerator", "volcano.sh/gpu", "volcano.sh/vgpu", "huawei.com/Asc",
    "cambricon.com", "xilinx.com", "qualcomm.com", "furiosa.ai", "rebellions.ai", "tenstorrent.com", "metax-tech.com",
    "iluvatar.ai", "feature.node.kubernetes.io/pci-",
)  # fmt: skip
# A name stands alone: it is no part of a host's or a file's name. ``~1`` is the slash of a JSON pointer.
_ALONE = r"(?:(?<![-\w./\\])|(?<=limits\.)|(?<=requests\.)|(?<=/)(?=[-\w.]+~1))"
_REST = r"(?:[-._A-Za-z0-9]*[A-Za-z0-9])?"
_VARIABLES = re.compile(
    r"(?:NVIDIA_VISIBLE_DEVICES|CUDA_VISIBLE_DEVICES|NVIDIA_MIG_[A-Z_]*DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES"
    r"|GPU_DEVICE_ORDINAL|HABANA_VISIBLE_DEVICES|NEURON_RT_VISIBLE_CORES|ZE_AFFINITY_MASK|TPU_VISIBLE_(?:CHIPS|DEVICES)"
    r"|ASCEND_(?:RT_)?VISIBLE_DEVICES)"
)
_VARIABLE_PARTS = ("_VISIBLE_", "_DEVICE", "_AFFINITY_MASK")
_SIGNS = frozenset("/~_")  # a name or a variable has one of them
# Keys that count devices in a program's own words: num-gpus, requestGPU, gpuCount, gpus_per_node.
_COUNTING_KEY = re.compile(
    r"(?:num|request|requested|extra|max|min|n)?[-_]?(?:v?gpus?|accelerators?|neurons?|tpus?)"
    r"(?:[-_]?(?:count|counts|num|number|limits?|requests?|per[-_]?(?:node|worker|replica|pod|task)))?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,4}(?:\.\d+)?")


class Place(Enum):
    """The role of a name at its place."""

    COUNT = "count"  # a key whose value is a number of devices
    LABEL = "label"  # it chooses nodes
    TAINT = "taint"
    ANNOTATION = "annotation"
    METADATA = "label of an object"
    ENVIRONMENT = "environment"
    OWN_COUNT = "a count in the program's own words"
    NAME = "name"  # a value that is the name
    TEXT = "text"  # within a longer value


class Mention(Struct, frozen=True):
    """One place that names devices. ``path``: of the key or value; ``said``: the value there, if there is one."""

    position: int
    path: Path
    name: str
    place: Place
    said: str = ""


def finder(resources: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of names: the vendors' ones, and all of the domains of ``resources``."""
    names = {*_DOMAINS, *(one.partition("/")[0] for one in resources)}
    starts = [one if "/" in one else f"{one}/[A-Za-z0-9]" for one in sorted(names)]
    written = "|".join(one.replace(".", r"\\?\.").replace("/", "(?:/|~1)") for one in starts)
    return re.compile(rf"{_ALONE}(?:{written}){_REST}|{_VARIABLES.pattern}")


def may_name(text: str, resources: Iterable[str]) -> bool:
    """Return whether a text may name devices: fast, and true for some that name none."""
    return any(one in text for one in (*_DOMAINS, *_VARIABLE_PARTS, *(one.partition("/")[0] for one in resources)))


def mentions(root: Node, start: Path, pattern: re.Pattern[str]) -> Iterator[Mention]:
    """Yield every mention in one document, whose own path is ``start``, in the order of the text."""
    found: list[Mention] = []
    pending: list[tuple[Node, Path]] = [(root, start)]
    while pending:
        node, path = pending.pop()
        if isinstance(node, MappingNode):
            for key, child in node.entries:
                inner = (*path, key_text(key))
                found += _of_key(key, child, inner, pattern)
                pending.append((child, inner))
        elif isinstance(node, SequenceNode):
            pending += [(child, (*path, number)) for number, child in enumerate(node.items)]
        elif isinstance(node, Scalar):
            found += _of_value(node, path, pattern)
    yield from sorted(found, key=lambda one: one.position)


def _of_key(key: Node, child: Node, path: Path, pattern: re.Pattern[str]) -> Iterator[Mention]:
    word = key_text(key)
    value = target(child)
    said = value.text.strip() if isinstance(value, Scalar) else ""
    if not _SIGNS.isdisjoint(word) and (match := pattern.search(word)) is not None:
        name = plain_name(match[0])
        whole = name == plain_name(word)
        place = _place(path[:-1], name) if whole else Place.TEXT
        if whole and place is Place.NAME:
            place = Place.COUNT
        yield Mention(key.start, path, name, place, said)
    elif len(path) > 1 and path[-2] in ("limits", "requests") and is_extended(word):
        yield Mention(key.start, path, word, Place.COUNT, said)
    elif isinstance(value, Scalar) and _counts(value) and _COUNTING_KEY.fullmatch(word):
        yield Mention(key.start, path, word, Place.OWN_COUNT, said)


def is_extended(name: str) -> bool:
    """Return whether a resource's name is one of a device plugin or another extended resource."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def _counts(value: Scalar) -> bool:
    text = value.text.strip()
    return bool(_NUMBER.fullmatch(text)) and float(text) > 0


def _of_value(node: Scalar, path: Path, pattern: re.Pattern[str]) -> Iterator[Mention]:
    if _SIGNS.isdisjoint(node.text) or (path and path[-1] in ("apiVersion", "kind", "image")):
        return
    seen: set[str] = set()
    for match in pattern.finditer(node.text):
        name = plain_name(match[0])
        if name in seen:
            continue
        seen.add(name)
        whole = name == plain_name(node.text.strip())
        of_text = Place.ENVIRONMENT if _VARIABLES.fullmatch(name) else Place.TEXT
        yield Mention(node.start, path, name, _place(path, name) if whole else of_text, node.text)


def plain_name(text: str) -> str:
    """Return a name without the escapes of a JSON pointer or a shell, and without a quota's prefix."""
    text = text.replace("~1", "/").replace("\\", "")
    return text.removeprefix("requests.").removeprefix("limits.")


_WORDS: tuple[tuple[frozenset[str], Place], ...] = (
    (frozenset({"tolerations", "toleration", "taints", "startuptaints"}), Place.TAINT),
    (
        frozenset(
            {"nodeselector", "nodeaffinity", "nodeselectorterms", "matchexpressions", "matchlabels", "nodelabels",
             "nodeselectorterm", "requirements", "affinity", "topologykey", "nodeselectors", "selector"}
        ),
        Place.LABEL,
    ),
    (frozenset({"annotations", "podannotations", "annotation"}), Place.ANNOTATION),
    (frozenset({"labels", "podlabels"}), Place.METADATA),
)  # fmt: skip


def _place(path: Path, name: str) -> Place:
    """Return the role of a name that stands alone at a path: the innermost key that tells the role decides."""
    if _VARIABLES.fullmatch(name):
        return Place.ENVIRONMENT
    for part in reversed(path):
        if isinstance(part, str):
            if part in ("limits", "requests"):
                return Place.NAME
            word = part.replace("_", "").replace("-", "").lower()
            for words, place in _WORDS:
                if word in words:
                    return place
    return Place.NAME
