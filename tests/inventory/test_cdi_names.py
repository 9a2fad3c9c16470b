"""What a CDI file defines, and which of several files' devices a runtime finds: the rules of the CDI library."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from drabridge.inventory.cdi_file import (
    DEPTH_MAX,
    EVENTS_MAX,
    FILE_BYTES_MAX,
    NAMES_MAX,
    SpecError,
    SpecNames,
    read_spec,
)
from drabridge.inventory.cdi_names import CdiNames, resolve

EDITS = {"env": ["A=1"]}
GPU = "nvidia.com/gpu"


def spec(*names: str, **more: Any) -> dict[str, Any]:
    devices = [{"name": name, "containerEdits": EDITS} for name in names]
    return {"cdiVersion": "0.5.0", "kind": GPU, "devices": devices, **more}


# As nvidia-ctk 1.17 writes it: quoted names, edits for all devices below, hooks with arguments.
NVIDIA = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args: [nvidia-cdi-hook, create-symlinks, --link, "libcuda.so.1::/usr/lib/libcuda.so"]
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-4a1f6e0c-1111-2222-3333-444455556666
kind: nvidia.com/gpu
"""


def test_a_file_as_nvidia_ctk_writes_it() -> None:
    found = SpecNames(GPU, ("0", "GPU-4a1f6e0c-1111-2222-3333-444455556666"))
    assert read_spec(NVIDIA.encode()) == found
    assert read_spec(json.dumps(yaml.safe_load(NVIDIA)).encode()) == found  # JSON is YAML


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "yaml"])
@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (spec(), "no devices"),
        (spec("a", cdiVersion="latest"), "cdiVersion 'latest' is no version"),
        (spec("a", kind="gpu"), "kind 'gpu' is not vendor/class"),
        (spec("a", kind="1a.com/gpu"), "is not vendor/class"),
        (spec("a", "a"), "the device 'a' twice"),
        (spec("a", "b c"), "'b c' is not the name of a CDI device"),
        (spec("a", "-b"), "'-b' is not the name of a CDI device"),
        (spec(devices=[{"name": "a", "containerEdits": {}}]), "'a' has no containerEdits"),
        (spec(devices=[{"name": "a"}]), "'a' has no containerEdits"),
        (spec(devices=[{"containerEdits": EDITS}]), "a device has no name"),
        (spec(devices={"a": 1}), "a list of devices"),
        (spec(devices=["a"]), "a list of devices"),
        ({"kind": GPU, "devices": []}, "no cdiVersion"),
        ({"cdiVersion": "0.5.0", "devices": []}, "no kind"),
        ([], "not a mapping"),
        ("text", "not a mapping"),
        (None, "not a mapping"),
    ],
)
def test_a_file_that_runtimes_refuse(document: Any, reason: str, as_json: bool) -> None:
    data = json.dumps(document) if as_json else yaml.safe_dump(document)
    with pytest.raises(SpecError, match=reason):
        read_spec(data.encode())


HEAD = b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n"


BAD_YAML = {
    "empty": (b"", "no cdiVersion"),
    "zeros": (b"\0\0\0", "not allowed"),
    "not UTF-8": (b"a: \xff\xfa\xff", "UTF-8"),
    "tab": (b"\ta: b", "line 1"),
    "torn at a line": (NVIDIA.encode()[:-40], "no kind"),
    "torn in a line": (HEAD + b"devices: [{name: a, containerE", "line"),
    "key twice": (HEAD + b"kind: a.com/b\n", "key 'kind' twice"),
    "name twice": (HEAD + b"devices: [{name: a, name: b, containerEdits: {env: [A=1]}}]", "key 'name' twice"),
    "key that is a list": (HEAD + b"? [a]\n: b\n", "a list or a mapping as a key"),
    "alias as kind": (b"x: &x nvidia.com/gpu\ncdiVersion: 0.5.0\nkind: *x\n", r"alias \*x"),
    "alias as device": (b"x: &x {name: a}\ndevices: [*x]\n", r"alias \*x"),
    "alias as name": (b"x: &x a\ndevices: [{name: *x}]\n", r"alias \*x"),
    "merged device": (b"x: &x {name: a}\n" + HEAD + b"devices: [{<<: *x}]\n", "a device has no name"),
    "deep": (b"a: " + b"[" * (DEPTH_MAX + 1), "deep"),
    "deep list": (b"[" * 1_000_000, "not a mapping|depth"),
    "deep mapping": (b"{a: " * 1_000_000, "deep|depth"),
    "deep JSON": (b'{"a":' * 100_000, "deep|depth"),
    "torn JSON": (b'{"cdiVersion": "0.5.0", "kind": ', "line"),
    "many values": (b"a: [" + b"1," * EVENTS_MAX, "values"),
    "huge": (b"a" * (FILE_BYTES_MAX + 1), "more than 4 MiB"),
}


@pytest.mark.parametrize("what", BAD_YAML)
def test_yaml_that_is_torn_or_an_attack(what: str) -> None:
    data, reason = BAD_YAML[what]
    with pytest.raises(SpecError, match=reason):
        read_spec(data)


def test_too_many_devices() -> None:
    many = spec(*map(str, range(NAMES_MAX + 1)))
    with pytest.raises(SpecError, match=f"more than {NAMES_MAX} devices"):
        read_spec(json.dumps(many).encode())


def test_aliases_are_not_written_out() -> None:
    """The bomb of aliases of aliases costs as much as its text; edits may be aliases, as people write them by hand."""
    bomb = b"a0: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 200))
    device = b"devices: [{name: a, containerEdits: &e {env: [A=1]}}, {name: b, containerEdits: *e}]\n"
    assert read_spec(bomb + HEAD + device).names == ("a", "b")


def test_only_the_first_document_counts() -> None:
    assert read_spec(NVIDIA.encode() + b"---\nnonsense: [").kind == GPU


A, B = "nvidia.com/gpu=a", "nvidia.com/gpu=b"


@pytest.mark.parametrize(
    ("etc", "run", "places", "conflicts"),
    [
        ([("x", "a")], [], {A: "/etc/cdi/x"}, set()),
        ([("x", "a")], [("y", "b")], {A: "/etc/cdi/x", B: "/run/cdi/y"}, set()),
        ([("x", "a")], [("y", "a")], {A: "/run/cdi/y"}, set()),  # the later directory goes first
        ([("x", "a"), ("y", "a b")], [], {B: "/etc/cdi/y"}, {A}),
        ([], [("x", "a"), ("y", "a")], {}, {A}),
        ([("x", "a"), ("y", "a")], [("z", "a")], {}, {A}),  # even then: pkg/cdi/cache.go deletes it at the end
        ([("z", "a")], [("x", "a"), ("y", "a")], {}, {A}),
    ],
)
def test_which_devices_a_runtime_finds(
    etc: list[tuple[str, str]], run: list[tuple[str, str]], places: dict[str, str], conflicts: set[str]
) -> None:
    listed = [
        (directory, [(f"{directory}/{name}", SpecNames(GPU, tuple(names.split()))) for name, names in files])
        for directory, files in (("/etc/cdi", etc), ("/run/cdi", run))
    ]
    found = resolve(listed, ())
    assert found.places == places
    assert found.conflicts.keys() == conflicts
    for name in (A, B):
        assert bool(found.missing(name)) == (name not in places)


def test_why_a_device_is_missing_says_what_to_do() -> None:
    none = CdiNames(("/etc/cdi", "/var/run/cdi"))
    assert none.missing(A) == (
        "CDI device nvidia.com/gpu=a is in no file of /etc/cdi, /var/run/cdi: "
        "run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, or restart nvidia-cdi-refresh"
    )
    assert none.missing("a.com/b=c").endswith(": its vendor's program writes that file")
    indices = CdiNames(none.directories, places={f"nvidia.com/gpu={n}": "/etc/cdi/x" for n in range(8)} | {B: "x"})
    assert indices.missing(A).endswith("nvidia-cdi-refresh; files have the names 0, 1, 2")
    by_uuid = "cdi generate --device-name-strategy=uuid --output="  # else it would write the same names again
    assert all(by_uuid in indices.missing(f"nvidia.com/gpu={uuid}") for uuid in ("GPU-1", "MIG-1"))
    twice = CdiNames(none.directories, conflicts={A: ("/etc/cdi/x.yaml", "/etc/cdi/y.yaml")})
    assert twice.missing(A) == (
        "CDI device nvidia.com/gpu=a is in /etc/cdi/x.yaml and in /etc/cdi/y.yaml, so runtimes take neither: "
        "remove one of them"
    )
    no_text = CdiNames(none.directories, conflicts={A: ("/etc/cdi/\udcff.yaml", "/etc/cdi/y.yaml")})
    assert no_text.missing(A).encode("utf-8")  # as kubelet is told
    torn = CdiNames(none.directories, unusable=("/etc/cdi/nvidia.yaml is not used: it has no kind",))
    assert torn.missing(A).endswith("; /etc/cdi/nvidia.yaml is not used: it has no kind")
