"""Write the chart's template for ``migration.namespaces`` from the policies of ``drabridge migrate switch``.

The CEL is written once, in Python. Here its parts for each resource are put into a ``range`` of Helm, with Helm's
expressions for the resource's number, its name and the prefix of its claims' names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import yaml

from drabridge.migrate.switch.policy import Form, Part, Parts, objects

Json = dict[str, Any]
_NAME = '{{ include "drabridge.fullname" $ }}-switch'
_LABELS = "@labels@"
_KNOWN = "@known@"
_TEAMS = "@teams@"
_RANGE, _END = "@range@", "@end@"
_WIDE = 1 << 20  # characters of a line: a folded action would not be read

_HEAD = """\
{{- /* Made by `python -m deploy.generate` from the policies of `drabridge migrate switch`; a test compares. */ -}}
{{- with .Values.migration.namespaces }}
{{- $version := "v1" }}
{{- if not (semverCompare ">=1.36.0-0" (include "drabridge.kubeVersion" $)) }}
{{- $version = "v1beta1" }}
{{- if not ($.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy") }}
{{- $on := "or 1.34 with its gate and --runtime-config=admissionregistration.k8s.io/v1beta1=true" }}
{{- fail (printf "migration.namespaces needs Kubernetes 1.36, which has MutatingAdmissionPolicy, %s" $on) }}
{{- end }}
{{- end }}
{{- $parts := list }}
{{- range $resource := $.Values.config.resources }}
{{- with (contains "{" $resource.name | ternary nil $resource.deviceClass) }}
{{- $label := first (splitList "." $resource.name) }}
{{- $word := last (splitList "/" $resource.name) | lower | replace "_" "-" | replace "." "-" }}
{{- $base := printf "%s-%s" $label $word }}
{{- if gt (len $base) 52 }}
{{- fail (printf "migration.namespaces: %s is too long for the chart; use drabridge migrate switch" $resource.name) }}
{{- end }}
{{- $part := dict "number" (len $parts) "resource" $resource.name "base" $base "word" $word "class" .name }}
{{- $parts = append $parts $part }}
{{- end }}
{{- end }}
{{- if not $parts }}
{{- fail "migration.namespaces needs a resource with deviceClass in config.resources" }}
{{- end }}
{{- $known := dict }}
{{- range $team := . }}
{{- $names := list }}
{{- range $part := $parts }}
{{- range $count := default (list 1) $team.counts }}
{{- $names = append $names (printf "%s-%d" $part.base (int $count)) }}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: {{ $part.base }}-{{ int $count }}
  namespace: {{ $team.name }}
  labels:
    {{- include "drabridge.labels" $ | nindent 4 }}
spec:
  spec:
    devices:
      requests:
      - name: {{ $part.word }}
        exactly:
          deviceClassName: {{ $part.class }}
          count: {{ int $count }}
{{- end }}
{{- end }}
{{- $_ := set $known $team.name $names }}
{{- end }}
"""
_TAIL = "{{- end }}\n"


class _Ranged(Parts):
    """Stands for all resources of the chart's configuration, by a ``range``."""

    def __init__(self) -> None:
        super().__init__([])
        self._part = Part("{{ .number }}", "{{ .resource }}", "{{ .base }}")

    def joined(self, first: str, operator: str, cel: Callable[[Part], str]) -> str:
        return f"{first}{{{{ range $parts }}}} {operator} {cel(self._part)}{{{{ end }}}}"

    def variables(self) -> Iterable[tuple[str, str]]:
        return [(_RANGE, ""), *self._part.variables(), (_END, "")]


def template() -> str:
    """Return the text of ``deploy/chart/templates/switch.yaml``."""
    teams = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": _TEAMS}]}
    form = Form(policy=_NAME, guard=f"{_NAME}-templates", known=_KNOWN, namespaces=teams, version="{{ $version }}")
    text = "".join(f"---\n{_dumped(obj)}" for obj in objects(_Ranged(), form))
    return _HEAD + text + _TAIL


def _dumped(obj: Json) -> str:
    obj["metadata"]["labels"] = _LABELS
    text = yaml.dump(obj, sort_keys=False, width=_WIDE, Dumper=_Unaliased)
    for found, helm in {
        f"  labels: '{_LABELS}'\n": '  labels:\n    {{- include "drabridge.labels" $ | nindent 4 }}\n',
        f"  - name: '{_RANGE}'\n    expression: ''\n": "  {{- range $parts }}\n",
        f"  - name: '{_END}'\n    expression: ''\n": "  {{- end }}\n",
        f"'{_KNOWN}'": "'{{ toJson $known }}[namespaceObject.metadata.name]'",
        f"values: '{_TEAMS}'": "values: {{ keys $known | sortAlpha | toJson }}",
    }.items():
        text = text.replace(found, helm)
    assert "@" not in text.replace("@sha256", ""), "a mark was not replaced"
    return text


class _Unaliased(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True
