"""The labels of NVIDIA's GPU Feature Discovery, as rules: NVIDIA/k8s-device-plugin internal/lm (0.20).

Left out: ``gfd.timestamp``; ``gpu.clique`` and ``vgpu.*``, for which templates have no fields; and
``mig.capable: "false"``, because a GPU without a known MIG mode may still be capable of MIG.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from drabridge.config.node_labels import LabelRule, part_of, unchanged
from drabridge.config.template import Field, Template

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"
SHARED_SUFFIX = ".shared"  # of a resource's name, where NVIDIA's renameByDefault is used
MACHINE_FILE = "/sys/class/dmi/id/product_name"  # GFD's own default, cmd/gpu-feature-discovery/main.go

# getArchFamily in resource.go; of 7 and 8 the minor number decides.
_FAMILIES = {"1": "tesla", "2": "fermi", "3": "kepler", "5": "maxwell", "6": "pascal", "9": "hopper", "10": "blackwell",
             "12": "blackwell", "13": "rubin"}  # fmt: skip
_MODES = {"0x030000": "graphics", "0x030200": "compute"}  # getModeForClasses in nvml.go: VGA and 3D controllers

_OF_MIG = {
    "multiprocessors": "multiprocessor_count",
    "slices.gi": "slices",
    "slices.ci": "compute_slices",
    "engines.copy": "copy_engines",
    "engines.decoder": "decoders",
    "engines.encoder": "encoders",
    "engines.jpeg": "jpeg_engines",
    "engines.ofa": "ofa_engines",
}
"""Suffix of a MIG resource's label -> field of a MIG instance, without ``nvidia.``; an unknown one has no value."""


def is_nvidia(resource: str) -> bool:
    """Whether GPU Feature Discovery has labels for the resource."""
    return _label_base(resource) == GPU or resource.startswith(MIG)


def gfd_rules(replicas: Mapping[str, int], mig: Collection[str]) -> Iterator[LabelRule]:
    """Yield the rules for those of the resources that are NVIDIA's.

    ``replicas``: of each resource of the file. ``mig``: those whose devices are MIG instances; if ``nvidia.com/gpu`` is
    among them, that is NVIDIA's MIG strategy single.
    """
    ours = tuple(filter(is_nvidia, replicas))
    for name in ours:
        yield from _of_resource(name, replicas[name], ("-MIG-", Field("nvidia.profile")) if name in mig else ())
        if _label_base(name) == GPU:
            yield from _of_gpus(name, of_parent=name in mig)
        if name in mig:
            for suffix, field in _OF_MIG.items():
                yield LabelRule(f"{_label_base(name)}.{suffix}", (name,), _field(f"nvidia.{field}"))
    if instances := tuple(name for name in ours if name in mig):
        strategy = "single" if any(_label_base(name) == GPU for name in instances) else "mixed"
        yield LabelRule("nvidia.com/mig.strategy", instances, Template((strategy,)))
    yield from _of_node(ours)


def family(compute_capability: str) -> str:
    """Return the family of a GPU as GFD writes it: of ``8.9`` it is ``ada-lovelace``."""
    major, _, minor = compute_capability.partition(".")
    match major:
        case "7":
            return "volta" if int(minor or 0) < 5 else "turing"
        case "8":
            return "ampere" if int(minor or 0) < 9 else "ada-lovelace"
        case _:
            return _FAMILIES.get(major, "undefined")


def _of_resource(name: str, replicas: int, words: tuple[str | Field, ...]) -> Iterator[LabelRule]:
    """Yield the labels of GFD's baseLabeler (resource.go), and the memory. ``words`` follow the model's name."""
    base, own = _label_base(name), (name,)
    shared = ("-SHARED",) if replicas > 1 and not name.endswith(SHARED_SUFFIX) else ()
    yield LabelRule(f"{base}.product", own, Template((Field("nvidia.model"), *words, *shared)))
    yield LabelRule(f"{base}.count", own, count="devices")
    yield LabelRule(f"{base}.replicas", own, count="replicas")
    yield LabelRule(f"{base}.sharing-strategy", own, Template(("time-slicing" if replicas > 1 else "none",)))
    yield LabelRule(f"{base}.memory", own, _field("nvidia.memory_mib"))


def _of_gpus(name: str, *, of_parent: bool) -> Iterator[LabelRule]:
    capability, own = _field("nvidia.compute_capability"), (name,)
    pci_class = Template((Field("attr", "class", of_parent),))
    yield LabelRule(f"{GPU}.family", own, capability, convert=family)
    yield LabelRule(f"{GPU}.compute.major", own, capability, convert=part_of(1))
    yield LabelRule(f"{GPU}.compute.minor", own, capability, convert=part_of(2))
    yield LabelRule(f"{GPU}.mode", own, pci_class, convert=lambda text: _MODES.get(text, "unknown"))


def _of_node(all_of_them: tuple[str, ...]) -> Iterator[LabelRule]:
    """Yield the labels that are the same for all GPUs of a node."""
    yield LabelRule(f"{GPU}.machine", all_of_them, _field("file", MACHINE_FILE))
    yield LabelRule("nvidia.com/mps.capable", all_of_them, Template(("false",)))
    # A GPU that is not capable of MIG has no MIG mode, so it has no value here.
    yield LabelRule("nvidia.com/mig.capable", all_of_them, _field("nvidia.mig_mode"), convert=lambda mode: "true")
    driver, cuda = _field("nvidia.driver_version"), _field("nvidia.cuda_version")
    versions: tuple[tuple[str, Template, Callable[[str], str]], ...] = (
        ("driver-version.major", driver, part_of(1)),
        ("driver-version.minor", driver, part_of(2)),
        ("driver-version.revision", driver, part_of(3)),
        ("driver-version.full", driver, unchanged),
        ("runtime-version.major", cuda, part_of(1)),
        ("runtime-version.minor", cuda, part_of(2)),
        ("runtime-version.full", cuda, unchanged),
        ("driver.major", driver, part_of(1)),  # the five that GFD calls deprecated
        ("driver.minor", driver, part_of(2)),
        ("driver.rev", driver, part_of(3)),
        ("runtime.major", cuda, part_of(1)),
        ("runtime.minor", cuda, part_of(2)),
    )
    for suffix, value, convert in versions:
        yield LabelRule(f"nvidia.com/cuda.{suffix}", all_of_them, value, convert=convert)


def _label_base(resource: str) -> str:
    """Return the prefix of the resource's labels: a renamed resource keeps its labels."""
    return resource.removesuffix(SHARED_SUFFIX)


def _field(source: str, key: str = "") -> Template:
    return Template((Field(source, key),))
