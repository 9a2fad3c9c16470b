"""Configurations of generic-device-plugin as people have them, converted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drabridge.config import Config, ConfigErrors, load
from drabridge.config.import_generic_device_plugin import convert
from drabridge.config.schema import Resource
from drabridge.inventory.match import matches
from tests.support.udev_tree import udev_device, usb_device

MANIFEST = """
devices:
- name: serial
  groups:
  - paths:
    - path: /dev/ttyUSB*
  - paths:
    - path: /dev/ttyACM*
  - paths:
    - path: /dev/serial/by-id/usb-Arduino*
- name: video
  groups:
  - paths:
    - path: /dev/video0
      mountPath: /dev/camera
- name: fuse
  groups:
  - count: 10
    paths:
    - path: /dev/fuse
- name: audio
  groups:
  - count: 10
    paths:
    - path: /dev/snd
      type: Mount
    - path: /dev/snd/controlC0
- name: capture
  groups:
  - paths:
    - path: /dev/snd/controlC0
    - path: /dev/snd/pcmC0D0c
      permissions: r
- name: zigbee
  groups:
  - usb:
    - vendor: "1a86"
      product: "7523"
      serial: "0001*"
"""


def converted(text: str) -> tuple[Config, str]:
    out = convert(text)
    return load(out), out


def test_the_manifest_of_its_readme() -> None:
    config, text = converted(MANIFEST)
    assert config.driver == "squat.ai"
    assert [resource.name for resource in config.resources] == [
        "squat.ai/serial", "squat.ai/video", "squat.ai/fuse", "squat.ai/audio", "squat.ai/capture", "squat.ai/zigbee"
    ]  # fmt: skip
    serial, video, fuse, audio, capture, zigbee = config.resources
    assert matches(udev_device("ttyUSB3", devnode="/dev/ttyUSB3"), serial.match)
    assert matches(udev_device("ttyACM0", devnode="/dev/ttyACM0"), serial.match)
    assert matches(udev_device("ttyX", devlinks=["/dev/serial/by-id/usb-Arduino_1"]), serial.match)
    assert not matches(udev_device("ttyS0", devnode="/dev/ttyS0"), serial.match)
    assert str(video.nodes[0].alias) == "/dev/camera"
    assert (fuse.replicas.count, fuse.nodes[0].permissions) == (10, "rw")
    assert [str(mount.host_path) for mount in audio.mounts] == ["/dev/snd"]
    assert not audio.mounts[0].read_only
    assert matches(udev_device(devnode="/dev/snd/controlC0"), audio.match)
    assert [(node.source, node.path and str(node.path), node.permissions) for node in capture.nodes] == [
        ("devnode", None, "rw"), (None, "/dev/snd/pcmC0D0c", "r")
    ]  # fmt: skip
    assert matches(usb_device("1a86", "7523", serial="0001*"), zigbee.match)
    assert not matches(usb_device("1a86", "7523", serial="00012"), zigbee.match)
    assert "permissions mrw became rw" in text
    assert "drain the node" in text
    assert "bundles all matches of a group into one" in text


@pytest.mark.parametrize(
    ("written", "taken", "note"),
    [
        ("2838", "2838", "looks for 0b16. Taken as 2838"),  # issue #70 of generic-device-plugin
        ("0403", "0403", "looks for 0103. Taken as 0403"),  # octal
        ("403", "0403", "looks for 0193. Taken as 0403"),
        ("6001", "6001", "looks for 1771. Taken as 6001"),
        ("0888", "0888", "looks for 0378. Taken as 0888"),
        ("29987", "7523", "taken as decimal, 7523"),
        ('"2838"', "2838", ""),
        ("0bda", "0bda", ""),
        ("0x0BDA", "0bda", ""),
        ("'403'", "0403", ""),
        ("7", "0007", ""),
    ],
)
def test_ids_without_quotes(written: str, taken: str, note: str) -> None:
    config, text = converted(f"devices: [{{name: x, groups: [{{usb: [{{vendor: {written}, product: '1'}}]}}]}}]")
    assert matches(usb_device(taken, "0001"), config.resources[0].match)
    assert note in text
    assert ("stood without quotes" in text) == ("Taken as" in note)


def test_json_and_domain() -> None:
    sticks = [{"vendor": "0bda", "product": "2838"}, {"vendor": "0bda", "product": "2832"}]
    text = json.dumps({"domain": "devic.es", "device": [{"name": "rtl", "groups": [{"usb": sticks}]}]})
    config, _ = converted(text)
    assert config.driver == "devic.es"
    (resource,) = config.resources
    assert resource.name == "devic.es/rtl"
    assert len(resource.match) == 2


def test_pairs_of_patterns_become_companions() -> None:
    config, text = converted(
        "devices: [{name: cap, groups: [{paths: [{path: /dev/snd/controlC*, limit: 10, optional: true}, "
        "{path: '/dev/snd/pcmC*D0c', mountPath: /dev/mic}, {path: /dev/snd/timer}]}]}]"
    )
    (resource,) = config.resources
    assert resource.group is not None
    assert resource.group.scope == "siblings"
    assert matches(udev_device(devnode="/dev/snd/pcmC3D0c"), resource.group.match)
    assert [node.source for node in resource.nodes] == ["devnode", None, "group"]
    for said in (
        "pairs them by sorted order",
        "mountPath was dropped",
        "optional was dropped",
        "stops after one (limit)",
    ):
        assert said in text


def test_groups_of_different_shape_become_two_resources() -> None:
    config, text = converted(
        "devices: [{name: x, groups: [{paths: [{path: /dev/kvm}]}, {paths: [{path: /dev/fuse, mountPath: /dev/kvm}]}]}]"
    )
    assert [resource.name for resource in config.resources] == ["squat.ai/x", "squat.ai/x-2"]
    assert "pods must use it" in text


def of_path(keys: str) -> Resource:
    return converted(f"devices: [{{name: x, groups: [{{paths: [{{{keys}}}]}}]}}]")[0].resources[0]


@pytest.mark.parametrize("path", ["/dev/zigbee2", "/dev/radios/left", "/dev/ttyZigbee", "/dev/printer*"])
def test_a_name_that_may_be_the_hosts_own_link_is_looked_for_as_both(path: str) -> None:
    resource = of_path(f"path: {path}")
    name = path.replace("*", "1")
    assert matches(udev_device("ttyUSB0", devnode="/dev/ttyUSB0", devlinks=["/dev/x", name]), resource.match)
    assert matches(udev_device(devnode=name), resource.match)
    assert not matches(udev_device("ttyUSB0", devnode="/dev/ttyUSB0"), resource.match)
    alias = resource.nodes[0].alias
    assert (str(alias) if alias else "") == ("" if "*" in path else path), "the container has it by the name it had"


@pytest.mark.parametrize(
    "path", ["/dev/ttyUSB*", "/dev/kvm", "/dev/snd/controlC0", "/dev/input/event[0-9]", "/dev/sda1"]
)
def test_names_of_drivers_need_no_udev_database(path: str) -> None:
    (matcher,) = of_path(f"path: '{path}'").match
    assert (str(matcher.devnode).strip('"'), matcher.devlink) == (path, None)


@pytest.mark.parametrize("path", ["/dev/ttyUSB*", "/dev/ttyUSB7", "/dev/serial/by-id/usb-x", "/dev/zigbee"])
def test_a_mount_path_with_a_slash_at_its_end_is_a_folder(path: str) -> None:
    assert str(of_path(f"path: '{path}', mountPath: /dev/radios/").nodes[0].alias) == "/dev/radios/{devname}"
    two = of_path("path: /dev/kvm}, {path: /dev/net/tun, mountPath: /dev/mine/")
    assert str(two.nodes[1].alias) == "/dev/mine/tun"


@pytest.mark.parametrize(("folder", "node"), [("/dev/dri", "/dev/dri/renderD128"), ("/dev/snd/", "/dev/snd/controlC1")])
def test_a_folder_is_each_of_its_devices_with_what_is_beside_it(folder: str, node: str) -> None:
    resource = of_path(f"path: {folder}")
    assert matches(udev_device(devnode=node), resource.match)
    assert [one.source for one in resource.nodes] == ["devnode", "group"]
    assert resource.group is not None
    assert matches(udev_device(devnode=f"{folder.rstrip('/')}/other"), resource.group.match)


@pytest.mark.parametrize("folder", ["/dev/input", "/dev/bus/usb/", "/dev/mine/", "/dev"])
def test_other_folders_are_refused_by_the_name_of_their_option(folder: str) -> None:
    with pytest.raises(ConfigErrors, match=r"paths\[0\].path.*a device node.*a path that is a folder") as refused:
        of_path(f"path: {folder}")
    assert folder.rstrip("/") + "/*" in str(refused.value)


def test_a_folder_beside_other_paths_is_refused() -> None:
    with pytest.raises(ConfigErrors, match=r"paths\[1\].path.*a device node"):
        of_path("path: '/dev/video*'}, {path: /dev/snd")


DAEMON_SET = """apiVersion: v1
kind: Namespace
metadata: {name: x}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: generic-device-plugin}
spec:
  template:
    spec:
      containers:
      - name: generic-device-plugin
        args:
        - --domain
        - devices.example.com
        - --device
        - |
          name: serial
          groups:
            - usb:
                - vendor: 0403
                  product: "6001"
        - '--device={"name": "video", "groups": [{"paths": [{"path": "/dev/video0"}]}]}'
"""


def test_the_arguments_of_a_daemon_set() -> None:
    config, text = converted(DAEMON_SET)
    assert config.driver == "devices.example.com"
    assert [resource.name.partition("/")[2] for resource in config.resources] == ["serial", "video"]
    assert "0403 stood without quotes: generic-device-plugin reads a number" in text
    assert converted(DAEMON_SET.replace("--domain", "--other"))[0].driver == "squat.ai"
    assert [
        r.name for r in converted("device: [{name: x, groups: [{paths: [{path: /dev/kvm}]}]}] # --device")[0].resources
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: serial", "nam: serial", "the --device arguments of .*devices.0..nam: "),
        ("- usb:", "- usb: [", "the --device arguments of "),
        ('"/dev/video0"', '"dev/video0"', "devices.1..groups.0..paths.0..path"),
    ],
)
def test_a_wrong_argument_is_named(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigErrors, match=said):
        convert(DAEMON_SET.replace(old, new))


def test_a_domain_that_is_no_driver() -> None:
    config, text = converted("domain: hw\ndevices: [{name: x, groups: [{paths: [{path: /dev/a}]}]}]")
    assert config.resources[0].name == "hw/x"
    assert "# The domain hw cannot be a DRA driver's name" in text


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("devices: []", "", "a device under devices:"),
        ("devices: [{name: x}]", "devices[0].groups", "required"),
        ("devices: [{name: x, groups: []}]", "devices[0].groups", "at least 1"),
        ("devices: [{name: x, groups: [{}]}]", "devices[0].groups[0]", "either paths or usb"),
        ("devices: [{name: x, groups: [{paths: [{path: dev/a}]}]}]", "devices[0].groups[0].paths[0].path", "absolute"),
        ("devices: [{name: x, groups: [{paths: [{path: /etc/x, type: Mount}]}]}]", "devices[0].groups[0].paths",
         "a device"),
        ("devices: [{name: x, groups: [{paths: [{path: /dev/a, typ: Mount}]}]}]",
         "devices[0].groups[0].paths[0].typ", "known"),
        ("devices: [{name: x, groups: [{paths: [{path: /dev/a}, {path: '/x*', type: Mount}]}]}]",
         "devices[0].groups[0].paths[1].path", "one path"),
        ("devices: [{name: x, groups: [{paths: [{path: /dev/a, permissions: rwx}]}]}]",
         "devices[0].groups[0].paths[0].permissions", "r, w and m"),
        ("devices: [{name: x, groups: [{usb: [{vendor: xyz, product: '1'}]}]}]", "devices[0].groups[0].usb[0].vendor",
         "hexadecimal"),
        ("devices: [{name: 'a b', groups: [{paths: [{path: /dev/a}]}]}]", "devices[0].name", "after the slash"),
        ("- name: x", "", "a mapping"),
        ("", "", "a configuration"),
        ("apiVersion: v1\nkind: ConfigMap", "apiVersion", "known key"),
    ],
)  # fmt: skip
def test_faults_have_places_in_their_file(text: str, path: str, expected: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        convert(text, name="gdp.yaml")
    assert path in [fault.path for fault in caught.value.faults]
    assert any(expected in fault.expected for fault in caught.value.faults)
    assert all(fault.file == "gdp.yaml" for fault in caught.value.faults)


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(MANIFEST)
    assert convert(path) == convert(MANIFEST)
    assert convert(path).startswith("# Made from a configuration of generic-device-plugin.")


def test_the_text_in_full() -> None:
    assert convert("devices: [{name: fuse, groups: [{count: 10, paths: [{path: /dev/fuse}]}]}]") == (
        "# Made from a configuration of generic-device-plugin. What differs is said above each resource.\n"
        "# Device ids differ (generic-device-plugin's are hashes of paths): drain the node before changing over.\n"
        "apiVersion: drabridge/v1alpha1\n"
        "kind: AgentConfig\n"
        "driver: squat.ai\n"
        "resources:\n"
        "# permissions mrw became rw: m lets a container create any device node.\n"
        "- name: squat.ai/fuse\n"
        "  match:\n"
        "  - {devnode: /dev/fuse}\n"
        "  nodes:\n"
        "  - {from: devnode}\n"
        "  replicas: {count: 10}\n"
    )
