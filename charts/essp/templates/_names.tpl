{{/* Names and labels. */}}

{{- define "essp.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of every object: with a pool's name and a digest behind it still a host name. */}}
{{- define "essp.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 26 | trimSuffix "-" -}}
{{- else if contains (include "essp.name" .) .Release.Name -}}
{{- .Release.Name | trunc 26 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "essp.name" .) | trunc 26 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "essp.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: essp
{{ include "essp.selector" . }}
{{- with .Values.tenant }}
essp.dev/tenant: {{ . | quote }}
{{- end }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* All pods of this release. */}}
{{- define "essp.selector" -}}
app.kubernetes.io/name: {{ include "essp.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* All pods of one pool: (dict "root" $ "pool" $pool). */}}
{{- define "essp.poolSelector" -}}
{{ include "essp.selector" .root }}
app.kubernetes.io/component: {{ .pool.service }}
essp.dev/pool: {{ .pool.name }}
{{- end -}}

{{- define "essp.poolName" -}}
{{ include "essp.fullname" .root }}-{{ .pool.name }}
{{- end -}}

{{- define "essp.serviceAccountName" -}}
{{- with .pool.serviceAccount -}}
{{- .name | default (ternary (include "essp.poolName" $) "default" .create) -}}
{{- end -}}
{{- end -}}

{{/* Where the master answers, inside the cluster. */}}
{{- define "essp.apiUrl" -}}
http://{{ include "essp.fullname" . }}-master.{{ .Release.Namespace }}.svc:{{ .Values.api.service.port }}
{{- end -}}
