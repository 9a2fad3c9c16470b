"""Real charts, where a folder has them: what Helm makes after a conversion of the values is its output, converted.

DRABRIDGE_TEST_CHARTS names a folder with one folder for each chart, by its name, without charts that it depends on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.migrate.convert.charts import CHARTS, Chart
from drabridge.migrate.convert.conversion import convert
from tests.deploy.kubectl import kubectl
from tests.migrate.convert.chart_values import patches_of, release, values_for
from tests.migrate.convert.checks import SETTINGS
from tests.support.waiting import HANG_SECONDS

Json = dict[str, Any]
FOLDER = os.environ.get("DRABRIDGE_TEST_CHARTS", "")
# What a chart refuses to be without, or needs of charts that it depends on.
MORE: dict[str, Json] = {
    "text-generation-inference": {"model": "m"},
    "nim-llm": {"model": {"ngcAPISecret": "s"}},
    "open-webui": {name: {"enabled": False} for name in ("ollama", "pipelines", "terminals")},
}
OF_A_MODEL = {
    "repository": "r",
    "tag": "t",
    "modelURL": "m",
    "requestCPU": 1,
    "requestMemory": "1Gi",
    "replicaCount": 1,
}

# Not marked kubectl: a machine that has it has no charts for that.
pytestmark = pytest.mark.skipif(not FOLDER, reason="DRABRIDGE_TEST_CHARTS names no folder with charts")


def rendered(chart: Chart, values: Json, file: Path) -> str:
    """What Helm makes of a chart."""
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed here")
    file.write_text(yaml.safe_dump(values))
    command = [helm, "template", "r", str(Path(FOLDER) / chart.name), "-f", str(file), "--kube-version", "1.36.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> dict[tuple[str, str], Json]:
    """The objects of a text but for the templates, without what says nothing."""
    found = [one for one in yaml.safe_load_all(text) if one and one["kind"] != "ResourceClaimTemplate"]
    return {(one["kind"], one["metadata"]["name"]): said(one) for one in found}


def said(one: Any) -> Any:
    if isinstance(one, dict):
        return {key: said(child) for key, child in one.items() if child is not None and child != {}}
    return [said(child) for child in one] if isinstance(one, list) else one


TRIED = [chart for chart in CHARTS if chart.tried and chart.pods]


@pytest.mark.parametrize("chart", TRIED, ids=lambda chart: chart.name)
def test_values_and_patch_do_what_a_conversion_of_helms_output_does(chart: Chart, tmp_path: Path) -> None:
    if not (Path(FOLDER) / chart.name).is_dir():
        pytest.skip("the chart is not in the folder")
    values = {**values_for(chart), **MORE.get(chart.name, {})}
    for model in values.get("servingEngineSpec", {}).get("modelSpec", ()):
        model |= OF_A_MODEL
    before = rendered(chart, values, tmp_path / "values.yaml")
    found = convert(release(chart.name, yaml.safe_dump(values, default_flow_style=True, width=9999).strip()), SETTINGS)
    (after,) = (one for one in yaml.safe_load_all(found.text) if one and one["kind"] == "HelmRelease")
    text = rendered(chart, after["spec"]["values"], tmp_path / "values.yaml")
    if patches := patches_of(found.text):
        (tmp_path / "rendered.yaml").write_text(text)
        kustomization = {"resources": ["rendered.yaml"], "patches": patches}
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        text = kubectl("kustomize", str(tmp_path))
    assert objects(text) == objects(convert(before, SETTINGS).text)
    assert "resourceClaimTemplateName" in text
