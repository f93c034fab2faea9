{{/* The settings of processes as environment variables. Each name is a field of services/<service>/config.py. */}}

{{/* A value as pydantic reads it: lists as JSON, whole numbers without an exponent. */}}
{{- define "essp.setting" -}}
{{- if or (kindIs "slice" .) (kindIs "map" .) -}}
{{- toJson . -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{- define "essp.stores" -}}
{{- $stores := list -}}
{{- range .Values.s3.buckets -}}
{{- $options := list -}}
{{- with $.Values.s3.endpoint -}}{{- $options = append $options (printf "endpoint=%s" .) -}}{{- end -}}
{{- with $.Values.s3.region -}}{{- $options = append $options (printf "region=%s" .) -}}{{- end -}}
{{- $stores = append $stores (printf "s3://%s%s" . (ternary (printf "?%s" (join "&" $options)) "" (gt (len $options) 0))) -}}
{{- end -}}
{{- toRawJson $stores -}}
{{- end -}}

{{- define "essp.bus" -}}
{{- $kafka := .Values.kafka -}}
{{- $options := list -}}
{{- if $kafka.caSecret -}}{{- $options = append $options "ca=/etc/essp/kafka/ca.crt" -}}{{- end -}}
{{- if $kafka.clientSecret -}}{{- $options = append $options "cert=/etc/essp/kafka/tls.crt&key=/etc/essp/kafka/tls.key" -}}{{- end -}}
{{- if .Values.servers.bundled -}}{{- $options = append $options "session_timeout_ms=6000" -}}{{- end -}}
{{- with $kafka.sasl -}}{{- $options = append $options (printf "sasl=%s&password_file=/etc/essp/kafka/password" .) -}}{{- end -}}
{{- printf "%s://%s%s" (ternary "kafka+ssl" "kafka" $kafka.tls) (join "," $kafka.servers) (ternary (printf "?%s" (join "&" $options)) "" (gt (len $options) 0)) -}}
{{- end -}}

{{/* A topic or consumer group as brokers have it: (dict "root" $ "name" "essp.seeds"). */}}
{{- define "essp.ofTenant" -}}
{{- with .root.Values.tenant }}{{ . }}.{{ end }}{{ .name }}
{{- end -}}

{{/* What all processes have in common and is no secret. */}}
{{- define "essp.config" -}}
ESSP_BUS: {{ include "essp.bus" . | quote }}
{{- with .Values.kafka.user }}
{{- if not (contains "{service}" .) }}
ESSP_BUS_USER: {{ . | quote }}
{{- end }}
{{- end }}
{{- if not .Values.redis.existingSecret }}
{{- $scheme := printf "%s%s" (ternary "rediss" "redis" .Values.redis.tls) (ternary "+cluster" "" (eq .Values.redis.mode "cluster")) }}
{{- $path := ternary "" (printf "/%d" (int .Values.redis.database)) (eq .Values.redis.mode "cluster") }}
{{- $options := list }}
{{- if .Values.redis.caSecret }}{{ $options = append $options "ssl_ca_certs=/etc/essp/redis/ca.crt" }}{{ end }}
{{- if .Values.redis.clientSecret }}{{ $options = append $options "ssl_certfile=/etc/essp/redis/tls.crt&ssl_keyfile=/etc/essp/redis/tls.key" }}{{ end }}
{{- if .Values.redis.passwordSecret }}{{ $options = append $options "password_file=/etc/essp/redis/password" }}{{ end }}
{{- $query := ternary (printf "?%s" (join "&" $options)) "" (gt (len $options) 0) }}
{{- $user := "" }}
{{- with .Values.redis.user }}{{ $user = printf "%s@" . }}{{ end }}
ESSP_CACHE: {{ printf "%s://%s%s%s%s" $scheme $user .Values.redis.server $path $query | quote }}
{{- end }}
{{- with .Values.tenant }}
ESSP_TENANT: {{ . | quote }}
{{- end }}
{{- if ne (int .Values.topics.partitions) 64 }}
ESSP_PARTITIONS: {{ .Values.topics.partitions | quote }}
{{- end }}
ESSP_STORES: {{ include "essp.stores" . | quote }}
{{- if .Values.s3.credentialsSecret }}
AWS_SHARED_CREDENTIALS_FILE: /etc/essp/s3/credentials
{{- end }}
{{- if .Values.s3.caSecret }}
AWS_CA_BUNDLE: /etc/essp/s3/ca.crt
{{- end }}
{{- range $name, $value := .Values.settings }}
ESSP_{{ upper $name }}: {{ include "essp.setting" $value | quote }}
{{- end }}
{{- end -}}

{{/* The user in Kafka, where each service has its own: (dict "root" $ "who" SERVICE), a name of `essp setup --acls`. */}}
{{- define "essp.busUser" -}}
{{- $who := .who -}}
{{- with .root.Values.kafka.user }}
{{- if contains "{service}" . }}
- {name: ESSP_BUS_USER, value: {{ replace "{service}" $who . | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Environment variables that come from Secrets. */}}
{{- define "essp.secretEnv" -}}
{{- $secrets := list -}}
{{- with .Values.redis }}{{ if .existingSecret }}
- name: ESSP_CACHE
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .secretKey }}}}
{{- end }}{{ end }}
{{- with .Values.s3.existingSecret }}
{{- $secret := . }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ . }}}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Environment variables, each of them once. Of several with one name the last counts, as it does in Kubernetes, whose server-side apply and patches take no name twice. */}}
{{- define "essp.once" -}}
{{- $all := fromYamlArray . -}}
{{- $last := dict -}}
{{- range $place, $variable := $all -}}
{{- $_ := set $last $variable.name $place -}}
{{- end -}}
{{- $kept := list -}}
{{- range $place, $variable := $all -}}
{{- if eq $place (get $last $variable.name) -}}{{- $kept = append $kept $variable -}}{{- end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end -}}

{{/* Environment variables of one pool. */}}
{{- define "essp.env" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- include "essp.secretEnv" $root }}
{{- include "essp.busUser" (dict "root" $root "who" $pool.service) }}
{{- if eq $pool.service "master" }}
{{- if $root.Values.api.open }}
- {name: ESSP_API_OPEN, value: "true"}
{{- end }}
{{- if $root.Values.servers.bundled }}
- {name: ESSP_TRIAL_SERVERS, value: "true"}
{{- end }}
- {name: ESSP_API_HOSTS, value: {{ include "essp.apiHosts" $root | quote }}}
{{- if not $root.Values.api.open }}
- {name: ESSP_API_TOKEN_FILE, value: /etc/essp/api/token}
{{- end }}
{{- include "essp.controlEnv" . }}
{{- else }}
- {name: ESSP_METRICS_PORT, value: {{ include "essp.metricsPort" . | quote }}}
{{- end }}
{{- range $name, $value := $pool.settings }}
- {name: ESSP_{{ upper $name }}, value: {{ include "essp.setting" $value | quote }}}
{{- end }}
{{- with $pool.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The names under which callers reach the master: a request for another one could be a foreign page's. */}}
{{- define "essp.apiHosts" -}}
{{- $service := printf "%s-master" (include "essp.fullname" .) -}}
{{- $inside := printf "%s.%s" $service .Release.Namespace -}}
{{- $names := list $service $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside) -}}
{{- if .Values.api.ingress.enabled }}{{ $names = append $names .Values.api.ingress.host }}{{ end -}}
{{- if .Values.api.httpRoute.enabled }}{{ $names = concat $names .Values.api.httpRoute.hostnames }}{{ end -}}
{{- concat $names .Values.api.hosts | uniq | toRawJson -}}
{{- end -}}

{{/* The token of a caller; the master has it as a file. */}}
{{- define "essp.tokenEnv" -}}
{{- with .Values.api }}
{{- if not .open }}
- name: ESSP_API_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .secretKey }}}}
{{- end }}
{{- end }}
{{- end -}}

{{/* How the master takes part in the cluster (_control.tpl). */}}
{{- define "essp.controlEnv" -}}
{{- $control := .root.Values.controlPlane -}}
{{- if or $control.registrations $control.ranks (eq (include "essp.masterScales" .root) "true") }}
- {name: ESSP_POOLS, value: kubernetes}
{{- end }}
{{- if or $control.registrations $control.ranks (eq (include "essp.masterScales" .root) "true") .root.Values.videoJobs.enabled }}
- {name: ESSP_RELEASE, value: {{ .root.Release.Name }}}
{{- end }}
{{- with .root.Values.videoJobs }}
{{- if .enabled }}
- {name: ESSP_VIDEO_JOBS, value: {{ ternary "all" "own" .fromApi | quote }}}
{{- with .team }}
- {name: ESSP_VIDEO_JOBS_TEAM, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- if or $control.registrations $control.ranks }}
- {name: ESSP_OWNER, value: {{ include "essp.fullname" .root }}-templates}
{{- end }}
{{- with $control.ranks }}
- {name: ESSP_RANKS, value: {{ . | quote }}}
{{- end }}
{{- if $control.leaderElection }}
- {name: ESSP_LEASE, value: {{ include "essp.fullname" .root }}-master}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: ESSP_URL, value: "http://$(POD_IP):8080"}
{{- end }}
{{- end -}}

{{/* Where workers serve /metrics, /livez and /readyz. */}}
{{- define "essp.metricsPort" -}}
9100
{{- end -}}
