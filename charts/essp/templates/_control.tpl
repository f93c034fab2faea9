{{/*
What the master may do in the cluster, and the contract that it relies on (services/essp_master/pools/kubernetes.py).

  label      essp.dev/pool                on every pool's workload and pods: the pool's name
  label      essp.dev/scaled-by: master   on Deployments whose replicas the master sets, by the scale subresource
  annotation essp.dev/work                on the same: what their workers do, as in heartbeats (decoder, extractor.flow)
  annotation essp.dev/min-replicas, essp.dev/max-replicas    on the same: the bounds
  annotation controller.kubernetes.io/pod-deletion-cost      set by the master on pods, so that idle ones go first
  label      app.kubernetes.io/instance   ESSP_RELEASE: the master does not touch pools and trainers of other releases
  label      essp.dev/training            set by the master on the Jobs of trainers that it starts
  label      essp.dev/job, essp.dev/trainer    set by the master on the same and on their pods, for users
  annotation essp.dev/made-of             set by the master on the same, and on Deployments of registered extractors: a
             digest, which shows what has changed
  annotation essp.dev/ranks               set by the master on the same: the ranks of the training, by which its successor
             knows them
  annotation essp.dev/ranks-per-node      on the template of those Jobs: how many ranks may share a pod
  files      /etc/essp/templates/extractor-deployment.yaml, trainer-job.yaml: what it makes of a registered extractor and
             of a training; it fills in REGISTERED, image, args, resources, sizes (NNODES and so on).
             It reads them again and again: mounted as a folder, they follow an upgrade within a minute or two
  lease      <fullname>-master            which master leads
  resource   VideoJob (crds/videojobs.yaml), where videoJobs.enabled: a job. The master writes its status, and the
             finalizer essp.io/job while the job is under way; it owns the Jobs of the job's trainers
  label      essp.io/release              on a VideoJob: the release that it is for; without it, that of the namespace
  events     EsspPool                     of a pool's Deployment or a training's Job: what the master did to it, and why

A Role gives exactly the rights for this, in the release's namespace, and only for what is switched on. No other pod has
a token. What the master has made is labelled app.kubernetes.io/managed-by: essp-master. Its owner is the ConfigMap
<fullname>-templates (ESSP_OWNER), so it outlives masters and upgrades, and goes with the release. Only the Jobs of a
VideoJob's trainers have that as their owner instead.
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
{{- $needed := or $control.leaderElection $control.registrations (gt (int $control.ranks) 0) (eq (include "essp.masterScales" .root) "true") .root.Values.videoJobs.enabled -}}
{{- and (eq .pool.service "master") $needed -}}
{{- end -}}

{{/* Does this pool get the templates of the objects made at run time? */}}
{{- define "essp.makesPools" -}}
{{- $control := .root.Values.controlPlane -}}
{{- and (eq .pool.service "master") (or $control.registrations (gt (int $control.ranks) 0)) -}}
{{- end -}}

{{/* What a pool's workers do, as they say it in heartbeats; it is also the name of their consumer group. */}}
{{- define "essp.work" -}}
{{- if eq .service "extractor" -}}
extractor.{{ join "+" (.features | uniq | sortAlpha) }}
{{- else -}}
{{ .service }}
{{- end -}}
{{- end -}}
