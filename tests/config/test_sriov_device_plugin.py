"""Configurations of the SR-IOV network device plugin as people have them, converted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.config import Config, ConfigErrors, load
from drabridge.config.import_sriov_device_plugin import convert
from drabridge.inventory.match import matches
from drabridge.inventory.udev_device import UdevDevice
from tests.support.udev_tree import pci

PFS = {"ens1f0": "0000:3b:00.0", "ens1f1": "0000:3b:00.1", "ens1f0np0": "0000:5e:00.0"}


def config(*selectors: Any, **more: Any) -> str:
    one = {"resourceName": "vf", "selectors": selectors[0] if len(selectors) == 1 else list(selectors)}
    return json.dumps({"resourceList": [one | more]})


def converted(text: str) -> tuple[Config, str]:
    out = convert(text)
    return load(out), out


def functions(driver: str = "vfio-pci", device_class: str = "0x020000") -> Iterator[tuple[str, UdevDevice]]:
    """Twenty virtual functions of each of three cards: ``ens1f0#7``."""
    for bus, (pf, address) in enumerate(PFS.items()):
        for number in range(20):
            own = f"0000:{0x40 + bus:02x}:{number // 8:02x}.{number % 8}"
            udev = pci(own, "0x15b3", "0x1018", device_class, driver, physfn=address)
            yield f"{pf}#{number}", replace(udev, properties={"SRIOV_PF_NAME": pf, "SRIOV_VF": str(number)})


def chosen(text: str, **kind: str) -> set[str]:
    (resource,) = converted(text)[0].resources
    return {name for name, udev in functions(**kind) if matches(udev, resource.match)}


def of(pf: str, *numbers: int) -> set[str]:
    return {f"{pf}#{number}" for number in numbers or range(20)}


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ({"pfNames": ["ens1f0"]}, of("ens1f0")),
        ({"pfNames": ["ens1f0#0-3,6"]}, of("ens1f0", 0, 1, 2, 3, 6)),
        ({"pfNames": ["ens1f0#8-12"]}, of("ens1f0", 8, 9, 10, 11, 12)),
        ({"pfNames": ["ens1f0#0", "ens1f1#19"]}, of("ens1f0", 0) | of("ens1f1", 19)),
        ({"pfNames": ["^ens1f[01]$"]}, of("ens1f0") | of("ens1f1")),
        ({"pfNames": ["f[0]"]}, of("ens1f0") | of("ens1f0np0")),
        ({"rootDevices": ["0000:3B:00.1"]}, of("ens1f1")),
        ({"rootDevices": ["0000:3b:00.1#1-2"]}, of("ens1f1", 1, 2)),
        ({"rootDevices": ["0000:3b:00.0#1-5"], "pfNames": ["ens1f0#4-9"]}, of("ens1f0", 4, 5)),
        ({"rootDevices": ["0000:3b:00.0"], "pfNames": ["ens1f1"]}, set()),
        ({"pciAddresses": ["0000:40:00.0", "0000:41:00.1"]}, of("ens1f0", 0) | of("ens1f1", 1)),
        ({"vendors": ["15B3"], "devices": ["1018"], "pfNames": ["ens1f0"]}, of("ens1f0")),
        ({"vendors": ["8086"]}, set()),
        ({"drivers": ["iavf", "vfio-pci"], "pfNames": ["ens1f1"]}, of("ens1f1")),
        ({"drivers": ["iavf"]}, set()),
        ({"linkTypes": ["infiniband"]}, set()),
        ({"linkTypes": ["ether"], "pfNames": ["ens1f0"]}, of("ens1f0")),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_selector_chooses_the_functions_that_the_plugin_chooses(selector: dict[str, Any], wanted: set[str]) -> None:
    assert chosen(config(selector)) == wanted


def test_of_several_selectors_one_is_enough() -> None:
    assert chosen(config({"pfNames": ["ens1f0#0"]}, {"pfNames": ["ens1f1#1"]})) == {"ens1f0#0", "ens1f1#1"}


def test_a_card_that_the_node_itself_uses_is_not_offered_by_its_vendor() -> None:
    (resource,) = converted(config({"vendors": ["15b3"]}))[0].resources
    card = pci("0000:3b:00.0", "0x15b3", "0x1017", "0x020000", "mlx5_core")
    assert not matches(card, resource.match)
    (named,) = converted(config({"pciAddresses": ["0000:3b:00.0"]}))[0].resources
    assert matches(card, named.match), "who names it means it"


def paths(text: str) -> dict[str, bool]:
    (resource,) = converted(text)[0].resources
    return {str(node.path or node.source): node.optional for node in resource.nodes}


VFIO = ("/dev/vfio/{iommu_group}", "/dev/vfio/vfio")


def test_a_container_gets_what_the_plugin_gives() -> None:
    assert paths(config({"drivers": ["vfio-pci"]})) == dict.fromkeys(VFIO, False)
    assert paths(config({"drivers": ["iavf"]})) == {}
    assert paths(config({"vendors": ["8086"]})) == dict.fromkeys(VFIO, True)
    rdma = {"drivers": ["mlx5_core"], "isRdma": True, "needVhostNet": True}
    assert list(paths(config(rdma))) == ["group", "/dev/infiniband/rdma_cm", "/dev/vhost-net", "/dev/net/tun"]
    both = {"resourceName": "a-b_c.d", "resourcePrefix": "openshift.io", "excludeTopology": True}
    (resource,) = converted(config({"drivers": ["uio_pci_generic"]}, **both))[0].resources
    assert (resource.name, resource.numa) == ("openshift.io/a-b_c.d", False)
    assert {str(name): str(value) for name, value in resource.env.items()} == {
        "PCIDEVICE_OPENSHIFT_IO_A_B_C_D": "{pci}"
    }
    assert resource.group is not None
    assert [str(template) for template in resource.id] == ["{pci}"], "kubelet's checkpoint has these ids"


def test_the_config_map_is_taken_as_well_as_the_file() -> None:
    text = config({"pfNames": ["ens1f0#1"]})
    map_ = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.json": text}})
    assert convert(map_) == convert(text)


def test_a_file_that_is_nested_too_deep_is_a_fault() -> None:
    with pytest.raises(ConfigErrors, match="at most 50 levels of nesting"):
        convert('{"a": ' + "[" * 100_000)


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        (config({"ddpProfiles": ["GTPv1"]}), "selectors.ddpProfiles", "pfNames or pciAddresses"),
        (config({"vdpaType": "vhost"}), "selectors.vdpaType", "vhost-vdpa"),
        (config({"pKeys": ["0x1"]}), "selectors.pKeys", "partition key"),
        (config({}, deviceType="auxNetDevice"), "deviceType", "subfunctions"),
        (config({"pfNames": ["ens1f0#3-1"]}), "selectors.pfNames[0]", "NAME#0-3,6"),
        (config({"pfNames": ["ens1f0#1#2"]}), "selectors.pfNames[0]", "NAME#0-3,6"),
        (config({"pfNames": ["ens1f0#"]}), "selectors.pfNames[0]", "NAME#0-3,6"),
        (config({"rootDevices": ["#1"]}), "selectors.rootDevices[0]", "NAME#0-3,6"),
        (config({"pfNames": ["ens1f0#0-99999"]}), "selectors.pfNames[0]", "NAME#0-3,6"),
        (config({"vendor": ["8086"]}), "selectors.vendor", "vendors"),
        (config({"vendors": ["0x8086"]}), "selectors.vendors[0]", ""),
        (config({}, resourceName="a b"), "resourceName", ""),
        ("{}", "resourceList", ""),
    ],
)
def test_what_has_no_counterpart_is_refused_at_its_place(text: str, path: str, said: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        convert(text)
    faults = {fault.path: str(fault) for fault in caught.value.faults}
    (found,) = [text for at, text in faults.items() if at.endswith(path)]
    assert said in found


def test_what_means_something_else_is_said() -> None:
    _, text = converted(config({"isRdma": True, "pfNames": ["ens1f0"]}, additionalInfo={"*": {"token": "x"}}))
    for key in ("resourcePrefix", "exists", "drivers", "pfNames", "additionalInfo", "isRdma"):
        assert f"\n# {key}: " in text
