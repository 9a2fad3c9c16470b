{{- define "drabridge.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "drabridge.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "drabridge.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "drabridge.labels" -}}
{{ include "drabridge.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "drabridge.serviceAccount" -}}
{{- default (include "drabridge.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "drabridge.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "drabridge.devicePluginDir" -}}
{{- default (printf "%s/device-plugins" .Values.kubelet.rootDir) .Values.kubelet.devicePluginDir -}}
{{- end -}}

{{/* "true" if the agent shall receive udevd's messages, which stay in the host's network namespace. */}}
{{- define "drabridge.hearsUdevd" -}}
{{- if ne (default "auto" .Values.config.udevEvents) "kernel" -}}true{{- end -}}
{{- end -}}

{{/* "true" unless the configuration switches the DRA side off: then no API server is called at all. */}}
{{- define "drabridge.usesApi" -}}
{{- $dra := default dict .Values.config.dra -}}
{{- if or (not (hasKey $dra "enabled")) $dra.enabled -}}true{{- end -}}
{{- end -}}

{{/* "true" if the agent writes labels of its Node. An empty mapping counts: it removes earlier labels. */}}
{{- define "drabridge.labelsNode" -}}
{{- if not (kindIs "invalid" .Values.config.nodeLabels) -}}true{{- end -}}
{{- end -}}

{{/* "true" if a resource's pods are evicted when they lose their device. An empty mapping counts. */}}
{{- define "drabridge.evicts" -}}
{{- range .Values.config.resources -}}
{{- if not (kindIs "invalid" .evictHolders) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if devices of a resource are bound to vfio-pci, for which the agent writes to /sys. */}}
{{- define "drabridge.binds" -}}
{{- range .Values.config.resources -}}
{{- if not (kindIs "invalid" .vfio) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* The directories of other programs' CDI files, as JSON; none unless a resource has cdiDevices. */}}
{{- define "drabridge.otherCdiDirs" -}}
{{- $dirs := list -}}
{{- range .Values.config.resources -}}
{{- if .cdiDevices -}}
{{- $dirs = list -}}
{{- range $.Values.cdiSpecDirs -}}
{{- if not (has . (append $.Values.extraHostPaths $.Values.cdiDir)) -}}{{- $dirs = append $dirs . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $dirs -}}
{{- end -}}

{{/* The version of Kubernetes to render for. */}}
{{- define "drabridge.kubeVersion" -}}
{{- default .Capabilities.KubeVersion.Version .Values.kubeVersion -}}
{{- end -}}

{{- define "drabridge.wantsPolicies" -}}
{{- if and .Values.admissionPolicy.create (include "drabridge.usesApi" .) -}}true{{- end -}}
{{- end -}}

{{/* Brackets are right for both families of addresses. */}}
{{- define "drabridge.listen" -}}
{{- if not (include "drabridge.hearsUdevd" .) -}}
:{{ .Values.http.port }}
{{- else if .Values.http.onNodeAddress -}}
[$(POD_IP)]:{{ .Values.http.port }}
{{- else -}}
127.0.0.1:{{ .Values.http.port }}
{{- end -}}
{{- end -}}

{{- define "drabridge.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ .root.Values.http.port }}
  {{- if and (include "drabridge.hearsUdevd" .root) (not .root.Values.http.onNodeAddress) }}
  host: 127.0.0.1  # kubelet probes from the host, whose network the pod has
  {{- end }}
{{- end -}}
