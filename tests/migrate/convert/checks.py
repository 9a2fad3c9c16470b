"""What tests of conversions share: settings, and what must hold of every conversion."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from drabridge.migrate.convert.conversion import Conversion, convert, reverse
from drabridge.migrate.convert.kinds import MODELS, Form, manifests, pod_specs
from drabridge.migrate.convert.settings import Device, Published, Settings
from drabridge.migrate.convert.undo import BEGIN
from drabridge.migrate.convert.yaml_nodes import parse, value
from tests.support.waiting import HANG_SECONDS

PUBLISHED = Published(
    "gpu.example.com",
    texts=frozenset({"productName", "architecture"}),
    versions=frozenset({"cudaComputeCapability", "driverVersion"}),
    capacity=frozenset({"memory"}),
)
SETTINGS = Settings(
    {
        "nvidia.com/gpu": Device("gpu.example.com", PUBLISHED),
        "amd.com/gpu": Device("amd.example.com"),
        "rdma/hca_shared": Device("rdma.example.com"),
        "devices.kubevirt.io/kvm": Device("kvm.example.com"),
        "smarter-devices/ttyUSB0": Device("serial.example.com"),
        "radio.example.com/rtl-sdr": Device("radio.example.com"),
        "nvidia.com/TU104GL_Tesla_T4": Device("vfio.example.com"),
    }
)
RESOURCE = ("--class", "nvidia.com/gpu=gpu.example.com")
CONVERT = ("migrate", "convert")
# Lines that a conversion may change: what is not of these words must stay.
_MAY_CHANGE = re.compile(
    r"limits|requests|resources|[cC]laims|nodeSelector|draDriverClass|draEnabled|claimName|requestName|deviceName|draResources|requiredDuring|[aA]ffinity|matchExpressions|operator:|values:"
    + "".join(f"|{re.escape(name)}" for name in [*SETTINGS.devices, "nvidia.com/gpu"])
)

_OF_RUNTIMES = frozenset({"supportedModelFormats", "multiModel", "protocolVersions", "workerSpec"})  # of KServe

Json = dict[str, Any]


def untouched(text: str) -> list[str]:
    """The lines of a text that no conversion has a reason to change, with their line breaks."""
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip() and not _MAY_CHANGE.search(line)]


def converted_lines(text: str) -> list[str]:
    """The lines of a converted text before what was put at its end."""
    return text.partition(BEGIN)[0].replace("\r\n", "\n").split("\n")


def is_in_order(wanted: list[str], lines: list[str]) -> bool:
    """Whether all wanted lines are there, in their order."""
    rest = iter(lines)
    return all(any(line == one for one in rest) for line in wanted)


def check(text: str, settings: Settings = SETTINGS) -> Conversion:
    """Convert a text and assert what must hold of every conversion; return it."""
    found = convert(text, settings)
    if found.pods:
        assert is_in_order(untouched(text), converted_lines(found.text))
        assert found.text.count("\r") == (found.text.count("\n") if "\r\n" in text else 0)
    else:
        assert found.text == text
    assert convert(found.text, settings).text == found.text
    back = reverse(found.text, found.undo)
    assert not back.findings
    assert back.text == text
    return found


def pods_of(text: str, settings: Settings = SETTINGS) -> Iterator[Json]:
    """Every pod spec of a text, as an object of kind Pod."""
    loaded = [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one is not None]
    for document, root in zip(loaded, parse(text.removeprefix("\ufeff")), strict=True):
        for manifest in manifests(value(root)):
            for spec in pod_specs(manifest, settings.paths):
                found = document
                for part in spec.path:
                    found = found[part]
                yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": _pod(found, spec.form)}


def _pod(found: Json, form: Form) -> Json:
    """What the controller makes of parts of a pod."""
    if form is Form.POD:
        return {key: child for key, child in found.items() if key not in _OF_RUNTIMES}
    if form is Form.VM:
        devices = [one for key in ("gpus", "hostDevices") for one in found["domain"]["devices"].get(key, ())]
        claims = [{"name": one["claimName"], "request": one["requestName"]} for one in devices if "claimName" in one]
        limits = {one["deviceName"]: 1 for one in devices if "deviceName" in one}
        compute = {"name": "compute", "image": "v", "resources": {"limits": limits, "claims": claims}}
        return {"resourceClaims": found.get("resourceClaims", []), "containers": [compute]}
    if form is Form.VALUES:
        container = {"name": "ray", "image": "r", "resources": found["resources"]}
        return {"resourceClaims": found.get("resourceClaims", []), "containers": [container]}
    if form is Form.OLLAMA:
        return {"containers": [{"name": "ollama", "image": "o"}]}
    if form is Form.NIM:
        claims = [{"name": f"claim-{number}", **one} for number, one in enumerate(found.get("draResources", ()))]
        resources = {**found.get("resources", {}), "claims": [{"name": one["name"]} for one in claims]}
        return {"resourceClaims": claims, "containers": [{"name": "nim", "image": "n", "resources": resources}]}
    if form is Form.MODEL:
        kind = next(one for one in MODELS if one in found)
        model = {key: child for key, child in found[kind].items() if key == "resources"}
        containers = [{"name": "kserve-container", "image": "m", **model}, *found.get("containers", [])]
        return {**{key: child for key, child in found.items() if key == "resourceClaims"}, "containers": containers}
    containers = [{**found[key], "name": "main"} for key in ("container", "script") if key in found]
    containers += [*found.get("containerSet", {}).get("containers", []), *found.get("sidecars", [])]
    for one in containers:
        one.pop("source", None)
    return {
        **json.loads(found.get("podSpecPatch", "{}")),
        "containers": containers,
        "initContainers": found.get("initContainers", []),
    }


def templates_of(text: str) -> list[Json]:
    """Every ResourceClaimTemplate of a text."""
    documents = [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if isinstance(one, dict)]
    return [one for one in documents if one.get("kind") == "ResourceClaimTemplate"]


def filtered(text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Let the command read a text from standard input."""
    command = [sys.executable, "-m", "drabridge.cli", *CONVERT, *arguments]
    return subprocess.run(command, input=text, capture_output=True, timeout=5 * HANG_SECONDS, check=False)
