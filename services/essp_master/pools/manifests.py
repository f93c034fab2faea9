"""Fills in the chart's templates: registrations and trainers as objects of the cluster. Pure.

This module sets names, image, arguments, resources and sizes; everything else, security above all, comes from the
template. Every `REGISTERED` in it becomes the name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from kubernetes.utils.quantity import parse_quantity

from essp_common.runtime import ids
from essp_engine.registrations import ExtractorRow, Resources, TrainerRow

WORK = "essp.dev/work"
TRAINING = "essp.dev/training"
JOB, TRAINER = "essp.dev/job", "essp.dev/trainer"
"""Labels for users, on a training's Job and its pods: `kubectl logs --selector essp.dev/job=NAME`."""
MADE_OF = "essp.dev/made-of"
"""A digest of what a Job, or a registered extractor's Deployment, was built from: it differs if the object should
change."""
RANKS_PER_NODE = "essp.dev/ranks-per-node"
"""In the template: how many ranks of a training may share a pod."""
RANKS = "essp.dev/ranks"
"""On a Job: the ranks of its training in all pods together."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MASTER = "essp-master"
_PLACEHOLDER = "REGISTERED"

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """The VideoJob that a training belongs to."""

    reference: Manifest
    """As in `ownerReferences`."""
    labels: Mapping[str, str]
    """What it passes on to the training's Job."""
    annotations: Mapping[str, str]
    """The same; also to the pods, where queues look for some of them."""


def extractor_deployment(template: str, row: ExtractorRow) -> Manifest:
    """Return the Deployment of a registered extractor."""
    body = _named(template, f"extractor-{row.name.replace('_', '-')}")
    body["metadata"].setdefault("annotations", {})[WORK] = ids.extractor_pool([row.name])
    body["metadata"].setdefault("labels", {})[MANAGED_BY] = MASTER
    body["spec"]["replicas"] = row.min
    container = _container(body)
    container["image"] = row.image
    container["args"] = ["extractor", "run", f"--feature={row.name}"]
    container["resources"] = _resources(row.resources)
    _set_environment(container, row.environment)
    return _with_digest(body)


def training_name(job: str, trainer: str) -> str:
    """Return the name of a trainer's Job: readable, and different for any two trainers, however similar their names."""
    readable = f"{job}-{trainer}".replace("_", "-")[:24].rstrip("-")
    return f"{readable}-{hashlib.sha256(f'{job} {trainer}'.encode()).hexdigest()[:8]}"


def training_job(
    template: str, job: str, trainer: str, ranks: int, row: TrainerRow | None, owner: Owner | None = None
) -> Manifest:
    """Return the indexed Job of a training: its pods are the nodes of a rendezvous, each with the same number of ranks.
    `owner`: the VideoJob of the job, if it has one.

    The template and the row have the resources of one rank; a pod with several ranks gets that many times as much.
    """
    name = training_name(job, trainer)
    body = _named(template, name)
    metadata, spec, container = body["metadata"], body["spec"], _container(body)
    annotations = metadata.setdefault("annotations", {})
    per_node = ranks_per_node(ranks, int(annotations.get(RANKS_PER_NODE, 1)))
    nodes = ranks // per_node
    names = {JOB: job, TRAINER: trainer}
    metadata.setdefault("labels", {}).update({TRAINING: name, **names})
    spec["template"]["metadata"].setdefault("labels", {}).update(names)
    annotations |= {WORK: ids.trainer_pool(job, trainer), RANKS: str(ranks)}
    if owner is not None:
        metadata["labels"] |= owner.labels
        annotations |= owner.annotations
        body["spec"]["template"]["metadata"].setdefault("annotations", {}).update(owner.annotations)
    spec |= {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed"}
    if "backoffLimit" in spec:
        spec["backoffLimit"] *= nodes  # one failing pod makes all pods of the group fail
    container["args"] = ["trainer", f"--job={job}", f"--trainer={trainer}"]
    if row is not None:
        container["image"] = row.image
        container["resources"] = _resources(row.resources)
    _multiply(body, per_node)
    world = {"WORLD_SIZE": ranks, "NNODES": nodes, "RANKS_PER_NODE": per_node}
    _set_environment(
        container, {**(row.environment if row else {}), **{variable: str(size) for variable, size in world.items()}}
    )
    return _with_digest(body)


def config_map(found: Any) -> Manifest:
    """Return a ConfigMap, an API object, as an owner of other objects."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": found.metadata.name, "uid": found.metadata.uid}


def owned(body: Manifest, reference: Manifest) -> Manifest:
    """Return the object with an owner: Kubernetes removes it together with that."""
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [reference]}}


def ranks_per_node(ranks: int, limit: int) -> int:
    """Return the largest number of ranks per pod, up to `limit`, that gives all pods the same number."""
    return next(count for count in range(min(ranks, limit), 0, -1) if ranks % count == 0)


def _with_digest(body: Manifest) -> Manifest:
    """Return the object with a digest of its content."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    body["metadata"]["annotations"][MADE_OF] = digest
    return body


def _named(template: str, name: str) -> Manifest:
    body: Manifest = yaml.safe_load(template.replace(_PLACEHOLDER, name))
    return body


def _container(body: Manifest) -> Manifest:
    container: Manifest = body["spec"]["template"]["spec"]["containers"][0]
    return container


def _resources(resources: Resources) -> Manifest:
    amounts = {"cpu": resources.cpu, "memory": resources.memory}
    if resources.gpus:
        amounts[resources.gpu_type] = str(resources.gpus)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _multiply(body: Manifest, times: int) -> None:
    """Multiply the resources that a pod requests, and memory that is used as a disk."""
    if times == 1:
        return
    for amounts in _container(body).get("resources", {}).values():
        amounts |= {name: _quantity(amount, times) for name, amount in amounts.items()}
    for volume in body["spec"]["template"]["spec"].get("volumes", ()):
        folder = volume.get("emptyDir", {})
        if folder.get("medium") == "Memory":
            folder["sizeLimit"] = _quantity(folder["sizeLimit"], times)


def _quantity(amount: str, times: int) -> str:
    exact = parse_quantity(amount) * times
    return f"{int(exact)}" if exact == int(exact) else f"{int(exact * 1000)}m"


def _set_environment(container: Manifest, environment: Mapping[str, str]) -> None:
    """Set variables. Existing ones keep their position, since later variables may refer to them; new ones come last."""
    entries = container.setdefault("env", [])
    for name, value in environment.items():
        entry = {"name": name, "value": value}
        places = [place for place, known in enumerate(entries) if known["name"] == name]
        if places:
            entries[places[0]] = entry
        else:
            entries.append(entry)
