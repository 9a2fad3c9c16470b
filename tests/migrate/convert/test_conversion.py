"""What a conversion does to single manifests, and what it says about those it cannot convert."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from drabridge.migrate.convert.conversion import Conversion, Source, convert, convert_group, text_of
from drabridge.migrate.convert.settings import Device, Finding, Level, Settings
from tests.migrate.convert.checks import SETTINGS, check, converted_lines, templates_of

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  containers:
  - name: main
    image: busybox
    resources: { limits: { nvidia.com/gpu: 1 } }   # why
"""
CONVERTED = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  resourceClaims:
  - name: gpu
    resourceClaimTemplateName: nvidia-gpu-1
  containers:
  - name: main
    image: busybox
    resources: { claims: [{name: gpu}] }   # why
"""
TEMPLATE = """\
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: nvidia-gpu-1
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.example.com
"""


def pod(containers: str, spec: str = "") -> str:
    """A pod whose containers (and init containers) are given as YAML, one flow mapping a line."""
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{spec}  containers:\n{containers}"


def container(name: str, count: object) -> str:
    return f"  - {{name: {name}, image: busybox, resources: {{limits: {{nvidia.com/gpu: {count}}}}}}}\n"


def yaml_as_json(text: str) -> str:
    return json.dumps(yaml.safe_load(text))


def only(found: Conversion, level: Level = Level.LEFT) -> Finding:
    """The one finding of a level."""
    (finding,) = (one for one in found.findings if one.level is level)
    return finding


def claims_of(text: str) -> dict[str, str]:
    """The pod's claims: name -> template."""
    return dict(re.findall(r"- name: (\S+)\n +resourceClaimTemplateName: (\S+)", text))


def used_by(text: str) -> dict[str, list[str]]:
    """Which claims each container of a pod uses."""
    found = re.findall(r"name: ([\w-]+), image: busybox.*?claims: \[(.*?)\]", text)
    return {name: re.findall(r"name: ([\w-]+)", claims) for name, claims in found}


def test_only_the_lines_that_must_change_do() -> None:
    text = check(POD).text
    assert "\n".join(converted_lines(text)) == CONVERTED
    assert TEMPLATE in text


def test_a_filter_adds_templates_and_nothing_else() -> None:
    assert convert(POD, SETTINGS, can_undo=False).text == CONVERTED + TEMPLATE


def test_a_finding_says_place_object_reason_and_what_to_do() -> None:
    found = check(POD.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 500m"))
    assert found.unfinished
    assert str(only(found)) == (
        "left: 9: Pod p: nvidia.com/gpu: 500m is no whole number of devices. "
        "A claim holds whole devices; for shares of one, publish them with allowMultipleAllocations"
    )


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (POD.replace("1 } }", "33 } }"), 9, "one claim holds at most 32 devices"),
        (POD.replace("1 } }", "1 }, requests: {nvidia.com/gpu: 2} }"), 9, "requests say 2 of nvidia.com/gpu"),
        (POD.replace("1 } }", '"{{ .Values.gpus }}" } }'), 9, "{{ .Values.gpus }} is no whole number"),
        (POD.replace("spec:", "spec:\n  nodeName: a"), 6, "the pod names its node"),
        (POD.replace("spec:", "spec:\n  resourceClaims:"), 6, "resourceClaims has no value"),
        (POD.replace("kind: Pod", "kind: Gadget").replace("    image: busybox\n", ""), 8, "is in no pod template"),
        (POD.partition("spec:\n")[2].replace("  containers", "containers"), 4, "outside any Kubernetes object"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_stays_and_is_named(text: str, line: int, said: str) -> None:
    found = check(text)
    assert found.text == text
    assert (only(found).line, bool(only(found).hint)) == (line, True)
    assert said in only(found).message


def test_init_containers_use_the_devices_of_app_containers() -> None:
    inits = f"  initContainers:\n{container('one', 1)}{container('two', 2)}"
    text = check(pod(container("a", 1) + container("b", 1), inits)).text
    assert claims_of(text) == {"gpu": "nvidia-gpu-1", "gpu-b": "nvidia-gpu-1"}
    assert used_by(text) == {"one": ["gpu"], "two": ["gpu", "gpu-b"], "a": ["gpu"], "b": ["gpu-b"]}


def test_a_claim_grows_to_what_an_init_container_needs() -> None:
    found = check(pod(container("app", 1), f"  initContainers:\n{container('init', 4)}"))
    assert claims_of(found.text) == {"gpu": "nvidia-gpu-4"}
    assert "sees all of them" in only(found, Level.NOTE).hint


def test_a_sidecar_has_a_claim_of_its_own() -> None:
    sidecar = container("side", 1).replace("image", "restartPolicy: Always, image")
    text = check(pod(container("app", 1), f"  initContainers:\n{sidecar}")).text
    assert claims_of(text) == {"gpu": "nvidia-gpu-1", "gpu-side": "nvidia-gpu-1"}


def test_names_that_are_taken_are_not_used_again() -> None:
    taken = "  resourceClaims: [{name: gpu, resourceClaimName: x}, {name: gpu-app, resourceClaimName: y}]\n"
    text = check(pod(container("app", 1), taken)).text
    assert "{name: gpu-2, resourceClaimTemplateName: nvidia-gpu-1}" in text
    assert used_by(text) == {"app": ["gpu-2"]}


def test_long_and_strange_names_become_valid_ones() -> None:
    resource = f"hardware.example.com/{'Very_Long.' * 6}x"
    settings = Settings({resource: Device("long.example.com")})
    text = check(
        pod(container("m" * 63, 1) + container("n" * 63, 1)).replace("nvidia.com/gpu", resource), settings
    ).text
    names = [name for pair in claims_of(text).items() for name in pair]
    names += [one["metadata"]["name"] for one in templates_of(text)]
    assert len(names) == 5
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names)
    words = Settings({"example.com/null": Device("true")})
    (template,) = templates_of(check(POD.replace("nvidia.com/gpu", "example.com/null"), words).text)
    assert template["spec"]["spec"]["devices"]["requests"] == [{"name": "null", "exactly": {"deviceClassName": "true"}}]


def test_a_kind_of_ones_own_by_path() -> None:
    text = POD.replace("kind: Pod", "kind: Fleet").replace("    image: busybox\n", "")
    assert only(check(text))
    assert check(text, Settings(SETTINGS.devices, {"Fleet": ("spec",)})).pods
    nested = text.replace("spec:\n", "spec:\n groups:\n - template:\n    spec:\n").replace(
        "  containers", "     containers"
    )
    nested = nested.replace("  - name", "     - name").replace("    resources", "       resources")
    assert check(nested, Settings(SETTINGS.devices, {"Fleet": ("spec.groups.*.template",)})).pods


def test_a_resource_that_was_not_named_stays_with_a_note() -> None:
    found = check(POD, Settings({"amd.com/gpu": Device("amd")}))
    assert not found.unfinished
    assert "add --class nvidia.com/gpu=CLASS" in only(found, Level.NOTE).hint


def test_labels_stay_where_nobody_knows_what_devices_publish() -> None:
    text = pod(container("app", 1), "  nodeSelector: {nvidia.com/gpu.product: Tesla-T4}\n")
    found = check(text, Settings({"nvidia.com/gpu": Device("gpu")}))
    assert "nodeSelector: {nvidia.com/gpu.product: Tesla-T4}" in found.text
    assert "--config" in only(found, Level.NOTE).hint


def test_a_label_that_no_attribute_says_stays_with_a_note() -> None:
    found = check(pod(container("app", 1), "  nodeSelector: {nvidia.com/gpu.product: Tesla-T4-SHARED}\n"))
    assert "nodeSelector: {nvidia.com/gpu.product: Tesla-T4-SHARED}" in found.text
    assert "see that the nodes keep it" in only(found, Level.NOTE).hint


def test_a_share_of_a_device_becomes_a_claim_only_where_claims_share() -> None:
    found = check(POD, Settings({"nvidia.com/gpu": Device("gpu", shares=4)}))
    assert found.text == POD
    assert "nvidia.com/gpu counts shares, 4 of each device" in only(found).message
    assert "sharing.allowMultipleAllocations" in only(found).hint
    shared = Settings({"nvidia.com/gpu": Device("gpu", shares=4, claims_share=True)})
    assert claims_of(check(POD, shared).text) == {"gpu": "nvidia-gpu-1"}
    found = check(POD.replace("gpu: 1", "gpu: 2"), shared)
    assert "may be 2 times the same one" in only(found, Level.NOTE).message


# --- anchors, aliases, comments -------------------------------------------------------------------------------------


def test_a_comment_above_a_key_stays_above_it() -> None:
    text = check(POD.replace("  containers", "  # the only one\n  containers")).text
    assert "  # the only one\n  containers:\n" in text


def two_pods(first: str, second: str) -> str:
    """A List of two pods of one container each; the containers' resources are given."""
    items = "".join(
        f"- apiVersion: v1\n  kind: Pod\n  metadata: {{name: p{number}}}\n  spec:\n    containers:\n"
        f"    - name: main\n      image: busybox\n      resources: {resources}\n"
        for number, resources in enumerate([first, second])
    )
    return f"apiVersion: v1\nkind: List\nitems:\n{items}"


@pytest.mark.parametrize("claims", ["", ", claims: [{name: net}]"])
def test_pods_may_share_what_becomes_the_same(claims: str) -> None:
    found = check(two_pods(f"&r {{limits: {{nvidia.com/gpu: 1, cpu: 1}}{claims}}}", "*r"))
    assert len(found.pods) == 2
    lines = "\n".join(converted_lines(found.text))
    assert lines.count("{name: gpu}") == 1
    assert "resources: *r\n" in lines


def test_containers_that_share_what_must_differ_are_left() -> None:
    shared = "  - {name: a, image: busybox, resources: &r {limits: {nvidia.com/gpu: 1}}}\n"
    found = check(pod(shared + "  - {name: b, image: busybox, resources: *r}\n"))
    assert "an alias shares resources" in only(found).message


def test_limits_that_a_merge_key_brings_in_are_seen() -> None:
    found = check(two_pods("{limits: &l {nvidia.com/gpu: 1, cpu: 1}}", "{limits: {<<: *l, memory: 1Gi}}"))
    assert [len(found.pods), found.unfinished] == [2, False]
    found = check(f"x-limits: &l {{nvidia.com/gpu: 1}}\n{POD.replace('{ nvidia.com/gpu: 1 }', '{<<: *l, cpu: 1}')}")
    assert "an alias shares" in only(found).message


# --- input that is none ---------------------------------------------------------------------------------------------


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 8)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\n b: 2\n", 2, "mapping values are not allowed"),
        ("a:\n\t- b\n", 2, "cannot start any token"),
        ("a: &x [*x]\n", 1, "*x stands for nothing above it"),
        ("a: !!python/object:os.system x\n", 1, "the tag"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key a a second time; the first is in line 1"),
        ("spec:\n  limits: {nvidia.com/gpu: 1, nvidia.com/gpu: 2}\n", 2, "the key nvidia.com/gpu a second time"),
        ("? [a]\n: 1\n", 1, "a key that is no plain word"),
        ("[" * 200 + "]" * 200, 1, "nested deeper"),
        ("a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60, 2, "nested deeper"),
        (BOMB, 7, "aliases written out"),
        ("{{- if .Values.gpu }}\na: 1\n{{- end }}\n", 1, "a Helm template"),
        ("a: \x07\n", 1, "control characters"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_yaml_is_left_alone(text: str, line: int, said: str) -> None:
    found = convert(text, SETTINGS)
    assert found.text == text
    finding = only(found, Level.ERROR)
    assert finding.line == line
    assert said in finding.message
    assert finding.hint


@pytest.mark.parametrize(
    "text", ["", "\n", "# only a comment\n", "---\n---\n", "just words\n", "- a\n- b\n", "kind: X\n"]
)
def test_a_text_without_manifests_is_fine(text: str) -> None:
    assert convert(text, SETTINGS) == Conversion(text)


def test_a_value_that_runs_to_the_end_is_not_changed() -> None:
    text = POD + "---\na: |\n  no line break"
    found = convert(text, SETTINGS)
    assert found.text == text
    assert "line break" in only(found).hint


@pytest.mark.parametrize(("data", "said"), [(b"PK\x03\x04\x00\x00", "zero bytes"), (b"a: 1\nb: \xff\n", "no UTF-8")])
def test_bytes_that_are_no_text_are_named(data: bytes, said: str) -> None:
    found = text_of(data)
    assert isinstance(found, Finding)
    assert said in found.message


VALUES = """\
# Default values.
replicas: 1
worker:
  resources:
    limits:
      cpu: 1
      nvidia.com/gpu: 2
  resourceClaims: []
"""


def test_values_of_a_chart_are_named_with_key_and_line_and_never_changed() -> None:
    for text, line in (VALUES, 7), (yaml_as_json(VALUES), 1):
        found = check(text)
        assert found.text == text
        assert only(found).line == line
        assert only(found).message == "worker.resources.limits has nvidia.com/gpu: 2, outside any Kubernetes object"
        assert "helm template ... | drabridge migrate convert --post-renderer" in only(found).hint


def test_values_within_an_object_of_a_delivery_tool_are_named() -> None:
    head = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: chat}\nspec:\n  values:\n"
    found = check(head + "".join(f"    {line}\n" for line in VALUES.splitlines()))
    assert only(found).line == 12
    assert "spec.postRenderers" in only(found).hint


# --- several files --------------------------------------------------------------------------------------------------


def test_files_of_one_place_share_a_template() -> None:
    one, two, other = convert_group(
        [Source("1", POD), Source("2", POD), Source("3", POD.replace("name: p", "name: p\n  namespace: other"))],
        SETTINGS,
    )
    assert [len(templates_of(outcome.conversion.text)) for outcome in (one, two, other)] == [1, 0, 1]


def test_a_template_that_is_there_is_used() -> None:
    there = Source("t", TEMPLATE)
    _, outcome = convert_group([there, Source("p", POD)], SETTINGS)
    assert outcome.changed
    assert not templates_of(outcome.conversion.text)
    before, _ = convert_group([Source("p", POD), there], SETTINGS)
    assert not templates_of(before.conversion.text)


# --- platforms whose controllers have rules of their own ------------------------------------------------------------


VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm}
spec:
  domain:
    devices:
      gpus:
      - deviceName: nvidia.com/gpu
        name: a
"""


def test_a_virtual_machine_names_a_claim_and_its_request() -> None:
    found = check(VM)
    assert "      - requestName: gpu\n        claimName: gpu\n        name: a\n" in found.text
    assert "  resourceClaims:\n  - name: gpu\n    resourceClaimTemplateName: nvidia-gpu-1\n" in found.text
    assert "GPUsWithDRA" in only(found, Level.NOTE).message
    left = check(VM.replace("nvidia.com/gpu", "example.com/tpu"))
    assert not left.pods
    named = check(VM.replace("nvidia.com/gpu", "nvidia.com/GV100"))
    assert "stays with its device plugin" in only(named, Level.NOTE).message
    assert [one.state.value for one in named.places] == ["left on limits"]


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
        "volcano.sh/vgpu-memory",
        "aliyun.com/gpu-mem",
        "cambricon.com/mlu.smlu.vcore",
    ],
)
def test_a_part_of_a_device_keeps_its_pod_on_limits(name: str) -> None:
    found = check(POD.replace("nvidia.com/gpu: 1", f"nvidia.com/gpu: 1, {name}: 10"))
    assert f"{name} asks for a part of a device" in only(found).message
    settings = Settings({name: Device("part.example.com"), **SETTINGS.devices})
    assert not check(POD.replace("nvidia.com/gpu: 1", f"{name}: 10"), settings).pods


def test_a_scheduler_of_its_own_is_named() -> None:
    found = check(POD.replace("spec:\n", "spec:\n  schedulerName: volcano\n"))
    assert "the scheduler volcano must allocate its claims" in only(found, Level.NOTE).message
