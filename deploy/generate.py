"""``python -m deploy.generate``: write the generated files of the chart, and the kustomize base.

The version in ``deploy/chart/Chart.yaml`` is the package's, and the addresses are those of ``pyproject.toml``.
``deploy/chart/values.schema.json`` comes from the agent's configuration model, ``deploy/chart/README.md`` from the
comments of the values, ``deploy/chart/templates/switch.yaml`` from the policies of ``drabridge migrate switch``,
``deploy/kustomize/`` from the chart's default render. A test fails while a file differs from what this program writes.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy import chart_readme, switch_template
from deploy.helm import CHART, ROOT, manifests
from drabridge import __version__
from drabridge.config.json_schema import json_schema

ABOUT = CHART / "Chart.yaml"
SCHEMA = CHART / "values.schema.json"
SWITCH = CHART / "templates/switch.yaml"
KUSTOMIZE = ROOT / "deploy/kustomize"
VALUES = CHART / "values.yaml"
READ_ME = CHART / "README.md"
KREW = (ROOT / "deploy/krew/drabridge.yaml", ROOT / "deploy/krew/kubectl-drabridge")
ADDRESSED = (
    VALUES,
    ROOT / "deploy/podresources/exporter.yaml",
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
NAMESPACE = "drabridge"
DRAFT = "http://json-schema.org/draft-07/schema#"  # what every Helm 3 and 4 reads

Json = dict[str, Any]


# --- values.schema.json ---------------------------------------------------------------------------------------------


def _object(properties: Json, description: str = "", *, required: tuple[str, ...] = ()) -> Json:
    found: Json = {"type": "object", "additionalProperties": False, "properties": properties}
    found |= {"description": description} if description else {}
    return found | ({"required": list(required)} if required else {})


def _without(keys: tuple[str, ...]) -> Json:
    """Return the schema of an object without the keys that the chart sets itself: YAML would have them twice."""
    return {"type": "object", "not": {"anyOf": [{"required": [key]} for key in keys]}}


_ONE_LOOKAHEAD = r"\(\?([!=])((?:[^()]|\([^()]*\))*)\)"
_LOOKAHEAD = re.compile(rf"\^(?:{_ONE_LOOKAHEAD})+")
_TEXT: Json = {"type": "string"}
_SWITCH: Json = {"type": "boolean"}
_LABELS: Json = {"type": "object", "additionalProperties": _TEXT}
_ANY_OBJECT: Json = {"type": "object"}
_ANY_OBJECTS: Json = {"type": "array", "items": _ANY_OBJECT}
_PORT: Json = {"type": "integer", "minimum": 1, "maximum": 65535}
_SHARE: Json = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]}
_TEAM = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
        "counts": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1, "maximum": 32}},
    },
}
_SET_FOR_THE_POD = ("runAsUser", "runAsGroup", "seccompProfile", "seLinuxOptions")
_SET_FOR_THE_CONTAINER = ("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities", "privileged")
_PATH: Json = {"type": "string", "pattern": "^/[^ ]*[^/ ]$"}


def for_go(value: Any) -> Any:
    """Return the schema with patterns that Go's regexp can read: a lookahead becomes ``not`` and ``allOf``."""
    if isinstance(value, list):
        return [for_go(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: for_go(item) for key, item in value.items()}
    if isinstance(pattern := value.get("pattern"), str) and (looks := _LOOKAHEAD.match(pattern)):
        plain["pattern"] = "^" + pattern[looks.end() :]
        conditions = [
            {"not": {"pattern": f"^{text}"}} if kind == "!" else {"pattern": f"^{text}"}
            for kind, text in re.findall(_ONE_LOOKAHEAD, looks[0])
        ]
        plain["allOf"] = [*plain.get("allOf", ()), *conditions]
    return plain


def values_schema() -> Json:
    """Return the JSON Schema of the chart's values; ``config`` is the agent's configuration model."""
    config = json_schema()
    definitions = config.pop("$defs")
    config.pop("$schema")
    config["required"] = [*config.get("required", ()), "driver"]  # the pod's paths contain it
    properties = {
        "config": config,
        "image": _object(
            {
                "repository": {"type": "string", "minLength": 1},
                "tag": _TEXT,
                "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
                "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
            }
        ),
        "imagePullSecrets": _ANY_OBJECTS,
        "kubeVersion": {"type": "string", "pattern": r"^(v?[0-9]+\.[0-9]+(\.[0-9]+)?.*)?$"},
        "nameOverride": _TEXT,
        "fullnameOverride": _TEXT,
        "namespaceOverride": {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"},
        "kubelet": _object({"rootDir": _PATH, "devicePluginDir": {"anyOf": [{"const": ""}, _PATH]}}),
        "cdiDir": _PATH,
        "cdiSpecDirs": {"type": "array", "items": _PATH, "minItems": 1},
        "extraHostPaths": {"type": "array", "items": _PATH},
        "nvml": _object({"enabled": _SWITCH, "runtimeClassName": _TEXT, "mig": _SWITCH}),
        "http": _object({"port": _PORT, "onNodeAddress": _SWITCH, "pageOnHostNetwork": _SWITCH}),
        "log": _object(
            {"level": {"enum": ["debug", "info", "warning", "error"]}, "format": {"enum": ["logfmt", "json"]}}
        ),
        "serviceAccount": _object({"create": _SWITCH, "name": _TEXT, "annotations": _LABELS}),
        "rbac": _object({"create": _SWITCH}),
        "migration": _object({"reportRole": _SWITCH, "namespaces": {"type": "array", "items": _TEAM}}),
        "admissionPolicy": _object({"create": _SWITCH}),
        "deviceClasses": _object({"create": _SWITCH}),
        "uninstall": _object({"check": _SWITCH}),
        "priorityClassName": _TEXT,
        "tolerations": _ANY_OBJECTS,
        "nodeSelector": _LABELS,
        "affinity": _ANY_OBJECT,
        "podAnnotations": _LABELS,
        "podLabels": _LABELS,
        "resources": _ANY_OBJECT,
        "maxSurge": _SHARE,
        "maxUnavailable": _SHARE,
        "updateStrategy": {"enum": ["RollingUpdate", "OnDelete"]},
        "extraEnv": _ANY_OBJECTS,
        "podSecurityContext": _without(_SET_FOR_THE_POD),
        "securityContext": _without(_SET_FOR_THE_CONTAINER),
        "capabilities": {"type": "array", "items": {"type": "string", "pattern": "^[A-Z_]+$"}},
        "hostPID": _SWITCH,
        "seLinuxOptions": _ANY_OBJECT,
        "coordinator": _object(
            {"enabled": _SWITCH, "tolerations": _ANY_OBJECTS, "nodeSelector": _LABELS, "resources": _ANY_OBJECT}
        ),
        "podMonitor": _object({"enabled": _SWITCH, "interval": _TEXT, "labels": _LABELS}),
        "prometheusRule": _object({"enabled": _SWITCH, "labels": _LABELS}),
        "dashboards": _object({"enabled": _SWITCH, "labels": _LABELS}),
        "test": _object({"resource": _TEXT}),
        "networkPolicy": _object(
            {"enabled": _SWITCH, "scrapers": _ANY_OBJECTS, "apiServerPorts": {"type": "array", "items": _PORT}}
        ),
        "global": _ANY_OBJECT,  # Helm hands it to every chart
    }
    root = _object(properties, "Values of the chart drabridge", required=("config",))
    schema = {"$schema": DRAFT, "title": "drabridge chart values", **root, "$defs": definitions}
    readable: Json = for_go(schema)
    return readable


# --- the kustomize base ---------------------------------------------------------------------------------------------

# hostPath volumes are what the Pod Security levels below `privileged` forbid; no container is privileged itself.
NAMESPACE_OBJECT: Json = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
}
HELM_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")


def without_helm(obj: Json) -> Json:
    """Return the object without the labels that say that Helm installed it."""
    metadata = dict(obj["metadata"])
    if "labels" in metadata:
        metadata["labels"] = {key: value for key, value in metadata["labels"].items() if key not in HELM_LABELS}
    return {**obj, "metadata": metadata}


def base() -> list[Json]:
    """Return the objects of the kustomize base: the namespace, and the chart's default render."""
    return [NAMESPACE_OBJECT, *map(without_helm, manifests(name="drabridge", namespace=NAMESPACE))]


def _file_name(obj: Json, objects: list[Json]) -> str:
    alone = sum(other["kind"] == obj["kind"] for other in objects) == 1
    return f"{obj['kind'].lower()}{'' if alone else '-' + obj['metadata']['name']}.yaml"


def kustomize_files() -> dict[str, str]:
    """Return the files below deploy/kustomize: name -> text."""
    objects = base()
    files = {_file_name(obj, objects): yaml.safe_dump(obj, sort_keys=False, width=110) for obj in objects}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    note = (
        "# Generated from the chart's defaults by `python -m deploy.generate`; a test keeps both equal.\n"
        "# Use it as a base: patch the ConfigMap with your configuration, and the image with `images:`.\n"
        "# config.yaml's `driver` is also in the DaemonSet's paths, the ClusterRole and the policies: change it there\n"
        "# too, or use the chart, which does.\n"
    )
    return {"kustomization.yaml": note + yaml.safe_dump(kustomization, sort_keys=False), **files}


# --- writing --------------------------------------------------------------------------------------------------------


def schema_text() -> str:
    return json.dumps(values_schema(), indent=1, ensure_ascii=False) + "\n"


def repository() -> str:
    """Return the repository's address: ``project.urls.Repository`` of pyproject.toml, the only place to write it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def registry() -> str:
    """Return the registry of image and chart: ``tool.drabridge.registry`` of pyproject.toml, its only place."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["drabridge"]["registry"])


def addressed(path: Path) -> str:
    """Return the file with the registry in place of the one in the chart's values, and the version's tag."""
    before = yaml.safe_load(VALUES.read_text(encoding="utf-8"))["image"]["repository"].removesuffix("/drabridge")
    text = path.read_text(encoding="utf-8").replace(f"{before}/", f"{registry()}/")
    return re.sub(rf"({re.escape(registry())}/drabridge):[0-9]\S*", rf"\1:{__version__}", text)


def krew(path: Path) -> str:
    """Return a file of kubectl's plugin, with the package's version and address in place of the chart's."""
    before = yaml.safe_load(ABOUT.read_text(encoding="utf-8"))
    text = path.read_text(encoding="utf-8").replace(before["version"], __version__)
    return text.replace(before["home"], repository())


def about_text() -> str:
    """Return Chart.yaml with the package's version as the chart's and the program's."""
    text = re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {__version__}", ABOUT.read_text(encoding="utf-8"))
    return re.sub(re.escape(yaml.safe_load(text)["home"]) + r"(?=[/\s])", repository(), text)


def files() -> Iterator[tuple[Path, str]]:
    """Return every generated file with the text that it must have."""
    for path in ADDRESSED:
        yield path, addressed(path)
    for path in KREW:
        yield path, krew(path)
    yield READ_ME, chart_readme.text(VALUES.read_text(encoding="utf-8"), registry())
    yield ABOUT, about_text()
    yield SCHEMA, schema_text()
    yield SWITCH, switch_template.template()
    for name, text in kustomize_files().items():
        yield KUSTOMIZE / name, text


def main() -> None:
    KUSTOMIZE.mkdir(exist_ok=True)
    for path, text in [*((path, addressed(path)) for path in ADDRESSED), *((path, krew(path)) for path in KREW)]:
        path.write_text(text, encoding="utf-8")
    ABOUT.write_text(about_text(), encoding="utf-8")
    SCHEMA.write_text(schema_text())  # these first: Helm reads them when it renders
    SWITCH.write_text(switch_template.template())
    wanted = dict(files())
    for stale in set(KUSTOMIZE.glob("*.yaml")) - set(wanted):
        stale.unlink()
    for path, text in wanted.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
