"""Which labels a Node shall have: pure, by table; and those of NVIDIA's GPU Feature Discovery."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from drabridge.config import Config, ConfigErrors, load
from drabridge.config.gfd_labels import family
from drabridge.config.template import Field
from drabridge.inventory.devices import Device, Presence
from drabridge.inventory.udev_scope import needs_nvidia, scope_of
from drabridge.offers.node_labels import label_value, wanted_labels

HEAD = "apiVersion: drabridge/v1alpha1\nkind: AgentConfig\n"
GPU = "- name: nvidia.com/gpu\n  match: [{subsystem: pci, driver: nvidia}]\n"


def config(labels: str, resources: str = GPU) -> Config:
    return load(f"{HEAD}nodeLabels: {labels}\nresources:\n{resources}")


H100 = {
    "nvidia.model": "NVIDIA H100 80GB HBM3",
    "nvidia.memory_mib": "81559",
    "nvidia.compute_capability": "9.0",
    "nvidia.driver_version": "550.107.02",
    "nvidia.cuda_version": "12.4",
    "attr:class": "0x030200",
    "file:/sys/class/dmi/id/product_name": "DGX H100 (rev. 2)",
}


def gpu(number: int, resource: str = "nvidia.com/gpu", **more: object) -> Device:
    return Device(f"gpu-{number}", f"GPU-{number}", resource, **more)  # type: ignore[arg-type]


def labels(of: Config, *devices: Device, values: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
    """``values``: fields by device name; an H100's for devices that are not there."""

    def lookup(device: Device):  # type: ignore[no-untyped-def]
        found = (values or {}).get(device.name, H100)
        return lambda field: found.get(str(field))

    return wanted_labels(of.label_rules, devices, lookup)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("Tesla  V100-SXM2 (rev/2)", "Tesla-V100-SXM2-rev2"),
        (" -_.a.b_-. ", "a.b"),
        ("é…", ""),
        ("", ""),
        ("x" * 70, "x" * 63),
        ("x" * 62 + "-yz", "x" * 62),
    ],
)
def test_values_are_such_as_a_label_can_have(text: str, value: str) -> None:
    assert label_value(text) == value


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ('value: "{nvidia.model}"', "NVIDIA-H100-80GB-HBM3"),
        ('value: "{nvidia.model}-SHARED"', "NVIDIA-H100-80GB-HBM3-SHARED"),
        ("value: yes-there-is", "yes-there-is"),
        ('value: "{nvidia.compute_capability}", part: 1', "9"),
        ('value: "{nvidia.compute_capability}", part: 2', "0"),
        ('value: "{nvidia.compute_capability}", part: 3', None),
        ('value: "{nvidia.brand}"', None),
        ("count: devices", "2"),
        ("count: replicas", "4"),
    ],
)
def test_one_label(label: str, value: str | None) -> None:
    of = config(f"{{labels: {{example.com/x: {{resource: nvidia.com/gpu, {label}}}}}}}")
    two = [gpu(number, replicas=4) for number in range(2)]
    assert labels(of, *two).get("example.com/x") == value
    assert labels(of) == {}, "without a device there is no label"


def test_faulty_devices_count_and_unplugged_ones_and_former_names_do_not() -> None:
    of = config("{labels: {example.com/x: {resource: nvidia.com/gpu, count: devices}}}")
    devices = [
        gpu(0, presence=Presence.FAULTY),
        gpu(1, presence=Presence.GONE),
        gpu(2, former=True),
        gpu(3, resource="nvidia.com/other"),
    ]
    assert labels(of, *devices) == {"example.com/x": "1"}
    assert labels(of, *devices[1:]) == {}


def test_where_devices_differ_most_of_them_say_what_the_label_is() -> None:
    of = config('{labels: {example.com/x: {resource: nvidia.com/gpu, value: "{nvidia.model}"}}}')
    models = {"gpu-0": {"nvidia.model": "A30"}, "gpu-1": {"nvidia.model": "L4"}, "gpu-2": {"nvidia.model": "L4"}}
    three = [gpu(number) for number in range(4)]
    assert labels(of, *three, values={**models, "gpu-3": {}}) == {"example.com/x": "L4"}
    assert labels(of, *three[:2], values=models) == {"example.com/x": "A30"}


OF_AN_H100 = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/gpu.machine": "DGX-H100-rev.-2",
    "nvidia.com/mps.capable": "false",
    "nvidia.com/cuda.driver-version.major": "550",
    "nvidia.com/cuda.driver-version.minor": "107",
    "nvidia.com/cuda.driver-version.revision": "02",
    "nvidia.com/cuda.driver-version.full": "550.107.02",
    "nvidia.com/cuda.runtime-version.major": "12",
    "nvidia.com/cuda.runtime-version.minor": "4",
    "nvidia.com/cuda.runtime-version.full": "12.4",
    "nvidia.com/cuda.driver.major": "550",
    "nvidia.com/cuda.driver.minor": "107",
    "nvidia.com/cuda.driver.rev": "02",
    "nvidia.com/cuda.runtime.major": "12",
    "nvidia.com/cuda.runtime.minor": "4",
}


def test_the_labels_of_gpu_feature_discovery() -> None:
    """Names: NVIDIA/k8s-device-plugin tests/expected-output.txt, without the timestamp and mig.capable."""
    of = config("{gfd: true}")
    assert labels(of, gpu(0), gpu(1)) == OF_AN_H100
    assert needs_nvidia(of)
    assert "class" in scope_of(of).attributes


def test_without_nvml_the_labels_that_need_it_are_missing() -> None:
    known = {"nvidia.model": "NVIDIA A30", "nvidia.driver_version": "550.54"}
    found = labels(config("{gfd: true}"), gpu(0), values={"gpu-0": known})
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A30"
    assert not {name for name in found if name.startswith(("nvidia.com/gpu.compute", "nvidia.com/cuda.runtime"))}
    assert not found.keys() & {"nvidia.com/gpu.memory", "nvidia.com/gpu.family", "nvidia.com/gpu.machine"}
    assert "nvidia.com/cuda.driver-version.revision" not in found


@pytest.mark.parametrize(
    ("resource", "replicas", "said"),
    [
        ("nvidia.com/gpu", 4, ("NVIDIA-H100-80GB-HBM3-SHARED", "4", "time-slicing")),
        ("nvidia.com/gpu.shared", 4, ("NVIDIA-H100-80GB-HBM3", "4", "time-slicing")),  # renameByDefault
        ("nvidia.com/gpu.shared", 1, ("NVIDIA-H100-80GB-HBM3", "1", "none")),
    ],
)
def test_time_slicing_shows_in_the_labels(resource: str, replicas: int, said: tuple[str, str, str]) -> None:
    """As internal/lm/resource.go has it: labels keep the name of the resource before it was renamed."""
    entry = f"- name: {resource}\n  match: [{{subsystem: pci}}]\n  replicas: {{count: {replicas}}}\n"
    found = labels(config("{gfd: true}", entry), gpu(0, resource=resource, replicas=replicas))
    keys = ("product", "replicas", "sharing-strategy")
    assert tuple(found[f"nvidia.com/gpu.{key}"] for key in keys) == said
    assert found["nvidia.com/gpu.count"] == "1"


MIG = "- name: nvidia.com/mig-1g.10gb\n  match: [{subsystem: nvidia-mig}]\n  partition: {of: nvidia.com/gpu}\n"


def test_mig_instances_have_labels_of_their_own() -> None:
    of = config("{gfd: true}", GPU + MIG)
    instance = {
        **H100,
        "nvidia.memory_mib": "9728",
        "nvidia.profile": "1g.10gb",
        "nvidia.mig_mode": "enabled",
        "nvidia.multiprocessor_count": "16",
        "nvidia.slices": "1",
        "nvidia.compute_slices": "1",
        "nvidia.copy_engines": "1",
        "nvidia.decoders": "1",
        "nvidia.encoders": "0",
        "nvidia.jpeg_engines": "1",
        "nvidia.ofa_engines": "0",
    }
    parts = [gpu(number, resource="nvidia.com/mig-1g.10gb") for number in (5, 6, 7)]
    found = labels(of, gpu(0), gpu(1), *parts, values={part.name: instance for part in parts})
    of_mig = {
        "nvidia.com/mig-1g.10gb.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        "nvidia.com/mig-1g.10gb.count": "3",
        "nvidia.com/mig-1g.10gb.replicas": "1",
        "nvidia.com/mig-1g.10gb.sharing-strategy": "none",
        "nvidia.com/mig-1g.10gb.memory": "9728",
        "nvidia.com/mig-1g.10gb.multiprocessors": "16",
        "nvidia.com/mig-1g.10gb.slices.gi": "1",
        "nvidia.com/mig-1g.10gb.slices.ci": "1",
        "nvidia.com/mig-1g.10gb.engines.copy": "1",
        "nvidia.com/mig-1g.10gb.engines.decoder": "1",
        "nvidia.com/mig-1g.10gb.engines.encoder": "0",
        "nvidia.com/mig-1g.10gb.engines.jpeg": "1",
        "nvidia.com/mig-1g.10gb.engines.ofa": "0",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig.capable": "true",
    }
    assert found == OF_AN_H100 | of_mig
    no_gpus = labels(of, *parts, values={part.name: instance for part in parts})
    of_gpus = {name for name in OF_AN_H100 if name.startswith("nvidia.com/gpu.") and not name.endswith(".machine")}
    assert no_gpus.keys() == found.keys() - of_gpus, "every GPU is in MIG mode"


SINGLE = """\
- {name: nvidia.com/gpu-whole, match: [{subsystem: pci}]}
- {name: nvidia.com/gpu, match: [{subsystem: nvidia-mig}], partition: {of: nvidia.com/gpu-whole}}
"""


def test_with_strategy_single_the_labels_of_gpus_are_those_of_their_instances() -> None:
    """Names: NVIDIA/k8s-device-plugin tests/expected-output-mig-single.txt."""
    values = {**H100, "nvidia.profile": "1g.10gb", "nvidia.memory_mib": "9728", "nvidia.slices": "1"}
    values["parent.attr:class"] = values.pop("attr:class")
    found = labels(
        config("{gfd: true}", SINGLE),
        *(gpu(number) for number in range(7)),
        values={f"gpu-{n}": values for n in range(7)},
    )
    assert found == OF_AN_H100 | {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        "nvidia.com/gpu.count": "7",
        "nvidia.com/gpu.memory": "9728",
        "nvidia.com/gpu.slices.gi": "1",
        "nvidia.com/mig.strategy": "single",
    }


def test_a_label_may_name_a_resource_that_a_template_stands_for() -> None:
    template = "- {name: 'nvidia.com/mig-{attr:profile}', match: [{subsystem: nvidia-mig}]}\n"
    of = config("{labels: {example.com/x: {resource: nvidia.com/mig-1g.10gb, count: devices}}}", template)
    assert labels(of, gpu(0, resource="nvidia.com/mig-1g.10gb")) == {"example.com/x": "1"}


@pytest.mark.parametrize(
    ("capability", "name"),
    [("6.1", "pascal"), ("7.0", "volta"), ("7.5", "turing"), ("8.6", "ampere"), ("8.9", "ada-lovelace"),
     ("9.0", "hopper"), ("10.0", "blackwell"), ("12.0", "blackwell"), ("99.0", "undefined")],
)  # fmt: skip
def test_families(capability: str, name: str) -> None:
    assert family(capability) == name


def test_a_label_of_the_configuration_wins_over_one_of_gfd() -> None:
    of = config("{gfd: true, labels: {nvidia.com/gpu.product: {resource: nvidia.com/gpu, value: H100}}}")
    assert labels(of, gpu(0), gpu(1)) == OF_AN_H100 | {"nvidia.com/gpu.product": "H100"}


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        (
            "{labels: {x: {resource: nvidia.com/gpus, count: devices}}}",
            "nodeLabels.labels.x.resource",
            "nvidia.com/gpu",
        ),
        ("{labels: {x: {resource: nvidia.com/gpu}}}", "nodeLabels.labels.x", "exactly one of value, count"),
        ("{labels: {x: {resource: nvidia.com/gpu, count: all}}}", "nodeLabels.labels.x.count", "devices"),
        ("{labels: {x: {resource: nvidia.com/gpu, count: devices, part: 1}}}", "nodeLabels.labels.x.part", "value:"),
        ("{labels: {x: {resource: nvidia.com/gpu, value: '{no}'}}}", "nodeLabels.labels.x.value", "a known field"),
        (
            "{labels: {x/y/z: {resource: nvidia.com/gpu, count: devices}}}",
            'nodeLabels.labels."x/y/z"',
            "a label's name",
        ),
        (
            "{labels: {node.kubernetes.io/gpu: {resource: nvidia.com/gpu, count: devices}}}",
            'nodeLabels.labels."node.kubernetes.io/gpu"',
            "belong to Kubernetes",
        ),
        ("{gdf: true}", "nodeLabels.gdf", "gfd"),
        ("{gfd: true}", "nodeLabels.gfd", "a resource nvidia.com/gpu"),
        ("{}\ndra: {enabled: false}", "nodeLabels", "enable DRA"),
    ],
)
def test_what_cannot_be(text: str, path: str, said: str) -> None:
    resources = "- {name: example.com/x, match: [{subsystem: pci}]}\n" if text == "{gfd: true}" else GPU
    with pytest.raises(ConfigErrors) as error:
        config(text, resources)
    (fault,) = error.value.faults
    assert fault.path == path
    assert said in str(fault)


def test_without_the_key_nothing_is_made_or_read() -> None:
    of = load(f"{HEAD}resources:\n{GPU}")
    assert of.label_rules == ()
    assert of.node_labels is None
    assert not needs_nvidia(of)
    assert labels(of, gpu(0)) == {}


def test_fields_of_labels_are_read_from_sysfs() -> None:
    of = config('{labels: {example.com/vram: {resource: nvidia.com/gpu, value: "{attr:mem_info_vram_total}"}}}')
    assert "mem_info_vram_total" in scope_of(of).attributes
    assert not needs_nvidia(of)
    assert str(Field("attr", "mem_info_vram_total")) == "attr:mem_info_vram_total"


MIXED = {
    "NVIDIA GeForce RTX 3080": ("10240", "8.6", "ampere"),
    "NVIDIA GeForce RTX 3090": ("24576", "8.6", "ampere"),
    "NVIDIA GeForce RTX 4090": ("24564", "8.9", "ada-lovelace"),
    "NVIDIA T4": ("", "", ""),  # NVML does not say
}


@pytest.mark.parametrize("models", list(itertools.permutations(MIXED)), ids=str)
@pytest.mark.parametrize("most", [1, 3])
def test_the_labels_of_mixed_models_describe_a_gpu_that_is_there(models: tuple[str, ...], most: int) -> None:
    gpus = [model for index, model in enumerate(models) for _ in range(most if index == 2 else 1)]
    fields = ("nvidia.model", "nvidia.memory_mib", "nvidia.compute_capability")
    values = {f"gpu-{n}": dict(zip(fields, (model, *MIXED[model][:2]), strict=True)) for n, model in enumerate(gpus)}
    found = labels(config("{gfd: true}"), *(gpu(n) for n in range(len(gpus))), values=values)
    said = tuple(found.get(f"nvidia.com/gpu.{name}", "") for name in ("product", "memory", "family"))
    described = models[2 if most > 1 else 0]
    assert said == (described.replace(" ", "-"), MIXED[described][0], MIXED[described][2])
    assert found["nvidia.com/gpu.count"] == str(len(gpus))
