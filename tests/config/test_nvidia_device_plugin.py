"""Configurations of NVIDIA's device plugin as people have them, converted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import hatch_build
from drabridge.config import Config, ConfigErrors, load
from drabridge.config.import_nvidia_device_plugin import convert
from drabridge.config.nvidia_profile import GPUS, WITH_MIG, nvidia_profile
from drabridge.inventory.match import matches
from tests.support.udev_tree import udev_device

UUID = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"
PROFILE = load(nvidia_profile())
PROFILE_MODULE = nvidia_profile.__module__
GPU = PROFILE.resource("nvidia.com/gpu")

# README.md of NVIDIA/k8s-device-plugin, "Shared Access to GPUs" and "As a configuration file", both in one.
OF_ITS_README = """
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: "envvar"
    deviceIDStrategy: "uuid"
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""


def converted(text: str) -> tuple[Config, str]:
    out = convert(text)
    return load(out), out


def test_the_file_of_its_readme() -> None:
    config, text = converted(OF_ITS_README)
    assert config.driver == PROFILE.driver
    (gpu,) = config.resources
    assert (gpu.name, gpu.replicas.count, gpu.replicas.policy) == ("nvidia.com/gpu", 10, "distributed")
    assert gpu.replicas.max_per_request is None
    assert "flags.failOnInitError: not needed" in text
    assert "flags.plugin.deviceListStrategy: envvar" in text
    assert "passDeviceSpecs" not in text, "its default, which changes nothing"


def test_a_file_that_asks_for_nothing_is_the_profile() -> None:
    config, _ = converted("version: v1")
    assert config == PROFILE
    assert converted("flags: {migStrategy: none}\nsharing: null")[0] == PROFILE


@pytest.mark.parametrize(
    ("kind", "options", "name", "most"),
    [
        ("timeSlicing", "", "nvidia.com/gpu", None),  # the defaults are NVIDIA's
        ("mps", "", "nvidia.com/gpu", 1),  # NewConfig in config.go
        ("timeSlicing", "failRequestsGreaterThanOne: true, ", "nvidia.com/gpu", 1),
        ("mps", "failRequestsGreaterThanOne: false, ", "nvidia.com/gpu", None),
        ("timeSlicing", "renameByDefault: true, ", "nvidia.com/gpu.shared", None),
        ("mps", "renameByDefault: true, ", "nvidia.com/gpu.shared", 1),
    ],
)
@pytest.mark.parametrize("written", ["nvidia.com/gpu", "gpu"])
def test_replicas(kind: str, options: str, name: str, most: int | None, written: str) -> None:
    file = f"sharing: {{{kind}: {{{options}resources: [{{name: {written}, replicas: 4}}]}}}}"
    config, text = converted(file)
    (gpu,) = config.resources
    assert (gpu.name, gpu.replicas.count, gpu.replicas.max_per_request) == (name, 4, most)
    assert gpu.sharing.allow_multiple_allocations, "claims share it as pods do, once lanes give them some"
    shares = gpu.capacity["shares"]
    assert shares.value == 4
    assert shares.request_policy is not None
    assert shares.request_policy.default == 1
    assert shares.request_policy.valid_range is not None
    assert shares.request_policy.valid_range.max == most
    assert gpu.capacity.keys() - {"shares"} == GPU.capacity.keys()
    assert ("no MPS daemon is run, so pods have no limits" in text) == (kind == "mps")


def test_json_policy_and_the_order_of_both_kinds_of_sharing() -> None:
    replicas = {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}
    more = {"resources": [{"name": "nvidia.com/gpu", "replicas": 3}]}
    flags = {"plugin": {"sharedDevicesAllocationPolicy": "packed", "deviceListStrategy": ["cdi-cri", "envvar"]}}
    file = {"version": "v1", "flags": flags, "sharing": {"timeSlicing": replicas, "mps": more}}
    config, text = converted(json.dumps(file))
    (gpu,) = config.resources
    assert (gpu.replicas.count, gpu.replicas.policy) == (3, "packed")
    assert "sharing.timeSlicing: not used, because sharing.mps is there as well" in text
    assert "deviceListStrategy" not in text, "one of both is CDI"


@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ("devices: 2", "devices: NVIDIA's plugin ignores it and replicates all"),
        ('devices: [0, "1", "0:3"]', "devices: NVIDIA's plugin ignores it and replicates all"),
        (f"devices: [{UUID}, MIG-{UUID}/3/0]", "devices: NVIDIA's plugin ignores it and replicates all"),
        ("rename: nvidia.com/gpu-slow", "rename: nvidia.com/gpu-slow is ignored by NVIDIA's plugin"),
    ],
)
def test_what_nvidias_plugin_reads_and_ignores(resource: str, said: str) -> None:
    config, text = converted(
        f"sharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: 2, {resource}}}]}}}}"
    )
    assert (config.resources[0].name, config.resources[0].replicas.count) == ("nvidia.com/gpu", 2)
    assert said in text
    _, plain = converted("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: all}]}}")
    assert "devices:" not in plain


def test_names_for_products_are_not_used_there_and_said_here() -> None:
    gpus = '[{pattern: "*H100*", name: gpu-h100}, {pattern: "*", name: gpu}]'
    config, text = converted(f"resources: {{gpus: {gpus}}}")
    assert config == PROFILE
    assert "resources.gpus: NVIDIA's plugin ignores it" in text


def test_roots_companions_and_imex() -> None:
    config, text = converted(
        "flags: {nvidiaDriverRoot: /run/nvidia/driver/, nvidiaDevRoot: /, gdrcopyEnabled: true, gdsEnabled: true}\n"
        "imex: {channelIDs: [0], required: true}"
    )
    (gpu,) = config.resources
    before, after = GPU.nodes, gpu.nodes
    assert after[: len(before)] == before, "the nodes are the host's own"
    assert [(str(node.path), node.optional) for node in after[len(before) :]] == [
        ("/dev/gdrdrv", True),
        ("/dev/nvidia-caps-imex-channels/channel0", False),
    ]
    for was, now in zip(GPU.mounts, gpu.mounts, strict=True):
        assert str(now.host_path) == f"/run/nvidia/driver{was.host_path}"
        assert str(now.container_path) == str(was.host_path)
    assert "The paths below /run/nvidia/driver must be in the agent's pod" in text
    assert "flags.gdsEnabled: not done" in text


def test_without_a_root_of_nodes_it_is_the_drivers() -> None:
    (gpu,) = converted("flags: {nvidiaDriverRoot: /opt/nvidia}")[0].resources
    for was, now in zip(GPU.nodes, gpu.nodes, strict=True):
        assert (str(now.path), str(now.alias)) == (f"/opt/nvidia{was.path}", str(was.path))


def test_mig_strategy_mixed_is_the_profile_with_mig() -> None:
    config, _ = converted("flags: {migStrategy: mixed}\nresources: {mig: [{pattern: 3g.40gb, name: mig-3g.40gb}]}")
    assert config == load(nvidia_profile(WITH_MIG))


def test_replicas_of_mig_instances() -> None:
    config, _ = converted(
        "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true, resources: "
        "[{name: nvidia.com/mig-1g.10gb, replicas: 2}, {name: mig-1g.10gb.me, replicas: 3}, {name: gpu, replicas: 4}]}}"
    )
    assert [(one.name, one.replicas.count) for one in config.resources] == [
        ("nvidia.com/gpu.shared", 4),
        ("nvidia.com/mig-1g.10gb.shared", 2),
        ("nvidia.com/mig-1g.10gb.me.shared", 3),
        ("nvidia.com/mig-{attr:profile}", 1),
    ]
    for resource, profile in zip(config.resources[1:], ("1g.10gb", "1g.10gb+me", "7g.80gb"), strict=True):
        assert resource.partition is not None
        assert resource.partition.of == "nvidia.com/gpu.shared"
        device = udev_device("mig0", subsystem="nvidia-mig", attrs={"profile": profile})
        assert matches(device, resource.match)
        assert next(one for one in config.resources if matches(device, one.match)) is resource


def test_mig_strategy_single_gives_instances_the_name_of_gpus() -> None:
    config, text = converted(
        "flags: {migStrategy: single}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
    )
    whole, instances = config.resources
    assert (whole.name, whole.replicas.count) == ("nvidia.com/gpu-whole", 1)
    assert (instances.name, instances.replicas.count, str(instances.uniform)) == ("nvidia.com/gpu", 2, "attr:profile")
    assert instances.partition is not None
    assert instances.partition.of == whole.name
    assert "Nodes whose GPUs are not in MIG mode need a file of their own" in text


def test_replicas_of_mig_instances_without_mig_are_said() -> None:
    config, text = converted("sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: 2}]}}")
    assert config == PROFILE
    assert "nvidia.com/mig-1g.10gb is left out: flags.migStrategy is not mixed" in text


FAULTS = """\
version: v2
flags:
  migStratgy: single
  deviceDiscoveryStrategy: tegra
  plugin: {deviceIDStrategy: number, deviceListStrategy: [cdi-cri, cdi]}
  gfd: {sleepInterval: soon}
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpus, replicas: 1, devices: [x]}
    - {name: nvidia.com/gpu}
  mps: {resources: []}
resources: {gpu: []}
imex: {channelIDs: [0, 1]}
"""


def test_every_fault_is_reported_at_once_with_its_line() -> None:
    with pytest.raises(ConfigErrors) as error:
        convert(FAULTS)
    assert [(fault.line, fault.path) for fault in error.value.faults] == [
        (1, "version"),
        (3, "flags.migStratgy"),
        (4, "flags.deviceDiscoveryStrategy"),
        (5, "flags.plugin.deviceIDStrategy"),
        (5, "flags.plugin.deviceListStrategy[1]"),
        (6, "flags.gfd.sleepInterval"),
        (10, "sharing.timeSlicing.resources[0].name"),
        (10, "sharing.timeSlicing.resources[0].replicas"),
        (10, "sharing.timeSlicing.resources[0].devices"),
        (11, "sharing.timeSlicing.resources[1].replicas"),
        (12, "sharing.mps.resources"),
        (13, "resources.gpu"),
        (14, "imex.channelIDs"),
    ]
    text = str(error.value)
    assert 'did you mean "migStrategy"?' in text
    assert 'did you mean "nvidia.com/gpu"?' in text
    assert 'did you mean "gpus"?' in text
    assert "the profile finds GPUs on the PCI bus" in text


def test_a_resource_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ConfigErrors, match=r"resources\[1\].name: .*resources\[0\] has the same name"):
        convert("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 3}]}}")


def test_the_config_map_around_it_is_named() -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: time-slicing}\ndata:\n  any: |\n    version: v1\n"
    with pytest.raises(ConfigErrors) as error:
        convert(text)
    assert "save the text of one key of data: as a file" in str(error.value)


def test_a_file_without_resources_to_share_is_refused_as_there() -> None:
    with pytest.raises(ConfigErrors, match=r"sharing.timeSlicing.resources: .*it is required"):
        convert("sharing: {timeSlicing: {renameByDefault: true}}")


ROOT = Path(__file__).parents[2]


def test_the_profiles_have_one_copy_in_the_sources() -> None:
    for name in (GPUS, WITH_MIG):
        assert nvidia_profile(name) == (ROOT / "deploy/examples" / name).read_text(encoding="utf-8")
    assert not list((ROOT / "drabridge").rglob("*.yaml"))


def test_a_wheel_and_the_image_get_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling", reason="what builds a wheel is not installed")
    monkeypatch.setattr(hatch_build, "generate", list)
    taken, nothing = {}, cast(Any, None)
    for version in ("standard", "editable"):
        data: dict[str, Any] = {"force_include": {}, "dependencies": []}
        hook = hatch_build.ProtoHook(str(ROOT), {}, nothing, cast(Any, SimpleNamespace(version="1")), "", "wheel")
        hook.initialize(version, data)
        taken[version] = data["force_include"]
    wanted = {str(ROOT / source): target for source, target in hatch_build.PROFILES.items()}
    assert taken == {"standard": wanted, "editable": {}}
    for source, target in hatch_build.PROFILES.items():
        assert Path(target).parts == (*PROFILE_MODULE.split(".")[:-1], Path(source).name)
        assert f"{source} " in (ROOT / "deploy/image/Containerfile").read_text()


def test_a_switch_in_the_wrong_place_is_sent_to_the_right_one() -> None:
    with pytest.raises(ConfigErrors, match=r"flags\.renameByDefault.*it belongs to sharing\.timeSlicing"):
        convert("flags: {renameByDefault: true}")
