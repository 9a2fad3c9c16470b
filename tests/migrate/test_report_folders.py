"""``drabridge migrate report FOLDER``: what of the manifests in a folder moves today, and what blocks the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from drabridge.cli import main
from tests.migrate.cluster_objects import device_class, migrate, serving

Output = pytest.CaptureFixture[str]
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: SPACE}
spec:
  replicas: 3
  template:
    spec:
      containers:
      - {name: c, image: x, resources: {limits: {nvidia.com/gpu: 2}}}
"""
PART = DEPLOYMENT.replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 1, nvidia.com/gpumem: 3000")
RAY = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: r}
spec:
  headGroupSpec: {template: {spec: {containers: [{name: h, image: x}]}}}
  workerGroupSpecs:
  - replicas: 4
    template: {spec: {containers: [{name: w, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}}
"""
VALUES = "resources: {limits: {nvidia.com/gpu: 1}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two teams: what moves, what is blocked, what cannot be read, and what is no matter. No cluster is there."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    for name, text in {
        "one/web.yaml": DEPLOYMENT.replace("NAME", "web").replace("SPACE", "ml"),
        "one/part.yaml": PART.replace("NAME", "part").replace("SPACE", "ml"),
        "two/ray.yaml": RAY,
        "two/values.yaml": VALUES,
        "two/<b>.yaml": VALUES,
        "two/broken.yaml": "a: nvidia.com/gpu\n b: 1\n",
        "two/service.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def report(*words: object) -> int:
    return main(["migrate", "report", *map(str, words)])


def test_it_says_what_moves_by_owner_and_by_tool_and_what_blocks(folder: Path, capsys: Output) -> None:
    assert report(folder, "-o", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["filesWithDevices"], found["moves"], found["blocked"]) == (7, 6, 2, 3)
    assert found["devices"] == {"nvidia.com/gpu": 3 * 2 + 4}
    rows = {one["name"]: (one["moves"], one["blocked"], one["devices"]) for one in found["owners"]}
    assert rows == {"ml": (1, 1, 6), "two/": (1, 2, 4)}
    rows = {one["name"]: (one["moves"], one["blocked"], one["devices"]) for one in found["tools"]}
    assert rows == {"Kubernetes": (1, 1, 6), "KubeRay": (1, 0, 4), "Helm values": (0, 2, 0)}
    most, other = found["blocks"]
    assert most["count"] == 2
    assert sorted(most["places"]) == [f"{folder}/two/<b>.yaml:1", f"{folder}/two/values.yaml:1"]
    assert "gpumem" in other["example"]
    (unread,) = found["unread"]
    assert unread.startswith(f"{folder}/two/broken.yaml:2: no valid YAML")


def test_the_table_and_yaml_say_the_same(folder: Path, capsys: Output) -> None:
    assert report(folder, "--fail-on", "never") == 0
    out = capsys.readouterr().out
    assert out.startswith("7 files read, 6 with devices: 2 move to claims today (10 nvidia.com/gpu), 3 blocked\n")
    assert "\nOWNER  MOVES  BLOCKED  DEVICES\n" in out
    assert "NOT READ" in out
    report(folder, "-o", "yaml")
    assert yaml.safe_load(capsys.readouterr().out)["moves"] == 2


def test_the_page_has_no_scripts_and_escapes_names(folder: Path, capsys: Output) -> None:
    report(folder, "-o", "html")
    page = capsys.readouterr().out
    assert "<title>What moves to claims</title>" in page
    assert "two/&lt;b&gt;.yaml" in page
    assert "<b>" not in page
    assert "<script" not in page


def test_many_files_are_read_by_several_processes_with_the_same_result(folder: Path, capsys: Output) -> None:
    for number in range(100):
        (folder / f"one/more-{number}.yaml").write_text(VALUES)
    report(folder, "-o", "json")
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["moves"], found["blocked"]) == (107, 2, 103)
    assert [one["file"] for one in found["workloads"]] == sorted(one["file"] for one in found["workloads"])


def test_a_class_of_ones_own_is_for_other_resources(folder: Path, capsys: Output) -> None:
    (folder / "one/own.yaml").write_text(DEPLOYMENT.replace("nvidia.com/gpu", "example.com/radio"))
    assert report(folder / "one", "--class", "example.com/radio=radio.example.com") == 0
    assert "1 move to claims today (6 example.com/radio), 0 blocked" in capsys.readouterr().out


def test_values_that_name_no_resource_count_too(folder: Path, capsys: Output) -> None:
    (folder / "one/ollama.yaml").write_text("ollama:\n  gpu:\n    enabled: true\n")
    assert report(folder / "one/ollama.yaml", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["moves"] == 1


def test_what_is_not_there_and_what_is_for_clusters(folder: Path, capsys: Output) -> None:
    assert report(folder / "nothing") == 2
    assert f"there is no {folder}/nothing" in capsys.readouterr().err
    assert report(folder, "-n", "team-a") == 2
    assert "-n and --resource are for a cluster" in capsys.readouterr().err


async def test_the_cluster_of_the_kubeconfig_is_asked_for_its_classes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word on the command line; what it has no class for counts with its vendor's."""
    (folder / "one/own.yaml").write_text(DEPLOYMENT.replace("nvidia.com/gpu", "example.com/radio"))
    code, _, said = await migrate("report", str(folder / "one"), "-o", "json")
    assert "note: DeviceClasses are the vendors': " in said
    assert "no-kubeconfig" in said
    async with serving(device_class("radio.example.com", extended="example.com/radio")) as (_, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        code, out, said = await migrate("report", str(folder / "one"), "-o", "json")
    assert (code, said) == (1, "")
    assert json.loads(out)["devices"] == {"example.com/radio": 6, "nvidia.com/gpu": 6}


async def test_a_cluster_that_was_named_must_answer(folder: Path) -> None:
    code, _, said = await migrate("report", str(folder), "--kubeconfig", str(folder / "none"))
    assert code == 2
    assert "there is no file" in said
