{{/*
With servers.bundled, the release brings its own Kafka, Redis and object store, for trying ESSP: one pod, "servers", which
runs `essp servers up`. This fills in what else names them, and sizes that a user has not set (files/sizes.yaml), as if
a user had written it; every template that reads values says it first.
*/}}
{{- define "essp.bundled" -}}
{{- include "essp.completed" (dict "values" .Values "defaults" (omit (.Files.Get "files/defaults.json" | fromJson) "podSecurity" "poolDefaults" "pools")) -}}
{{- if .Values.servers.bundled -}}
{{- $name := include "essp.bundledName" . -}}
{{- $host := printf "%s.%s.svc" $name .Release.Namespace -}}
{{- $kafka := list (printf "%s:9092" $host) -}}
{{- $redis := printf "%s:6379" $host -}}
{{- $s3 := printf "http://%s:7070" $host -}}
{{- $taken := list -}}
{{- if and .Values.kafka.servers (ne (toJson .Values.kafka.servers) (toJson $kafka)) -}}{{- $taken = append $taken "kafka.servers" -}}{{- end -}}
{{- if and .Values.redis.server (ne .Values.redis.server $redis) -}}{{- $taken = append $taken "redis.server" -}}{{- end -}}
{{- if and .Values.s3.endpoint (ne .Values.s3.endpoint $s3) -}}{{- $taken = append $taken "s3.endpoint" -}}{{- end -}}
{{- $buckets := list -}}
{{- range .Values.s3.buckets -}}{{- $buckets = append $buckets (splitList "/" . | first) -}}{{- end -}}
{{- /* It has one bucket, and no one creates others. */ -}}
{{- if without $buckets "essp" -}}{{- $taken = append $taken "s3.buckets" -}}{{- end -}}
{{- if eq .Values.redis.mode "cluster" -}}{{- $taken = append $taken "redis.mode" -}}{{- end -}}
{{- if not (has .Values.redis.passwordSecret (list "" $name)) -}}{{- $taken = append $taken "redis.passwordSecret" -}}{{- end -}}
{{- if not (has .Values.s3.credentialsSecret (list "" $name)) -}}{{- $taken = append $taken "s3.credentialsSecret" -}}{{- end -}}
{{- range $server, $fields := dict "kafka" (list "caSecret" "clientSecret" "existingSecret" "sasl" "tls") "redis" (list "caSecret" "clientSecret" "existingSecret" "tls" "user") "s3" (list "caSecret" "existingSecret") -}}
{{- range $field := $fields -}}
{{- if index $.Values $server $field -}}{{- $taken = append $taken (printf "%s.%s" $server $field) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $taken -}}
{{- fail (printf "\n\n  servers.bundled brings its own servers; leave out %s, or servers.bundled\n" (join ", " $taken)) -}}
{{- end -}}
{{- $_ := set .Values.kafka "servers" $kafka -}}
{{- $_ := mergeOverwrite .Values.redis (dict "mode" "single" "server" $redis "passwordSecret" $name "passwordKey" "password") -}}
{{- $_ := mergeOverwrite .Values.s3 (dict "buckets" (.Values.s3.buckets | default (list "essp")) "endpoint" $s3 "region" "us-east-1" "credentialsSecret" $name) -}}
{{- if not (or .Values.api.existingSecret .Values.api.open) -}}
{{- $_ := mergeOverwrite .Values.api (dict "existingSecret" $name "secretKey" "token") -}}
{{- end -}}
{{- /* There is nothing that topics could be made in before the servers run; every process makes what it misses. */ -}}
{{- $_ := set .Values.topics.job "enabled" false -}}
{{- end -}}
{{- $small := and .Values.servers.bundled .Values.servers.small -}}
{{- $sizes := .Files.Get "files/sizes.yaml" | fromYaml -}}
{{- range $path, $size := $sizes.counts -}}
{{- include "essp.sized" (dict "values" $.Values "path" $path "default" nil "size" (index $size (ternary 1 0 $small))) -}}
{{- end -}}
{{- if $small -}}
{{- range $path, $size := $sizes.amounts -}}
{{- include "essp.sized" (dict "values" $.Values "path" $path "default" (first $size) "size" (last $size)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Sets a size where there is the default: (dict "values" .Values "path" PATH "default" DEFAULT "size" SIZE). */}}
{{- define "essp.sized" -}}
{{- $steps := splitList "." .path -}}
{{- $there := .values -}}
{{- range initial $steps -}}
{{- if not (index $there .) -}}{{- $_ := set $there . dict -}}{{- end -}}
{{- $there = index $there . -}}
{{- end -}}
{{- if eq (index $there (last $steps) | toString) (.default | toString) -}}
{{- $_ := set $there (last $steps) .size -}}
{{- end -}}
{{- end -}}

{{/*
Gives values that are not there their defaults: `helm upgrade --reuse-values` takes the defaults of the chart that the
release had, which lacks what is new. What may be left out on purpose, with null, stays so: requests and limits, and the
fields of pods.
*/}}
{{- define "essp.completed" -}}
{{- $values := .values -}}
{{- range $key, $default := .defaults -}}
{{- if kindIs "invalid" (index $values $key) -}}
{{- $_ := set $values $key $default -}}
{{- else if and (kindIs "map" $default) (kindIs "map" (get $values $key)) (ne $key "resources") -}}
{{- include "essp.completed" (dict "values" (get $values $key) "defaults" $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "essp.bundledName" -}}
{{ include "essp.fullname" . }}-servers
{{- end -}}

{{/* The pool of the servers: (dict "root" $). */}}
{{- define "essp.bundledPool" -}}
{{- $servers := .root.Values.servers -}}
{{- $pool := mergeOverwrite (deepCopy .root.Values.poolDefaults) (pick $servers "image" "resources" "nodeSelector" "tolerations") -}}
{{- $_ := mergeOverwrite $pool (dict "name" "servers" "service" "servers" "enabled" true "replicas" 1 "features" (list) "settings" (dict) "gpu" (dict "count" 0)) -}}
{{- toJson $pool -}}
{{- end -}}
