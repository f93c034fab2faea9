{{/*
Every pool of the release, as JSON: name -> what poolDefaults and its own values say, with `name` and `service` in it.
Maps are merged, lists replaced. A pool that is not enabled is left out.
*/}}
{{- define "essp.pools" -}}
{{- $pools := dict -}}
{{- range $name, $own := .Values.pools -}}
{{- $_ := set $pools $name (mergeOverwrite (deepCopy $.Values.poolDefaults) (deepCopy $own) (dict "name" $name "service" $name)) -}}
{{- end -}}
{{- range $name, $own := .Values.extraPools -}}
{{- if hasKey $.Values.pools $name -}}
{{- fail (printf "extraPools.%s: there is a pool of that name; change pools.%s instead" $name $name) -}}
{{- end -}}
{{- $_ := set $pools $name (mergeOverwrite (deepCopy $.Values.poolDefaults) (deepCopy $own) (dict "name" $name)) -}}
{{- end -}}
{{- if .Values.servers.bundled -}}
{{- $_ := set $pools "servers" (include "essp.bundledPool" (dict "root" .) | fromJson) -}}
{{- end -}}
{{- range $name, $pool := $pools -}}
{{- if not $pool.enabled -}}{{- $_ := unset $pools $name -}}{{- end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/* What scales a pool: none, hpa, keda or master. What waits for predictors is in many groups, one for each job, which
KEDA does not know, and jobs that wait for aggregators are in none. Nothing else is worth scaling. */}}
{{- define "essp.scaledBy" -}}
{{- $by := .pool.autoscaling.provider | default .root.Values.autoscaling.provider -}}
{{- if or (has .pool.service (list "decoder" "extractor")) (and (has .pool.service (list "predictor" "aggregator")) (ne $by "keda")) -}}
{{- $by -}}
{{- else -}}
none
{{- end -}}
{{- end -}}

{{/* The image of a pool. Trainers, aggregator and predictor share one, built for CPUs or for GPUs. */}}
{{- define "essp.image" -}}
{{- $own := .pool.image -}}
{{- $kind := "master" -}}
{{- $variant := "" -}}
{{- if has .pool.service (list "decoder" "extractor") -}}
{{- $kind = "video" -}}
{{- else if has .pool.service (list "servers" "demo") -}}
{{- $kind = .pool.service -}}
{{- else if ne .pool.service "master" -}}
{{- $kind = "trainer" -}}
{{- $variant = ternary "-cuda" "-cpu" (gt (int .pool.gpu.count) 0) -}}
{{- end -}}
{{- $registry := .root.Values.image.registry | trimSuffix "/" -}}
{{- $name := printf "essp-%s" $kind -}}
{{- $repository := $own.repository | default (ternary (printf "%s/%s" $registry $name) $name (ne $registry "")) -}}
{{- if $own.digest -}}
{{- printf "%s@%s" $repository $own.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($own.tag | default (printf "%s%s" (.root.Values.image.tag | default .root.Chart.AppVersion) $variant)) -}}
{{- end -}}
{{- end -}}

{{/* The arguments of a pool's process. */}}
{{- define "essp.args" -}}
{{- $pool := .pool -}}
{{- $args := list $pool.service -}}
{{- if eq $pool.service "master" -}}
{{- $args = list "master" "--host" "::" "--port" "8080" -}}
{{- else if eq $pool.service "extractor" -}}
{{- $args = list "extractor" "run" -}}
{{- range $pool.features -}}{{- $args = concat $args (list "--feature" .) -}}{{- end -}}
{{- else if eq $pool.service "servers" -}}
{{- $name := printf "%s.%s.svc" (include "essp.bundledName" .root) .root.Release.Namespace -}}
{{- $args = list "servers" "up" "--host" "::" "--name" $name "--redis-port" "6379" "--kafka-port" "9092" "--s3-port" "7070" "--redis-memory" .root.Values.servers.redisMemory "--keep" "/data" "--login" "/etc/essp/servers" -}}
{{- else if eq $pool.service "trainer" -}}
{{- $args = list "trainer" "--job" $pool.training.job "--trainer" $pool.training.trainer -}}
{{- end -}}
{{- toJson $args -}}
{{- end -}}

{{/* Seconds between SIGTERM and SIGKILL: ESSP_DRAIN_S, and 15 more. */}}
{{- define "essp.graceS" -}}
{{- if .pool.graceS -}}
{{- .pool.graceS | int -}}
{{- else -}}
{{- $drain := dig "drain_s" (dig "drain_s" 30 .root.Values.settings) .pool.settings -}}
{{- add (ceil $drain | int) 15 -}}
{{- end -}}
{{- end -}}
