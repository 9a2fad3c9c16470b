"""Claim parameters of NVIDIA's DRA driver: strict as there, of the same precedence, and refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drabridge.config.claims import ClaimConfig, Profile
from drabridge.dra.allocation import AllocationResult
from drabridge.dra.params import Choice, resolve
from drabridge.errors import ConfigError
from drabridge.kube.json_reader import decode as decode_json

DRIVER = "gpu.nvidia.com"
GPU, MIG, VFIO = (AllocationResult(name, "node-a", f"{name}-0") for name in ("gpu", "mig", "vfio"))
LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
SHORT = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
MPS = {"strategy": "MPS"}
OLD = "gpu.resource.nvidia.com/v1alpha1"
PROFILES = ClaimConfig(profiles={"time-slice-long": Profile(), "time-slice-short": Profile(), "safe": Profile()})


def entry(
    kind: str = "GpuConfig", source: str = "FromClaim", requests: tuple[str, ...] = (), **fields: Any
) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


def choose(
    *config: Any,
    results: tuple[AllocationResult, ...] = (GPU,),
    rules: ClaimConfig = PROFILES,
    driver: str = DRIVER,
) -> list[str]:
    choices = resolve(config, results, lambda _: rules, driver, lambda result: result.device.partition("-")[0])
    return [choice.profile for choice in choices]


@pytest.mark.parametrize(
    ("config", "profile"),
    [
        (entry(), ""),
        (entry(sharing=None), ""),
        (entry(sharing={"strategy": "TimeSlicing"}), ""),
        (entry(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}), ""),
        (entry(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}), ""),
        (entry(sharing=LONG), "time-slice-long"),
        (entry("MigDeviceConfig", sharing=MPS), ""),  # names no request, and is for another type
        (entry("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"}), ""),
    ],
)
def test_what_is_for_a_gpu_is_taken(config: Any, profile: str) -> None:
    assert choose(config) == [profile]


MPS_FIELDS = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi", "multiUser": True,
              "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi"}}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (entry(sharing={"strategy": "MPS", "mpsConfig": MPS_FIELDS}), "MPS is not done here"),
        (entry(sharing={"strategy": "mps"}), "unknown GPU sharing strategy: mps, .*TimeSlicing, MPS"),
        (entry(sharing={}), "unknown GPU sharing strategy: , "),
        (
            entry(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "long"}}),
            "unknown time-slice interval: long, .*Default, Short, Medium, Long",
        ),
        (
            entry(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}),
            "cannot use MpsConfig with the 'TimeSlicing' strategy",
        ),
        (
            entry(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Medium"}}),
            r"interval Medium is not set here.*profile time-slice-medium.*\(request 'gpu', device gpu-0\)",
        ),
        (entry(foo=1), 'unknown field "foo"'),
        (entry(Sharing=LONG), 'unknown field "Sharing"'),
        (entry(sharing={"strategy": "MPS", "mpsConfig": {"percentage": 5}}), 'unknown field "sharing.mpsConfig.per'),
        (entry(sharing={"strategy": 5}), "sharing.strategy: text was expected, found 5"),
        (entry(sharing="MPS"), "sharing: an object was expected, found 'MPS'"),
        (
            entry(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": True}}),
            "sharing.mpsConfig.defaultActiveThreadPercentage: a whole number was expected, found True",
        ),
        (
            entry("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
            'unknown field "sharing.timeSlicingConfig"',
        ),
        (
            entry("VfioDeviceConfig", iommu={"enableAPIDevice": "yes"}),
            "iommu.enableAPIDevice: true or false was expected",
        ),
        (entry("ComputeDomainChannelConfig"), "no kind 'ComputeDomainChannelConfig' of resource.nvidia.com/v1beta1"),
        (
            {
                "source": "FromClaim",
                "opaque": {"driver": DRIVER, "parameters": {"apiVersion": OLD, "kind": "GpuConfig"}},
            },
            f"apiVersion resource.nvidia.com/v1beta1 was expected, found '{OLD}'",
        ),
        (entry(kind=None), "no kind None"),  # type: ignore[arg-type]
        (entry("MigDeviceConfig", requests=("gpu",)), "cannot apply MigDeviceConfig to device 'gpu-0' of type 'gpu'"),
        (entry("VfioDeviceConfig", requests=("gpu",)), "cannot apply VfioDeviceConfig to device 'gpu-0'"),
    ],
)
def test_what_is_wrong_or_not_done_here_is_refused_with_its_place(config: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=rf"FromClaim, config\[0\].*{error}"):
        choose(config)


def test_a_field_that_is_given_twice_is_refused() -> None:
    text = json.dumps(entry(sharing=LONG)).replace('"strategy"', '"strategy": "MPS", "strategy"')
    with pytest.raises(ConfigError, match=r'duplicate field "sharing.strategy"'):
        choose(decode_json(text))


def test_the_last_entry_for_a_device_counts_and_only_that_has_to_be_possible() -> None:
    mps = entry(source="FromClass", sharing=MPS)
    assert choose(entry(sharing=LONG), mps) == ["time-slice-long"], "the claim's wins over the class's"
    assert choose(mps, entry()) == [""], "and without anything to share"
    assert choose(entry(sharing=LONG), entry(sharing=SHORT)) == ["time-slice-short"]
    assert choose(entry(sharing=LONG, requests=("gpu",)), entry(sharing=SHORT)) == ["time-slice-short"]
    with pytest.raises(ConfigError, match="unknown field"):
        choose(entry(source="FromClass", foo=1), entry())


def test_each_device_has_what_is_for_its_type_and_request() -> None:
    config = entry(sharing=LONG), entry("MigDeviceConfig", sharing={"strategy": "TimeSlicing"})
    assert choose(*config, results=(GPU, MIG)) == ["time-slice-long", ""]
    ignored = entry("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "mpsConfig": {}})
    assert choose(ignored, results=(MIG,)) == [""], "as there"
    large = AllocationResult("any/large", "node-a", "gpu-1")
    assert choose(entry(sharing=LONG, requests=("any",)), results=(GPU, large)) == ["", "time-slice-long"]


def test_a_vfio_device_has_the_nodes_of_its_resource_whatever_is_preferred() -> None:
    with pytest.raises(ConfigError, match=r"unknown IOMMU backend policy: Best, .*LegacyOnly, PreferIommuFD"):
        choose(entry("VfioDeviceConfig", iommu={"backendPolicy": "Best"}), results=(VFIO,))
    for iommu in ({"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}, {}, None):
        assert choose(entry("VfioDeviceConfig", iommu=iommu), results=(VFIO,)) == [""]


def test_our_own_parameters_stay_and_a_class_s_demand_is_above_an_interval() -> None:
    own = {"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig", "profile": "safe", "mandatory": True}
    demanded = {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": own}}
    assert choose(demanded, entry()) == ["safe"]
    with pytest.raises(ConfigError, match="the class demands the profile 'safe', the claim needs 'time-slice-long'"):
        choose(demanded, entry(sharing=LONG))


def test_an_agent_of_another_driver_knows_only_its_own_kind() -> None:
    other = entry()
    other["opaque"]["driver"] = "dra.example.com"
    assert choose(other) == [""], "not for this driver"
    with pytest.raises(ConfigError, match="kind DeviceConfig were expected"):
        choose(other, driver="dra.example.com")
    assert resolve((), (GPU,), lambda _: PROFILES, DRIVER) == (Choice(),)


KEYS = st.sampled_from(
    ["sharing", "strategy", "timeSlicingConfig", "interval", "mpsConfig", "multiUser", "iommu", "\ud800"]
)
WORDS = st.sampled_from(["TimeSlicing", "MPS", "Long", "Default", "PreferIommuFD", "\ud800"])
OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.lists(WORDS, max_size=2),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
)


@settings(max_examples=50)
@given(
    st.sampled_from(["GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"]) | OBJECTS,
    st.dictionaries(KEYS, OBJECTS, max_size=3),
    st.sampled_from([GPU, MIG, VFIO]),
)
def test_any_user_input_is_refused_or_names_a_profile_of_the_node(kind: Any, fields: Any, result: Any) -> None:
    try:
        (profile,) = choose(entry(kind, **fields), results=(result,))
    except ConfigError:
        return
    assert profile in ("", *PROFILES.profiles)
