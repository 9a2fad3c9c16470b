"""What tests of charts share: releases of charts, values that ask for devices, and the patches of a release."""

from __future__ import annotations

from typing import Any

import yaml

from drabridge.migrate.convert.charts import GPU, Chart

Json = dict[str, Any]
RELEASE = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: r, namespace: flux}
spec:
  targetNamespace: ml
  chart: {spec: {chart: CHART}}
  values: VALUES
"""


def release(chart: str, values: str) -> str:
    return RELEASE.replace("CHART", chart).replace("VALUES", values)


def values_for(chart: Chart, number: int = 2) -> Json:
    """Values that ask for devices in each part of a chart."""
    found: Json = {}
    for pod in chart.pods:
        part: Json = {"name": "x"} if "{name}" in pod.selector else {}
        place, key = part, (pod.count or f"{pod.resources}.limits.-").split(".")
        for word in key[:-1]:
            place = place.setdefault(word, {})
        place[GPU if key[-1] == "-" else key[-1]] = number
        *path, last = (word for word in pod.at.split(".")) if pod.at else ("",)
        place = found
        for word in path:
            place = place.setdefault(word, {})
        if last == "":
            found |= part
        elif last == "*":
            parent = found
            for word in path[:-1]:
                parent = parent[word]
            parent[path[-1]] = [part] if "name" in part else {"g": part}
        else:
            place[last] = part
    return found


def patches_of(text: str) -> list[Json]:
    """The patches in the one HelmRelease of a text."""
    (found,) = (one for one in yaml.safe_load_all(text) if one and one["kind"] == "HelmRelease")
    return [patch for one in found["spec"].get("postRenderers", ()) for patch in one["kustomize"]["patches"]]
