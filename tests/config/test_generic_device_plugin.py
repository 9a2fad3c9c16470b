"""Configurations of generic-device-plugin as people have them, converted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drabridge.config import Config, ConfigErrors, load
from drabridge.config.import_generic_device_plugin import convert
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
        "devices: [{name: x, groups: [{paths: [{path: /dev/a}]}, {paths: [{path: /dev/b, mountPath: /dev/a}]}]}]"
    )
    assert [resource.name for resource in config.resources] == ["squat.ai/x", "squat.ai/x-2"]
    assert "pods must use it" in text


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
        '  - devnode: "/dev/fuse"\n'
        "  nodes:\n"
        "  - {from: devnode}\n"
        "  replicas: {count: 10}\n"
    )
