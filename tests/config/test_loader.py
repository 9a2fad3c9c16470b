"""Every malformed configuration gives all of its faults at once, each with its place and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config import ConfigErrors, load
from drabridge.config.names import ATTRIBUTES_AND_CAPACITY_MAX
from drabridge.config.published import RESERVED_ATTRIBUTES
from drabridge.errors import ConfigError
from tests.support.configurations import HEAD, document, faults, loaded, only_fault

GOOD = document("match: [{subsystem: usb}]")


def test_the_smallest_file() -> None:
    config = load(GOOD)
    (resource,) = config.resources
    assert (config.udev_events, config.resync_seconds, config.legacy.inject) == ("auto", 60, "cdi")
    assert resource.name == "example.com/thing"
    assert [node.source for node in resource.nodes] == ["devnode"]
    assert resource.nodes[0].permissions == "rw"
    assert resource.lanes.targets(8) == (8, 0)
    assert not config.wants_dra
    assert config.resource("example.com/thing") is resource
    with pytest.raises(KeyError):
        config.resource("example.com/other")


def test_bytes_text_and_path_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())  # Windows editors begin with a byte order mark
    assert load(path) == load(GOOD) == load(GOOD.encode()) == load("\ufeff" + GOOD)


def test_all_faults_at_once_in_order() -> None:
    found = faults(
        HEAD
        + "drivr: x.example.com\n"
        + "resyncSeconds: 1\n"
        + "resources:\n"
        + "- name: gpu\n"
        + "  match: [{attr: {idVendor: 259}}]\n"
        + "  nodes: [{from: devnode, permissions: mrw}]\n"
        + "- name: example.com/x\n"
        + "  match: [{}]\n"
        + "- name: example.com/x\n"
        + "  match: [{subsystem: tty}]\n"
    )
    assert [(fault.line, fault.column, fault.path) for fault in found] == [
        (3, 8, "drivr"),
        (4, 16, "resyncSeconds"),
        (6, 9, "resources[0].name"),
        (7, 29, "resources[0].match[0].attr.idVendor"),
        (8, 40, "resources[0].nodes[0].permissions"),
        (10, 11, "resources[1].match[0]"),
        (11, 9, "resources[2].name"),
    ]
    assert [fault.file for fault in found] == ["f.yaml"] * 7


def test_a_message_in_full() -> None:
    fault = only_fault(document("match: [{subsystem: usb}]\nenv: {CODE: 0403}"))
    assert str(fault) == (
        "f.yaml:6:15: resources[0].env.CODE: found 0403, expected text in quotes. "
        "quote it: YAML reads 0403 as the number 259"
    )
    with pytest.raises(ConfigError) as caught:
        load("x: 1")
    assert caught.value.code == "INVALID_ARGUMENT"
    assert str(caught.value).count("\n") == 3  # x, apiVersion, kind, resources: one line each


@pytest.mark.parametrize(
    ("resource", "path", "found", "expected", "hint"),
    [
        # unknown keys
        ("match: [{subsytem: usb}]", "match[0].subsytem", "the key subsytem", "a known key", 'mean "subsystem"'),
        ("match: [{kernel: kvm}]", "match[0].kernel", "", "a known key", "sysname"),
        ("match: [{idVendor: 0403}]", "match[0].idVendor", "", "a known key", "attr: {idVendor: ...}"),
        ("node: []", "node", "", "a known key", 'mean "nodes"'),
        ("nodes: [{from: devnode, mountPath: /x}]", "nodes[0].mountPath", "", "a known key", "did you mean as?"),
        ("count: 4", "count", "", "a known key", "replicas: {count: ...}"),
        ("replicas: {max_per_request: 1, count: 1}", "replicas.max_per_request", "", "a known key", "maxPerRequest"),
        ("zzz: 1", "zzz", "the key zzz", "a known key", "known here: attributes"),
        ("health: [{nvml: {ignoreXid: [94]}}]", "health[0].nvml.ignoreXid", "", "a known key", 'mean "ignoreXids"'),
        # wrong kinds of value
        ("health: [{nvml: maybe}]", "health[0].nvml", "maybe", "true or a mapping", ""),
        ("env: []", "env", "an empty list", "a mapping", ""),
        ("env: {A: [b]}", "env.A", "a list", "text", ""),
        ("env: {A: 5}", "env.A", "5", "text", "quote it: YAML reads 5 as the number 5"),
        ("env: {A: 5.5}", "env.A", "5.5", "text", "quote it: YAML reads 5.5 as the number 5.5"),
        ("env: {A: true}", "env.A", "true", "text", "the boolean true"),
        ("env: {A: yes}", "env.A", "yes", "text in quotes", "YAML reads yes as the boolean true"),
        ("env: {A: 12:30}", "env.A", "12:30", "text in quotes", "the number 750"),
        ("env: {A: 1e10}", "env.A", "1e10", "text in quotes", "the number 1e+10"),
        ("env: {A: 0x1f}", "env.A", "0x1f", "text in quotes", "the number 31"),
        ("env: {A: 0o17}", "env.A", "0o17", "text in quotes", "the number 15"),
        ("env: {A: 1_000}", "env.A", "1_000", "text in quotes", "the number 1000"),
        ("env: {A: 2026-01-31}", "env.A", "2026-01-31", "text in quotes", "the date 2026-01-31"),
        ("env: {A: .inf}", "env.A", ".inf", "text in quotes", "the number inf"),
        ("env: {A: }", "env.A", "nothing", "text", ""),
        ("env:", "env", "nothing", "a mapping", ""),
        ("replicas: {count: '5'}", "replicas.count", '"5"', "a whole number", ""),
        ("replicas: {count: 010}", "replicas.count", "010", "a whole number", "YAML reads 010 as the number 8"),
        ("replicas: {count: 5.5}", "replicas.count", "5.5", "a whole number", ""),
        ("replicas: {count: 0}", "replicas.count", "0", "at least 1", ""),
        ("replicas: {count: 99999}", "replicas.count", "99999", "at most 50000", ""),
        ("replicas: {count: 99999999999999999999999}", "replicas.count", "", "a whole number", ""),
        ("replicas: {policy: packd, count: 1}", "replicas.policy", "packd", "'distributed' or 'packed'", ""),
        ("sharing: {allowMultipleAllocations: on}", "sharing.allowMultipleAllocations", "on", "true or false", ""),
        ("health: {nodeExists: true}", "health", "a mapping", "a list", ""),
        # A plain value in a mapping's or list's place: what to write instead.
        ("nodes: [/dev/ttyUSB0]", "nodes[0]", "/dev/ttyUSB0", "a mapping", "write {path: /dev/ttyUSB0}"),
        ("nodes: [5]", "nodes[0]", "5", "a mapping", ""),
        ("nodes: /dev/ttyUSB0", "nodes", "/dev/ttyUSB0", "a list", "write [/dev/ttyUSB0]"),
        ('id: "{pci}"', "id", '"{pci}"', "a list", 'write ["{pci}"]'),
        ("mounts: [/lib/firmware]", "mounts[0]", "/lib/firmware", "a mapping", "write {hostPath: /lib/firmware}"),
        ("replicas: 4", "replicas", "4", "a mapping", "write {count: 4}"),
        ("sharing: true", "sharing", "true", "a mapping", "write {allowMultipleAllocations: true}"),
        ("group: children", "group", "children", "a mapping", "write {with: children}"),
        ("deviceClass: gpus", "deviceClass", "gpus", "a mapping", "write {name: gpus}"),
        ("attributes: {a: attr:b}", "attributes.a", "attr:b", "a mapping", "write {from: attr:b}"),
        ("attributes: {a: fast one}", "attributes.a", "fast one", "a mapping", 'write {value: "fast one"}'),
        ("health: [nodeExists]", "health[0]", "nodeExists", "a mapping", ""),
        ("env: [A=1]", "env", "a list", "a mapping", "write NAME: VALUE, one on a line, without a dash"),
        ("match: [usb]", "match[0]", "usb", "a mapping", "write {subsystem: usb}"),
        ("match: [/dev/ttyUSB0]", "match[0]", "/dev/ttyUSB0", "a mapping", "write {devnode: /dev/ttyUSB0}"),
        # A path below /dev says which key is meant, whatever the word is.
        ("match: [{path: /dev/x}]", "match[0].path", "", "a known key", "did you mean devnode?"),
        ("match: [{thing: /dev/x}]", "match[0].thing", "", "a known key", "did you mean devnode?"),
        ("match: [{path: /dev/disk/by-id/x}]", "match[0].path", "", "a known key", "did you mean devlink?"),
        ("match: [{KERNELS: x}]", "match[0].KERNELS", "", "a known key", "did you mean parent: {sysname: ...}?"),
        ("nodes: [{hostPath: /dev/x}]", "nodes[0].hostPath", "", "a known key", "did you mean path?"),
        # names
        ("env: {1A: x}", "env.1A", "1A", "environment variable name", ""),
        ("attributes: {a-b: {value: 1}}", 'attributes."a-b"', "a-b", "letters, digits and '_'", "a_b"),
        ("attributes: {resource.kubernetes.io/numaNode: {value: 1}}", "", "", "outside resource.kubernetes.io", ""),
        ("deviceClass: {name: A_b}", "deviceClass.name", "A_b", "DNS subdomain", ""),
        ("claimConfig: {profiles: {A: {}}}", "claimConfig.profiles.A", "A", "lower-case", ""),
        # templates, checked now and not when a pod starts
        ("id: ['{serial}']", "id[0]", "{serial}", "a known field", "{attr:serial}"),
        ("id: ['{attr}']", "id[0]", "{attr}", "a known field", "{attr:NAME}"),
        ("id: ['{nvidia.uid}']", "id[0]", "{nvidia.uid}", "a known field", 'mean "nvidia.uuid"'),
        ("id: ['{name}']", "id[0]", "{name}", "known before the id", "follows from the id"),
        ("id: ['{sysname']", "id[0]", "{sysname", "balanced braces", "{{ and }}"),
        ("id: ['']", "id[0]", '""', "some text", ""),
        ("nodes: [{path: '/dev/{x}'}]", "nodes[0].path", "{x}", "a known field", ""),
        ("nodes: [{path: '{attr:x}/y'}]", "nodes[0].path", "{attr:x}/y", "an absolute path", ""),
        ("nodes: [{path: /dev/../etc/shadow}]", "nodes[0].path", "", "without '.' and '..'", ""),
        ("nodes: [{path: '/dev/{file:../x}'}]", "nodes[0].path", "", "absolute path", ""),
        ("attributes: {a: {from: '{attr:x}'}}", "attributes.a.from", "{attr:x}", "without braces", "write attr:x"),
        ("attributes: {a: {from: 'attr:../../x'}}", "attributes.a.from", "", "own sysfs directory", ""),
        ("health: [{file: {'/sys/{q}': 1}}]", "", "{q}", "a known field", ""),
        # nodes and mounts
        ("nodes: [{}]", "nodes[0]", "an empty mapping", "exactly one of from, path", ""),
        ("nodes: [{from: devnode, path: /dev/x}]", "nodes[0]", "", "exactly one of from, path", ""),
        ("nodes: [{from: devnode, permissions: mrw}]", "nodes[0].permissions", "mrw", '"rw"',
         "m lets a container create any device node"),
        ("nodes: [{from: devnode, permissions: rr}]", "nodes[0].permissions", "rr", '"rw"', ""),
        ("nodes: [{path: /dev/x}, {path: /dev/y, as: /dev/x}]", "nodes[1]", "", "of its own", "nodes[0] is already"),
        ("nodes: [{path: /dev/x}]\nmounts: [{hostPath: /y, containerPath: /dev/x}]", "mounts[0]", "", "of its own", ""),
        ("nodes: [{from: group}]", "nodes", "a list", "group:", "which companions"),
        ("nodes: [{from: group, as: /dev/one}]\ngroup: {with: children}", "nodes[0].as", "", "differs", "{devname}"),
        # patterns
        ("match: [{sysname: '[a'}]", "match[0].sysname", "[a", "a bracket that closes", ""),
        ("match: [{sysname: [a, {regex: '(a'}]}]", "match[0].sysname[1]", "(a", "a regular expression", "missing )"),
        ("match: [{sysname: {regx: x}}]", "match[0].sysname", "", "{regex:", ""),
        ("match: [{sysname: []}]", "match[0].sysname", "an empty list", "at least one pattern", ""),
        ("match: [{sysname: {a: }}]", "match[0].sysname", "", "{regex:", ""),
        ("match: [{attr: {idVendor: 403}}]", "match[0].attr.idVendor", "403", "four hexadecimal digits",
         "quote the id: YAML reads 0403 as the number 259"),
        ("match: [{attr: {../x: y}}]", "", "../x", "own sysfs directory", "parent:"),
        ("match: [{exists: [serial]}]", "match[0].exists[0]", "serial", "attr:NAME", ""),
        ("match: [{parent: {}}]", "match[0].parent", "", "at least one condition", ""),
        ("match: [{not: []}]", "match[0]", "", "at least one condition", "every device"),
        # udev rules
        ("match: [{rule: 'KERNEL==kvm'}]", "match[0].rule", "", 'KEY=="value"', "double quotes"),
        ("match: [{rule: 'KERNEL==\"kvm\", MODE=\"0666\"'}]", "match[0].rule", "MODE=", "== or !=", "assigns"),
        ("match: [{rule: 'ACTION==\"add\", KERNEL==\"kvm\"'}]", "match[0].rule", "ACTION", "describes", "not events"),
        ("match: [{rule: 'ATTRIBUTE{x}==\"y\"'}]", "match[0].rule", "ATTRIBUTE{x}", "a match key", "ATTR"),
        ("match: [{rule: 'KERNEL{x}==\"y\"'}]", "match[0].rule", "KERNEL{x}", "KERNEL without {}", ""),
        ("match: [{rule: 'ATTR==\"y\"'}]", "match[0].rule", "ATTR", "ATTR{NAME}", ""),
        ("match: [{rule: 'PROGRAM==\"/bin/x\"'}]", "match[0].rule", "PROGRAM", "describes the device", "no program"),
        ("match: [{rule: 'KERNEL==i\"kvm\"'}]", "match[0].rule", "", "a plain", "not supported"),
        ("match: [{rule: ''}]", "match[0].rule", '""', 'KEY=="value"', ""),
        # attributes and capacity
        ("attributes: {a: {}}", "attributes.a", "", "exactly one of from, value", ""),
        ("attributes: {a: {value: 1.2, type: version}}", "attributes.a.value", "1.2", "", ""),
        ("attributes: {a: {value: '1.02.3', type: version}}", "attributes.a.value", "", "three parts", "leading zeros"),
        ("attributes: {a: {value: 5, type: string}}", "attributes.a.value", "5", "type string", "quote text"),
        ("attributes: {a: {value: 9223372036854775808}}", "attributes.a.value", "", "", ""),
        (f"attributes: {{a: {{value: {'x' * 65}}}}}", "attributes.a.value", "", "1 to 64 characters", ""),
        ("attributes: {a: {value: x, map: {y: x}}}", "attributes.a.map", "", "no map beside a constant", ""),
        ("attributes: {a: {from: driver, type: bool, map: {yes: x}}}", "attributes.a.map.yes", "yes", "type bool", ""),
        ("attributes: {a: {from: driver, type: int, map: {x: x}}}", "attributes.a.map.x", "x", "type int", ""),
        ("attributes: {a: {from: driver, map: {y: []}}}", "attributes.a.map.y", "", "at least one pattern", ""),
        ("capacity: {m: {value: 4GB}}", "capacity.m.value", "4GB", "40Gi", ""),
        ("capacity: {m: {value: 8Ei}}", "capacity.m.value", "8Ei", "below 2^63", ""),
        ("capacity: {m: {from: 'attr:x', unit: MB, requestPolicy: {default: 1}}}", "capacity.m.requestPolicy", "",
         "no requestPolicy", "allowMultipleAllocations"),
        ("capacity: {m: {value: 8, unit: MiB}}", "capacity.m.unit", "MiB", "no unit", "40Gi"),
        ("attributes: {m: {value: 1}}\ncapacity: {m: {value: 1}}", "capacity.m", "m", "not an attribute as well", ""),
        # lanes, replicas, partitions
        ("lanes: {legacy: '*', dra: '*'}", "lanes", "a mapping", '"*" in one lane only', ""),
        ("lanes: {legacy: 60%, dra: 50%}", "lanes", "", "at most 100% together", ""),
        ("lanes: {legacy: 101%}", "lanes.legacy", "101%", "percentage", ""),
        ("lanes: {legacy: -1}", "lanes.legacy", "-1", "0 to", ""),
        ("lanes: {legacy: 1, minLegacy: 2}", "lanes.legacy", "1", "minLegacy (2)", "raise lanes.legacy"),
        ("lanes: {dra: {match: {sysnam: x}}}", "lanes.dra.match.sysnam", "", "a known key", "sysname"),
        ("replicas: {count: 4}\nlanes: {dra: 1}", "lanes.dra", "1", "legacy lane only", "the whole device"),
        ("replicas: {count: 4, maxPerRequest: 5}", "replicas.maxPerRequest", "5", "at most count (4)", ""),
        ("partition: {of: example.com/thing}", "partition.of", "", "another resource", ""),
        ("partition: {of: example.com/other}", "partition.of", "", "of this file", "known: example.com/thing"),
        ("partition: {of: a.com/b, counters: {x: {total: 2, each: 3}}}", "partition.counters.x.each", "3", "total", ""),
        # what a container gets
        ("nodes: [{from: devnode, as: /dev/serial/}]", "nodes[0].as", "/dev/serial/", "without a slash at its end",
         "/dev/serial/{devname}"),
        ("nodes: [{path: /}]", "nodes[0].path", "/", "without a slash at its end", ""),
        ("mounts: [{hostPath: /}]", "mounts[0].containerPath", "", "below / in the container", "give containerPath"),
        ("mounts: [{hostPath: /opt, containerPath: /}]", "mounts[0].containerPath", "/", "below /", ""),
        # hooks and claims
        ("preStart: {command: [reset.sh]}", "preStart.command[0]", "reset.sh", "an absolute path", "no shell"),
        ("preStart: {command: [/bin/x], timeoutSeconds: 30}", "preStart.timeoutSeconds", "30", "at most 25", ""),
        ("preStart: {command: []}", "preStart.command", "an empty list", "at least 1", ""),
        ("claimConfig: {defaultProfile: fst, profiles: {fast: {}}}", "claimConfig.defaultProfile", "fst", "", "fast"),
        ("health: [{}]", "health[0]", "", "exactly one of", ""),
        ("health: [{nodeExists: true, driverBound: x}]", "health[0]", "", "exactly one of", ""),
    ],
)  # fmt: skip
def test_one_fault(resource: str, path: str, found: str, expected: str, hint: str) -> None:
    text = resource if resource.startswith("match:") else "match: [{subsystem: usb}]\n" + resource
    fault = only_fault(document(text))
    assert fault.path.startswith("resources[0].")
    if path:
        assert fault.path == f"resources[0].{path}"
    assert found in fault.found
    assert expected in fault.expected
    assert hint in fault.hint
    assert fault.line >= 5
    assert str(fault).isprintable()


def test_policy_of_shared_capacity() -> None:
    shared = "sharing: {allowMultipleAllocations: true}\ncapacity: {m: {value: 40Gi, requestPolicy: %s}}"
    loaded(shared % "{default: 1Gi, validRange: {min: 1Gi, max: 40Gi, step: 1Gi}}")
    loaded(shared % "{default: 1Gi, validValues: [1Gi, 2Gi]}")
    loaded(shared % "{default: all, validRange: {min: 1Mi, step: 1Mi}}")
    for policy in ("{default: 3Gi, validValues: [1Gi]}", "{default: 1, validValues: [2, 1]}", "{}",
                   "{default: 5, validRange: {min: 6}}", "{default: 5, validRange: {min: 2, max: 1}}",
                   "{default: 5, validRange: {min: 2, step: 2}}", "{default: 1, validRange: {min: 1, step: 0}}",
                   "{default: 1, validValues: [1], validRange: {min: 1}}", "{default: alle}",
                   "{default: all, validValues: [1]}", "{default: all, validRange: {min: 2, max: 1}}"):  # fmt: skip
        assert faults(document("match: [{subsystem: usb}]\n" + shared % policy))


def test_too_many_attributes() -> None:
    room = ATTRIBUTES_AND_CAPACITY_MAX - RESERVED_ATTRIBUTES
    names = ", ".join(f"a{n}: {{value: {n}}}" for n in range(room))
    loaded(f"attributes: {{{names}, type: {{value: x}}}}")  # in place of the one that is published anyway
    fault = only_fault(document(f"match: [{{subsystem: usb}}]\nattributes: {{{names}, one: {{value: 1}}}}"))
    assert (fault.found, fault.path) == (str(room + 1), "resources[0].attributes")
    assert f"at most {room} " in fault.expected


@pytest.mark.parametrize(
    ("head", "path", "expected"),
    [
        ("driver: GPU.example.com\n", "driver", "a lower-case domain name"),
        ("driver: gpu\n", "driver", "a lower-case domain name"),
        (f"driver: {'a' * 60}.com\n", "driver", "at most 63"),
        ("dra: {pool: A}\n", "dra.pool", "DNS subdomains"),
        ("dra: {enabled: maybe}\n", "dra.enabled", "true or false or 'auto'"),
        ("dra: {taints: {faulty: No}}\n", "dra.taints.faulty", "'NoSchedule'"),
        ("udevEvents: both\n", "udevEvents", "'auto', 'udev' or 'kernel'"),
        ("legacy: {inject: cri}\n", "legacy.inject", "'cdi' or 'devices'"),
        ("resyncSeconds: 1e2\n", "resyncSeconds", "a whole number"),
    ],
)
def test_global_faults(head: str, path: str, expected: str) -> None:
    fault = only_fault(document("match: [{subsystem: usb}]", head=head))
    assert fault.path == path
    assert expected in fault.expected


def test_a_dra_lane_needs_dra() -> None:
    fault = only_fault(document("match: [{subsystem: usb}]\nlanes: {dra: 1}", head="dra: {enabled: false}\n"))
    assert fault.path == "resources[0].lanes.dra"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD.replace("v1alpha1", "v2"), "'drabridge/v1alpha1'"),
        (GOOD.replace("AgentConfig", "Pod"), "'AgentConfig'"),
        (HEAD + "resources: []\n", "at least 1"),
    ],
)
def test_other_kinds(text: str, expected: str) -> None:
    assert expected in only_fault(text).expected


def test_every_extended_resource_rule() -> None:
    for name in ("gpu", "a.com/", "/b", "a.com/b/c", "A.com/b", "a.com/-b", "a.com/b-", "requests.a.com/b",
                 "kubernetes.io/b", "x.kubernetes.io/b", f"a.com/{'b' * 64}", f"{'a.' * 122}c/b", "_.c/d"):  # fmt: skip
        text = GOOD.replace("example.com/thing", name)
        assert only_fault(text).path == "resources[0].name", name
    for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "a/b", f"a.com/{'b' * 63}"):
        load(GOOD.replace("example.com/thing", name))


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "fifo").parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "big").write_bytes(b"#" * (10 << 20))
    (tmp_path / "latin1").write_bytes(GOOD.encode() + b"# \xe9\n")
    (tmp_path / "empty").write_bytes(b"")
    for name, found in [
        ("missing", "no file"),
        ("fifo", "it is no regular file"),
        (".", "it is no regular file"),
        ("/dev/zero", "it is no regular file"),
        ("big", "larger than 1,048,576 bytes"),
        ("latin1", "not UTF-8"),
        ("empty", "an empty file"),
        ("nul\0", "no file can have this name"),
        ("n" * 5_000, "File name too long"),
    ]:
        with pytest.raises(ConfigErrors) as caught:
            load(tmp_path / name)
        (fault,) = caught.value.faults
        assert found in fault.found
        assert name == "/dev/zero" or len(name) > 4_000 or str(tmp_path).split("/")[-1] in str(fault)


# --- anything at all --------------------------------------------------------------------------------------------------

YAMLISH = st.text(st.sampled_from("abc:-[]{}\"'\n ,&*#!|>%@`?0159.~<=\t\\") | st.characters(codec=None), max_size=60)
KEYS = ["apiVersion", "resources", "name", "match", "attr", "not", "parent", "lanes", "dra", "env", "nodes", "id"]
TREES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.sampled_from(["*", "50%", "{attr:x}", "a/b"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def _error_of(source: str | bytes) -> ConfigErrors | None:
    """Any other exception fails the test."""
    try:
        load(source)
    except ConfigErrors as error:
        return error
    return None


def _loads_or_complains(source: str | bytes) -> None:
    error = _error_of(source)
    assert error is None or error.faults
    assert error is None or all(str(fault).isprintable() for fault in error.faults)


@given(YAMLISH)
def test_any_text(text: str) -> None:
    _loads_or_complains(text)
    _loads_or_complains(HEAD + text)
    _loads_or_complains(GOOD + "  " + text)


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    _loads_or_complains(data)


@given(TREES)
def test_any_tree(tree: object) -> None:
    _loads_or_complains(json.dumps(tree))
    _loads_or_complains(HEAD + "resources: " + json.dumps(tree))
    _loads_or_complains(HEAD + "resources: [{name: a.com/b, match: " + json.dumps(tree) + "}]")


def test_cdi_devices_of_other_programs() -> None:
    name = "cdiDevices: ['nvidia.com/gpu={nvidia.uuid}']\n"
    (resource,) = loaded(name + "cdiFallback: {nodes: [{path: '/dev/nvidia{nvidia.minor}'}], env: {A: b}}").resources
    assert list(map(str, resource.cdi_devices)) == ["nvidia.com/gpu={nvidia.uuid}"]
    assert resource.cdi_fallback is not None
    assert [str(node.path) for node in resource.cdi_fallback.nodes] == ["/dev/nvidia{nvidia.minor}"]


CDI = "cdiDevices: [nvidia.com/gpu=a]\n"


@pytest.mark.parametrize(
    ("resource", "path", "words"),
    [
        ("cdiDevices: ['{nvidia.uuid}']", "cdiDevices[0]", "for example nvidia.com/gpu={nvidia.uuid}"),
        ("cdiDevices: ['nvidia.com/{sysname}=a']", "cdiDevices[0]", "fields only after the equals sign"),
        ("cdiDevices: ['nvidia.com/gpu']", "cdiDevices[0]", "vendor/class=name"),
        ("cdiDevices: ['nvidia.com/gpu=']", "cdiDevices[0]", "the name of a CDI device after the equals sign"),
        ("cdiDevices: ['nvidia.com/gpu=a b']", "cdiDevices[0]", "letters, digits"),
        ("cdiDevices: ['nvidia.com/gpu={uuid}']", "cdiDevices[0]", "a known field"),
        ("cdiDevices: [a.com/b=c, a.com/b=c]", "cdiDevices[1]", "each CDI device once"),
        ("cdiDevices: [drabridge.example.com/device=x]", "cdiDevices[0]", "a CDI device of somebody else"),
        ("cdiFallback: {nodes: [{path: /dev/a}]}", "cdiFallback", "cdiDevices beside cdiFallback"),
        (CDI + "cdiFallback: {mounts: [{hostPath: /a}, {hostPath: /a}]}", "cdiFallback.mounts[1]", "of its own"),
        (CDI + "inject: devices", "inject", "only a runtime with CDI"),
        (
            CDI + "claimConfig: {profiles: {ro: {permissions: r}}}",
            "claimConfig.profiles.ro.permissions",
            "what their file says",
        ),
    ],
)
def test_cdi_devices_that_cannot_be(resource: str, path: str, words: str) -> None:
    fault = only_fault(document("match: [{subsystem: usb}]\n" + resource))
    assert fault.path == f"resources[0].{path}"
    assert words in f"{fault.expected}. {fault.hint}"


def test_a_runtime_without_cdi_takes_no_cdi_devices() -> None:
    body = "match: [{subsystem: usb}]\n" + CDI
    fault = only_fault(document(body, head="legacy: {inject: devices}\n"))
    assert (fault.path, fault.expected) == ("resources[0].cdiDevices", "legacy.inject: cdi with cdiDevices")
    document_of_another = document(body + "inject: cdi", head="legacy: {inject: devices}\n")
    assert load(document_of_another).resources[0].cdi_devices
