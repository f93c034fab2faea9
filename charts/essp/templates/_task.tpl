{{/* The pod of something that is done once, with the master's image: (dict "root" $ "name" NAME "args" ARGS "env" further variables, "account" service account, "resources" RESOURCES), and for another image "service", "command" instead of its own, and "tmp", the size of /tmp; "who" it is for Kafka, by default NAME. Names of hosts and variables are those of the master. It may run before there is a ConfigMap. */}}
{{- define "essp.taskPod" -}}
{{- $root := .root -}}
{{- $who := .who | default .name -}}
{{- $pool := mergeOverwrite (deepCopy $root.Values.poolDefaults) (deepCopy ($root.Values.pools.master | default dict)) (dict "name" "task" "service" (.service | default "master")) -}}
{{- with .account }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
{{ include "essp.podSecurity" $root }}
{{- with include "essp.pullSecrets" $root }}
{{ . | trim }}
{{- end }}
{{- with include "essp.placement" (dict "root" $root "pool" (omit $pool "topologySpreadConstraints" "affinity")) | trim }}
{{ . }}
{{- end }}
{{- with $pool.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pool.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .name }}
    image: {{ include "essp.image" (dict "root" $root "pool" $pool) }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    {{- with .command }}
    command: {{ toJson . }}
    {{- end }}
    args: {{ toJson .args }}
    {{- with $pool.envFrom }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    env:
      {{- include "essp.once" (include "essp.taskEnv" (dict "root" $root "pool" $pool "env" .env "who" $who)) | nindent 6 }}
    {{- include "essp.containerSecurity" $root | nindent 4 }}
    resources:
      {{- toYaml .resources | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- include "essp.secretMounts" $root | trim | nindent 6 }}
      {{- with $pool.volumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - {name: tmp, emptyDir: {sizeLimit: {{ .tmp | default "64Mi" }}}}
  {{- include "essp.secretVolumes" (dict "root" $root "who" $who) | trim | nindent 2 }}
  {{- with $pool.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "essp.taskEnv" -}}
{{- range $name, $value := include "essp.config" .root | fromYaml }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- include "essp.secretEnv" .root }}
{{- include "essp.busUser" . }}
{{ .env | default "" }}
{{- with .pool.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
