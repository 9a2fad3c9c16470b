"""Every place that names devices is found and said: converted, left on limits, or no matter for claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.migrate.convert.conversion import convert, reverse
from drabridge.migrate.convert.post_render import component, nameless
from drabridge.migrate.convert.settings import Level
from tests.migrate.convert.checks import SETTINGS, check

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
  annotations: {nvidia.com/use-gputype: A100}
spec:
  nodeSelector:
    nvidia.com/gpu: present
  tolerations:
  - key: nvidia.com/gpu
    operator: Exists
  containers:
  - name: c
    image: x
    env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    args: ["--flag=limits.nvidia\\\\.com/gpu=1"]
    resources:
      limits:
        nvidia.com/gpu: 1
"""


def test_each_place_of_a_pod_is_listed_with_what_becomes_of_it() -> None:
    found = check(POD)
    assert [(one.line, one.state.value) for one in found.places] == [
        (5, "irrelevant"),
        (8, "irrelevant"),
        (10, "irrelevant"),
        (16, "irrelevant"),
        (17, "left on limits"),
        (20, "converted"),
    ]
    said = {one.line: one.message for one in found.findings}
    assert set(said) == {5, 8, 10, 16, 17}
    assert "NVIDIA_VISIBLE_DEVICES names devices past limits" in said[16]


@pytest.mark.parametrize(
    ("text", "line", "level", "said"),
    [
        ("profiles:\n- node_selector: {nvidia.com/gpu: present}\n", 2, Level.NOTE, "node label nvidia.com/gpu"),
        ("a:\n  affinity:\n  - key: nvidia.com/gpu.product\n", 3, Level.NOTE, "node label nvidia.com/gpu.product"),
        ("singleuser:\n  extra_resource_limits: {nvidia.com/gpu: '1'}\n", 2, Level.LEFT, "extra_resource_limits has"),
        ("singleuser:\n  extra_resource_guarantees:\n    nvidia.com/gpu: 1\n", 3, Level.LEFT, "outside any Kubernetes"),
        ("modelSpec:\n- requestGPU: 2\n", 2, Level.NOTE, "requestGPU: 2 seems to count"),
        (
            "modelSpec:\n- requestGPUType: nvidia.com/gpu\n",
            2,
            Level.LEFT,
            "requestGPUType: nvidia.com/gpu names a device",
        ),
        ("a: {limits: {nvidia.com/gpu: $GPUS}}\n", 1, Level.LEFT, "a.limits has nvidia.com/gpu: $GPUS"),
        ("tolerations: [{key: nvidia.com/gpu}]\n", 1, Level.NOTE, "the taint nvidia.com/gpu"),
        ("args: |\n  helm --set limits.nvidia\\.com/gpu=1\n", 1, Level.NOTE, "args is a text"),
        ("path: /spec/limits/nvidia.com~1gpu\n", 1, Level.NOTE, "path is a text that speaks of nvidia.com/gpu"),
        (
            "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: q}\n"
            "spec:\n  capability:\n    nvidia.com/gpu: 8\n",
            6,
            Level.NOTE,
            "nvidia.com/gpu: 8 counts limits",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {nvidia.com/nouse-gputype: V100}}\n",
            3,
            Level.NOTE,
            "the annotation nvidia.com/nouse-gputype",
        ),
    ],
)
def test_nothing_is_left_without_a_word(text: str, line: int, level: Level, said: str) -> None:
    (finding,) = check(text).findings
    assert (finding.line, finding.level) == (line, level)
    assert said in finding.message
    assert finding.hint


@pytest.mark.parametrize(
    "text",
    [
        "image: nvcr.io/nvidia/cuda\nurl: https://nvidia.com/gpu\nhelm: helm.ngc.nvidia.com/nvidia\n",
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\n",
        "path: /dev/rdma/x\ndeviceClassName: gpu.nvidia.com\n",
        "gpus: 0\ngpu: {enabled: true}\n",
    ],
)
def test_hosts_files_and_groups_name_no_device(text: str) -> None:
    found = check(text)
    assert (found.findings, found.places) == ([], [])


def test_a_note_that_is_due_in_many_lines_is_said_once() -> None:
    text = POD + "".join(
        f"  - {{name: c{number}, image: x, env: [{{name: NVIDIA_VISIBLE_DEVICES}}]}}\n" for number in (1, 2)
    )
    found = [one for one in check(text).findings if "VISIBLE" in one.message]
    assert [one.message.endswith("(and in 2 more lines)") for one in found] == [True]


def test_an_anchor_that_is_defined_twice_means_the_last_one() -> None:
    text = POD.replace("name: p\n", "name: &n p\n").replace("- name: c\n", "- name: &n c\n    workingDir: *n\n")
    assert len(check(text).pods) == 1


def test_empty_lines_after_a_removed_block_scalar_stay() -> None:
    text = POD.replace("nvidia.com/gpu: 1\n", "nvidia.com/gpu: |\n          1\n\n  \n")
    found = convert(text, SETTINGS)
    assert "      - name: gpu\n\n  \n#" in found.text
    assert reverse(found.text).text == text


def test_json_with_claims_that_no_conversion_wrote_is_nothing_to_undo() -> None:
    claims = '[{"name": "a", "resourceClaimTemplateName": "b"}]'
    text = f'{{"apiVersion": "v1", "kind": "Pod", "spec": {{"resourceClaims": {claims}}}}}'
    assert (reverse(text).text, reverse(text).findings) == (text, [])


def test_an_object_without_a_name_gets_no_patch_and_a_word() -> None:
    text = POD.replace("  name: p\n", "  generateName: p-\n") + "---\n" + POD
    pods = convert(text, SETTINGS).pods
    (finding,) = nameless(pods)
    assert (finding.line, finding.subject, finding.level) == (1, "Pod p-", Level.LEFT)
    assert "--in-place" in finding.hint
    assert component(pods)["kustomization.yaml"].count("- target:") == 1
    assert "p-" not in component(pods)["kustomization.yaml"]


def test_the_command_lists_the_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from drabridge.cli import main

    (tmp_path / "pod.yaml").write_text(POD)
    main(["migrate", "convert", "--class", "nvidia.com/gpu=gpu.example.com", "--list", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"{tmp_path}/pod.yaml:20: converted: nvidia.com/gpu at spec.containers.0.resources.limits.nvidia.com/gpu"
    )
    assert (tmp_path / "pod.yaml").read_text() == POD
