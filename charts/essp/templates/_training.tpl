{{/*
A training of one or more nodes: an indexed Job, whose pods are the nodes of a rendezvous as torch.distributed expects
it. With one rank a pod the variables of torchrun are set here; with more, torchrun starts them in each pod.

A Job cannot be changed, so its name ends in a digest of all that it is made of: an upgrade that changes it replaces it,
and the new one goes on at the last checkpoint. A trainer that leaves before the training is over ends with another code
than 0, so a drained node does not count as a training that is done. If one of its nodes is drained, all ranks leave:
those of the other nodes are no failures either, so their code (76) uses up no retry. Ranks that lost one that died end
with 75, which does. Only a wrong configuration (2) ends the Job at once.
*/}}
{{- define "essp.training" -}}
{{- $training := include "essp.trainingOf" .pool | fromJson -}}
{{- $digest := toJson (list (include "essp.podTemplate" .) (omit $training "suspend") .pool.workloadLabels .pool.workloadAnnotations) | sha256sum | trunc 8 -}}
{{- $name := printf "%s-%s" (include "essp.poolName" .) $digest -}}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  labels:
    {{- include "essp.labels" .root | nindent 4 }}
    app.kubernetes.io/component: trainer
    essp.dev/pool: {{ .pool.name }}
    {{- with .pool.workloadLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .pool.workloadAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  suspend: {{ $training.suspend }}
  {{- include "essp.trainingSpec" (merge (dict "name" $name "training" $training) .) | nindent 2 }}
{{- end -}}

{{- define "essp.trainingOf" -}}
{{- mergeOverwrite (dict "nodes" 1 "ranksPerNode" 1 "port" 29500 "suspend" false "retries" 20) .training | toJson -}}
{{- end -}}

{{/* All of a training's Job but its size, which may change, and its name: (dict "root" $ "pool" $pool "name" NAME "training" TRAINING). */}}
{{- define "essp.trainingSpec" -}}
{{- $training := .training -}}
completionMode: Indexed
completions: {{ $training.nodes }}
parallelism: {{ $training.nodes }}
backoffLimit: {{ mul $training.retries $training.nodes }}
# A pod is replaced only when it is gone for good: two pods never run the same rank.
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    - action: FailJob
      onExitCodes: {containerName: trainer, operator: In, values: [2]}
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    - action: Ignore
      onExitCodes: {containerName: trainer, operator: In, values: [76]}
template:
  {{- $ranks := dict "rendezvous" (include "essp.rendezvous" .) "command" (include "essp.rankCommand" $training | fromJsonArray) }}
  {{- include "essp.podTemplate" (merge $ranks .) | nindent 2 }}
{{- end -}}

{{- define "essp.rankCommand" -}}
{{- $command := list -}}
{{- if gt (int .ranksPerNode) 1 -}}
{{- $command = list "tini" "--" "torchrun" "--nnodes=$(NNODES)" "--nproc-per-node=$(RANKS_PER_NODE)" "--node-rank=$(NODE_RANK)" "--master-addr=$(MASTER_ADDR)" "--master-port=$(MASTER_PORT)" "--no-python" "essp" -}}
{{- end -}}
{{- toRawJson $command -}}
{{- end -}}

{{/* Pod 0 of an indexed Job is host <job>-0, and has an address below the Service that all trainers share. */}}
{{- define "essp.rendezvous" -}}
{{- $rank := "fieldRef: {fieldPath: \"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}" -}}
# A pod that leaves before the end must not count as finished.
- {name: ESSP_DRAINED_EXIT, value: "76"}
- {name: MASTER_ADDR, value: {{ .name }}-0.{{ include "essp.ranksService" .root }}}
- {name: MASTER_PORT, value: {{ .training.port | quote }}}
{{- if gt (int .training.ranksPerNode) 1 }}
- name: NODE_RANK
  valueFrom: { {{- $rank -}} }
# After SIGTERM torchrun kills ranks that have not ended by then, after 30 s if nobody says more.
- {name: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, value: {{ max 1 (sub (include "essp.graceS" . | int) 10) | quote }}}
- {name: NNODES, value: {{ .training.nodes | quote }}}
- {name: RANKS_PER_NODE, value: {{ .training.ranksPerNode | quote }}}
{{- else }}
- name: RANK
  valueFrom: { {{- $rank -}} }
- {name: WORLD_SIZE, value: {{ .training.nodes | quote }}}
- {name: LOCAL_RANK, value: "0"}
- {name: LOCAL_WORLD_SIZE, value: "1"}
{{- end }}
{{- end -}}

{{- define "essp.ranksService" -}}
{{ include "essp.fullname" . }}-ranks
{{- end -}}

{{/* Are there trainer pools, or may the master start trainers? */}}
{{- define "essp.trains" -}}
{{- $found := gt (int .Values.controlPlane.ranks) 0 -}}
{{- range include "essp.pools" . | fromJson -}}
{{- if eq .service "trainer" -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}
