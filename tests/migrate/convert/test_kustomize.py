"""What Kustomize makes of a component is what a filter makes of Kustomize's output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.migrate.convert.conversion import convert
from drabridge.migrate.convert.post_render import component
from tests.deploy.kubectl import kubectl
from tests.migrate.convert.checks import SETTINGS

MANIFESTS = Path(__file__).parents[1] / "manifests"
NAMES = ("deployment-affinity", "deployment-vllm", "raycluster", "pod-own-claims-flow", "pod-two-containers")

pytestmark = pytest.mark.kubectl


def built(folder: Path) -> str:
    return kubectl("kustomize", str(folder))


def objects(text: str) -> list[Any]:
    return sorted(yaml.safe_load_all(text), key=lambda one: (one["kind"], str(one["metadata"])))


def folder(path: Path, **kustomization: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return path


def test_a_component_does_what_the_filter_does(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", resources=[f"{name}.yaml" for name in NAMES])
    for name in NAMES:
        shutil.copy(MANIFESTS / f"{name}.yaml", base)
    pods = [pod for name in NAMES for pod in convert((base / f"{name}.yaml").read_text(), SETTINGS).pods]
    claims = folder(tmp_path / "claims")
    for name, text in component(pods).items():
        (claims / name).write_text(text)
    whole = folder(tmp_path / "whole", resources=["../base"], components=["../claims"])
    assert objects(built(whole)) == objects(convert(built(base), SETTINGS, can_undo=False).text)


def test_kustomize_takes_json_that_became_a_list(tmp_path: Path) -> None:
    text = json.dumps(yaml.safe_load((MANIFESTS / "pod-vectoradd.yaml").read_text()), indent=2)
    base = folder(tmp_path / "base", resources=["pod.json"])
    (base / "pod.json").write_text(convert(text, SETTINGS).text)
    pod, template = objects(built(base))
    assert template["kind"] == "ResourceClaimTemplate"
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]


def test_kustomize_renames_a_template_but_not_where_a_pod_names_it(tmp_path: Path) -> None:
    """If this fails, Kustomize has learned it: then a name prefix needs no warning any more."""
    source = convert((MANIFESTS / "pod-vectoradd.yaml").read_text(), SETTINGS)
    base = folder(tmp_path / "base", resources=["pod.yaml"], namePrefix="dev-")
    (base / "pod.yaml").write_text(source.text)
    pod, template = objects(built(base))
    assert template["metadata"]["name"] == "dev-nvidia-gpu-1"
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "nvidia-gpu-1"
