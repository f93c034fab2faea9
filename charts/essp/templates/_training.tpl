{{/*
A training of one or more nodes: an indexed Job, whose pods are the nodes of a rendezvous as torch.distributed expects
it. With one rank a pod the variables of torchrun are set here; with more, torchrun starts them in each pod.

A Job cannot be changed, so its name ends in a digest of all that it is made of: an upgrade that changes it replaces it,
and the new one goes on at the last checkpoint. A rank that leaves before the training is over ends with another code
than 0, so a drained node does not count as a training that is done; only a wrong configuration (2) ends the Job at once.
*/}}
{{- define "essp.training" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $training := mergeOverwrite (dict "nodes" 1 "ranksPerNode" 1 "port" 29500 "suspend" false "retries" 20) $pool.training -}}
{{- $service := include "essp.poolName" . -}}
{{- $made := list (include "essp.podTemplate" .) (omit $training "suspend") -}}
{{- $name := printf "%s-%s" $service (toJson $made | sha256sum | trunc 8) -}}
{{- $address := printf "%s-0.%s" $name $service -}}
{{- $command := list -}}
{{- if gt (int $training.ranksPerNode) 1 -}}
{{- $command = list "torchrun" (printf "--nnodes=%d" (int $training.nodes)) (printf "--nproc-per-node=%d" (int $training.ranksPerNode)) "--node-rank=$(NODE_RANK)" "--master-addr=$(MASTER_ADDR)" "--master-port=$(MASTER_PORT)" "--no-python" "essp" -}}
{{- end -}}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $service }}
  labels:
    {{- include "essp.labels" $root | nindent 4 }}
    app.kubernetes.io/component: trainer
    essp.dev/pool: {{ $pool.name }}
spec:
  clusterIP: None
  # The ranks meet before any of them is ready.
  publishNotReadyAddresses: true
  selector:
    {{- include "essp.poolSelector" . | nindent 4 }}
  ports:
    - {name: rendezvous, port: {{ $training.port }}, targetPort: {{ $training.port }}}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  labels:
    {{- include "essp.labels" $root | nindent 4 }}
    app.kubernetes.io/component: trainer
    essp.dev/pool: {{ $pool.name }}
spec:
  completionMode: Indexed
  completions: {{ $training.nodes }}
  parallelism: {{ $training.nodes }}
  suspend: {{ $training.suspend }}
  backoffLimit: {{ mul $training.retries $training.nodes }}
  # A rank's place is taken only when its pod is gone for good: there are never two of one rank.
  podReplacementPolicy: Failed
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes: {containerName: trainer, operator: In, values: [2]}
      - action: Ignore
        onPodConditions: [{type: DisruptionTarget, status: "True"}]
  template:
    {{- include "essp.podTemplate" (merge (dict "rendezvous" (include "essp.rendezvous" (dict "training" $training "address" $address)) "command" $command) .) | nindent 4 }}
{{- end -}}

{{- define "essp.rendezvous" -}}
{{- $rank := "fieldRef: {fieldPath: \"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}" -}}
- {name: MASTER_ADDR, value: {{ .address }}}
- {name: MASTER_PORT, value: {{ .training.port | quote }}}
{{- if gt (int .training.ranksPerNode) 1 }}
- name: NODE_RANK
  valueFrom: { {{- $rank -}} }
{{- else }}
- name: RANK
  valueFrom: { {{- $rank -}} }
- {name: WORLD_SIZE, value: {{ .training.nodes | quote }}}
- {name: LOCAL_RANK, value: "0"}
- {name: LOCAL_WORLD_SIZE, value: "1"}
{{- end }}
{{- end -}}
