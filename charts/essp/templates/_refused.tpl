{{/*
Keys of other charts are refused with what to use instead, so that no value is silently ignored. The schema lets them pass, marked as deprecated, for this message to come up.
*/}}
{{- define "essp.refused" -}}
{{- $advice := dict
  "replicaCount" "set pools.<name>.replicas"
  "resources" "set poolDefaults.resources, or pools.<name>.resources"
  "workers" "is called pools"
  "serviceMonitor" "is called monitoring.monitors"
  "kafka.enabled" "servers.bundled=true brings a broker to try ESSP with"
  "redis.enabled" "servers.bundled=true brings one to try ESSP with"
  "redis.password" "passwords are not values: put it into a Secret and name that in redis.passwordSecret"
  "s3.secretKey" "keys are not values: put them into a Secret and name it in s3.existingSecret"
  "api.token" "tokens are not values: put it into a Secret and name it in api.existingSecret"
-}}
{{- $found := list -}}
{{- range $path, $say := $advice -}}
{{- $parts := splitList "." $path -}}
{{- $there := $.Values -}}
{{- range initial $parts -}}{{- $there = index $there . -}}{{- end -}}
{{- if hasKey $there (last $parts) -}}{{- $found = append $found (printf "%s: %s" $path $say) -}}{{- end -}}
{{- end -}}
{{- if $found -}}
{{- fail (printf "\n\n  %s\n" (join "\n  " $found)) -}}
{{- end -}}
{{- end -}}
