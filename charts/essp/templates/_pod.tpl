{{/*
The pod of a pool: (dict "root" $ "pool" $pool), and for a training "rendezvous", its environment, and "command".
What the restricted pod security standard asks for, and a root that is read only, are not values: no pool can drop them.
*/}}
{{- define "essp.podTemplate" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $training := eq $pool.service "trainer" -}}
metadata:
  labels:
    {{- include "essp.poolSelector" . | nindent 4 }}
    {{- with $root.Values.tenant }}
    essp.dev/tenant: {{ . | quote }}
    {{- end }}
    {{- with $root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $pool.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- /* Bundled servers read no setting, and lose topics and frames with their pod: another setting is no reason. */}}
  {{- $restarts := ne $pool.service "servers" }}
  {{- if or $restarts $pool.podAnnotations }}
  annotations:
    {{- if $restarts }}
    checksum/config: {{ include "essp.config" $root | sha256sum }}
    {{- end }}
    {{- with $pool.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "essp.serviceAccountName" . }}
  automountServiceAccountToken: {{ eq (include "essp.needsToken" .) "true" }}
  enableServiceLinks: false
  {{- include "essp.podSecurity" $root | nindent 2 }}
  {{- with include "essp.pullSecrets" $root }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ include "essp.graceS" . }}
  {{- if $training }}
  restartPolicy: Never
  subdomain: {{ include "essp.ranksService" $root }}
  {{- end }}
  {{- with include "essp.placement" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $pool.hostAliases }}
  hostAliases:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.dnsConfig }}
  dnsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.initContainers }}
  initContainers:
    {{- range . }}
    - {{ merge (omit . "securityContext") (include "essp.containerSecurity" $root | fromYaml) | toYaml | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ $pool.service }}
      image: {{ include "essp.image" . }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- with .command }}
      command: {{ toJson . }}
      {{- end }}
      args: {{ include "essp.args" . }}
      envFrom:
        - configMapRef: {name: {{ include "essp.fullname" $root }}}
        {{- with $pool.envFrom }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      env:
        {{- include "essp.once" (printf "%s\n%s" (.rendezvous | default "") (include "essp.env" .)) | nindent 8 }}
      ports:
        {{- if eq $pool.service "master" }}
        - {name: http, containerPort: 8080}
        {{- else }}
        {{- if eq $pool.service "servers" }}
        - {name: kafka, containerPort: 9092}
        - {name: redis, containerPort: 6379}
        - {name: s3, containerPort: 7070}
        {{- end }}
        - {name: metrics, containerPort: {{ include "essp.metricsPort" . }}}
        {{- end }}
      {{- include "essp.probes" . | nindent 6 }}
      # The last line of the log is the reason that the master, and `kubectl describe`, give for an end in an error.
      terminationMessagePolicy: FallbackToLogsOnError
      {{- include "essp.containerSecurity" $root | nindent 6 }}
      resources:
        {{- include "essp.resources" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        {{- if eq $pool.service "servers" }}
        - {name: data, mountPath: /data}
        - {name: login, mountPath: /etc/essp/servers, readOnly: true}
        {{- end }}
        {{- include "essp.secretMounts" $root | trim | nindent 8 }}
        {{- if eq (include "essp.takesToken" .) "true" }}
        - {name: api-secrets, mountPath: /etc/essp/api, readOnly: true}
        {{- end }}
        {{- if eq (include "essp.makesPools" .) "true" }}
        - {name: templates, mountPath: /etc/essp/templates, readOnly: true}
        {{- end }}
        {{- with $pool.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {sizeLimit: {{ $pool.tmp }}}}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ $pool.shm }}}}
    {{- if eq $pool.service "servers" }}
    {{- if $root.Values.servers.storage.persistent }}
    - {name: data, persistentVolumeClaim: {claimName: {{ include "essp.bundledName" $root }}}}
    {{- else }}
    - {name: data, emptyDir: {sizeLimit: {{ $root.Values.servers.storage.size }}}}
    {{- end }}
    - {name: login, secret: {secretName: {{ include "essp.bundledName" $root }}, items: [{key: password, path: password}, {key: credentials, path: credentials}]}}
    {{- end }}
    {{- include "essp.secretVolumes" (dict "root" $root "who" $pool.service) | trim | nindent 4 }}
    {{- if eq (include "essp.takesToken" .) "true" }}
    - name: api-secrets
      projected:
        sources:
          - secret: {name: {{ $root.Values.api.existingSecret }}, items: [{key: {{ $root.Values.api.secretKey }}, path: token}]}
    {{- end }}
    {{- if eq (include "essp.makesPools" .) "true" }}
    - {name: templates, configMap: {name: {{ include "essp.fullname" $root }}-templates}}
    {{- end }}
    {{- with $pool.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "essp.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  {{- range $name, $value := .Values.podSecurity }}
  {{- if not (kindIs "invalid" $value) }}
  {{ $name }}: {{ int64 $value }}
  {{- end }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "essp.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Whom to trust, and who a process is to them, as files in /etc/essp/<server>; they change with their Secrets. Volumes: (dict "root" $ "who" SERVICE). */}}
{{- define "essp.secretMounts" -}}
{{- range $server := list "kafka" "redis" "s3" -}}
{{- if include "essp.secretFiles" (dict "root" $ "server" $server "who" "") }}
- {name: {{ $server }}-secrets, mountPath: /etc/essp/{{ $server }}, readOnly: true}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "essp.secretVolumes" -}}
{{- range $server := list "kafka" "redis" "s3" -}}
{{- with include "essp.secretFiles" (dict "root" $.root "server" $server "who" $.who) }}
- name: {{ $server }}-secrets
  projected:
    sources:
      {{- . | trim | nindent 6 }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "essp.secretFiles" -}}
{{- $its := get .root.Values .server -}}
{{- with $its.caSecret }}
- secret: {name: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- with $its.clientSecret }}
- secret: {name: {{ . }}, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
{{- end }}
{{- if and (eq .server "kafka") $its.existingSecret }}
- secret: {name: {{ $its.existingSecret }}, items: [{key: {{ replace "{service}" .who $its.secretKey }}, path: password}]}
{{- end }}
{{- if and (eq .server "s3") $its.credentialsSecret }}
- secret: {name: {{ $its.credentialsSecret }}, items: [{key: credentials, path: credentials}]}
{{- end }}
{{- if and (eq .server "redis") $its.passwordSecret }}
- secret: {name: {{ $its.passwordSecret }}, items: [{key: {{ $its.passwordKey }}, path: password}]}
{{- end }}
{{- end -}}

{{/* Whether a pool's processes are shown the API's token, which is a file for them. */}}
{{- define "essp.takesToken" -}}
{{- and (eq .pool.service "master") (not .root.Values.api.open) -}}
{{- end -}}

{{- define "essp.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The limits of a pool, its GPUs included. */}}
{{- define "essp.resources" -}}
{{- $resources := deepCopy .pool.resources -}}
{{- if .pool.gpu.count -}}
{{- $_ := set $resources "limits" (merge (dict .pool.gpu.resource (toString .pool.gpu.count)) $resources.limits) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Which nodes a pool runs on. */}}
{{- define "essp.placement" -}}
{{- $pool := .pool -}}
{{- $gpu := $pool.gpu -}}
{{- $nodes := deepCopy $pool.nodeSelector -}}
{{- $tolerations := $pool.tolerations -}}
{{- if $gpu.count -}}
{{- with $gpu.type -}}{{- $_ := set $nodes $gpu.typeLabel . -}}{{- end -}}
{{- if $gpu.tolerate -}}
{{- $tolerations = append $tolerations (dict "key" $gpu.resource "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- end -}}
{{- with $pool.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $pool.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $pool.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with $nodes }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pool.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pool.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ toYaml . | nindent 4 | trim }}
    {{- if not .labelSelector }}
    labelSelector:
      matchLabels:
        {{- include "essp.poolSelector" $ | nindent 8 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/*
Alive is who answers; a broker that is away must not restart every worker. Ready is who takes work, and of masters who
answers: a standby forwards to the leader, and a leader that is kept from working is asked why. So its Service never
sends a caller to one that does not listen yet, and a drain never takes the leader because its broker is slow. A start
may take a minute, since it waits for the servers.
*/}}
{{- define "essp.probes" -}}
{{- $port := ternary "http" "metrics" (eq .pool.service "master") -}}
startupProbe:
  httpGet: {path: /livez, port: {{ $port }}}
  {{- if eq .pool.service "trainer" }}
  {{- /* Ranks wait for each other first, for as long as rank_timeout_s says. */}}
  periodSeconds: 10
  failureThreshold: {{ add 12 (div (dig "rank_timeout_s" 600 .pool.settings | int) 10) }}
  {{- else }}
  periodSeconds: 2
  failureThreshold: 60
  {{- end }}
livenessProbe:
  httpGet: {path: /livez, port: {{ $port }}}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: {{ ternary "/livez" "/readyz" (eq .pool.service "master") }}, port: {{ $port }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}
