{{/*
What the master may do in the cluster, and the contract that it relies on.

  label      essp.dev/pool                  name of a pool, on its Deployment and its pods
  label      essp.dev/scaled-by: master     on Deployments whose replicas the master sets (scale subresource)
  annotation essp.dev/min-replicas, essp.dev/max-replicas   its bounds, on the same Deployments
  annotation controller.kubernetes.io/pod-deletion-cost     set by the master on pods: idle ones go first
  file       /etc/essp/templates/extractor-deployment.yaml  the Deployment of an extractor that is registered at run time
  lease      <fullname>-master              which master leads

A Role gives exactly these rights, in the release's namespace, and only to what is switched on. No other pod has a token.
*/}}

{{- define "essp.masterScales" -}}
{{- $found := false -}}
{{- range $name, $pool := include "essp.pools" . | fromJson -}}
{{- if eq (include "essp.scaledBy" (dict "root" $ "pool" $pool)) "master" -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Does this pool need a token of the API server? */}}
{{- define "essp.needsToken" -}}
{{- $control := .root.Values.controlPlane -}}
{{- and (eq .pool.service "master") (or $control.leaderElection $control.registrations (eq (include "essp.masterScales" .root) "true")) -}}
{{- end -}}

{{- define "essp.registers" -}}
{{- and (eq .pool.service "master") .root.Values.controlPlane.registrations -}}
{{- end -}}
