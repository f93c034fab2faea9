"""A double of the Kubernetes API server: as much of it as ESSP uses, with the semantics that matter.

Deployments (with their scale), Jobs, Pods, ConfigMaps, Events, Leases and VideoJobs of one namespace: create (409 when
it is there), list by labels, get, replace (409 for a stale `resourceVersion`), JSON patch (a list) or merge patch,
delete, with all that the object owns; a Job that is deleted in the foreground stays, marked, until its pods are gone,
and a VideoJob until it has no finalizer. Lists of deployments, jobs, pods and VideoJobs can be watched from a version
on: changes in their order, with bookmarks for whoever wants them (`bookmark`), an ERROR 410 once what was missed is
forgotten (`compact`), until `timeoutSeconds` are over or the connection ends (`hang_up`). Every request is kept.
`outage` makes it answer 503, and ends what is being watched. `make test-cluster` runs the tests that use it on a real
API server as well (`kubernetes_real.py`).

It says of itself what `helm upgrade` asks (`_KINDS`).

A Deployment that says no number of replicas has one, also when a patch takes the number away. What controllers and the
scheduler do of themselves they do when a test says so (`settle`): pods of Deployments and Jobs are made as far as a
quota allows, and placed as far as there is room.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes import client

from tests.harness.http_server import ClosingHTTPServer

Object = dict[str, Any]
_PATH = re.compile(
    r"/(?:api/v1|apis/(?:apps/v1|batch/v1|coordination\.k8s\.io/v1|essp\.io/v1alpha1))/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<kind>deployments|jobs|pods|leases|configmaps|events|videojobs)(?:/(?P<name>[^/]+))?(?:/(?P<part>scale|status))?"
)
_KINDS = {
    "v1": ("ConfigMap", "Pod", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "batch/v1": ("Job",),
    "keda.sh/v1alpha1": ("ScaledObject",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding"),
}
"""What helm is told of, which looks up Deployments and wants to know each kind that it makes."""
UNLIMITED = 1000
"""Pods: more than any test has."""
_OWNER = "batch.kubernetes.io/job-name"
_NOW = "2026-01-01T00:00:00Z"


@dataclass
class Refusal(Exception):
    """An answer other than success."""

    status: int
    reason: str
    message: str = ""

    def document(self) -> Object:
        """As the API says it."""
        status = {"status": "Failure", "code": self.status, "reason": self.reason, "message": self.message}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, **status}


@dataclass(frozen=True)
class Change:
    """One step of an object's life: what it was, what it is (None: nothing)."""

    version: int
    kind: str
    before: Object | None
    after: Object | None

    def event(self, chosen: Callable[[Object], bool]) -> Object | None:
        """As a watch of the chosen objects tells it: one that is not chosen any more is gone."""
        was, is_now = (body if body is not None and chosen(body) else None for body in (self.before, self.after))
        if is_now is not None:
            return {"type": "MODIFIED" if was else "ADDED", "object": is_now}
        if was is None:
            return None
        last = {**was, "metadata": {**was["metadata"], "resourceVersion": str(self.version)}}
        return {"type": "DELETED", "object": last}


@dataclass
class Cluster:
    """The objects of the cluster, and what became of them. Thread-safe."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    """(kind, name) -> object."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path; that of a watch is WATCH."""
    writers: set[str] = field(default_factory=set)
    """Who those said they were who changed or made something (`fieldManager`)."""
    version: int = 0
    lock: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    watching: int = 0
    """Watches that are open."""
    hanging: bool = False
    """Requests are taken and not answered."""
    token: str = ""
    """The only one that it accepts; empty: it asks for none."""
    quota: int = UNLIMITED
    """Pods that the namespace may have (`limit`)."""
    garbled: bytes | None = None
    """What it answers to every request, as a proxy in front of it may."""
    _outage: bool = False
    _changes: list[Change] = field(default_factory=list)
    _forgotten: int = 0
    _bookmarked: int = 0
    _connection: int = 0

    # --- what tests do to it ---

    @property
    def outage(self) -> bool:
        """Whether it is away."""
        return self._outage

    @outage.setter
    def outage(self, away: bool) -> None:
        with self.lock:
            self._outage, self.hanging = away, False
            self.hang_up()

    def hang_up(self) -> None:
        """End every watch that is open, as a server that restarts does."""
        with self.lock:
            self._connection += 1
            self.lock.notify_all()

    def compact(self) -> None:
        """Forget what has been: nobody can watch from an older version than the present one."""
        with self.lock:
            self._changes.clear()
            self._forgotten = self.version

    def bookmark(self) -> None:
        """Tell every watch that wants it how far it is."""
        with self.lock:
            self._bookmarked += 1
            self.lock.notify_all()

    def names(self, kind: str) -> list[str]:
        """Names of all objects of a kind."""
        with self.lock:
            return sorted(name for known, name in self.objects if known == kind)

    def count(self, method: str, kind: str) -> int:
        """How often something was asked of the objects of a kind."""
        with self.lock:
            return sum(m == method and path.endswith(f"/{kind}") for m, path in self.requests)

    def put(self, kind: str, body: Object) -> Object:
        """Have an object, as somebody with all rights would."""
        with self.lock:
            key = (kind, body["metadata"]["name"])
            before = self.objects.get(key)
            made = copy.deepcopy(body)
            made["metadata"].setdefault("uid", f"uid-{self.version}")
            if kind in ("deployments", "jobs"):
                made.setdefault("status", {})
            if kind == "deployments":
                made["spec"].setdefault("replicas", 1)
            if kind == "videojobs":
                made["metadata"].setdefault("creationTimestamp", _NOW)
                grown = before is None or before["spec"] != made["spec"]
                made["metadata"]["generation"] = (before or made)["metadata"].get("generation", 0) + grown
            self._note(kind, before, made)
            self.objects[key] = made
            return made

    def delete(self, kind: str, name: str) -> None:
        """Have an object no more; a Job that waited for its last pod goes with it."""
        with self.lock:
            gone = self.objects.pop((kind, name))
            self._note(kind, gone, None)
            for other in self._owned_by(gone["metadata"]["uid"]):
                self.delete(*other)
            owner = (gone["metadata"].get("labels") or {}).get(_OWNER)
            job = self.objects.get(("jobs", owner)) if owner else None
            if job is not None and "deletionTimestamp" in job["metadata"] and not self._pods_of(str(owner)):
                self.delete("jobs", str(owner))

    def limit(self, quota: int = UNLIMITED) -> None:
        """Let the namespace have at most so many pods."""
        self.quota = quota

    def annotate(self, kind: str, name: str, annotation: str) -> None:
        """Set an annotation of an object to a value that it never had."""
        with self.lock:
            body = copy.deepcopy(self.objects[kind, name])
            body["metadata"].setdefault("annotations", {})[annotation] = str(self.version)
            self.put(kind, body)

    def settle(self, room: int, broken: str = "") -> None:
        """Make the pods that Deployments and Jobs are to have, as far as the quota allows, place them, at most `room`,
        and let those come up. `broken`: why none of the containers starts."""
        quota = self.quota
        with self.lock:
            for name in self.names("pods"):
                self.delete("pods", name)
            for kind in ("deployments", "jobs"):
                for name in self.names(kind):
                    body = copy.deepcopy(self.objects[kind, name])
                    wanted = body["spec"]["replicas" if kind == "deployments" else "parallelism"]
                    labels = body["spec"]["template"]["metadata"]["labels"] | ({_OWNER: name} if kind == "jobs" else {})
                    made, placed = min(wanted, quota), min(wanted, quota, room)
                    for number in range(made):
                        status = status_of_pod(number < placed, broken)
                        self.put("pods", {"metadata": {"name": f"{name}-{number}", "labels": labels}, "status": status})
                    ready = 0 if broken else placed
                    body["status"] = {"readyReplicas": ready} if kind == "deployments" else {"ready": ready}
                    if kind == "deployments" and made < wanted:
                        body["status"]["conditions"] = [_over_quota(quota)]
                    if kind == "jobs" and made < wanted:
                        self.put("events", _refused_pod(body, quota))
                    quota, room = quota - made, room - placed
                    self.put(kind, body)

    def end_job(self, name: str, kind: str, reason: str, message: str) -> None:
        """Have a Job end, as its controller says it."""
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        self.put("jobs", copy.deepcopy(self.objects["jobs", name]) | {"status": {"conditions": [condition]}})

    # --- what clients ask ---

    def answer(self, method: str, url: str, body: Any) -> Object:
        """One request."""
        parts = urlsplit(url)
        self.note(method, url)
        with self.lock:
            if (known := _discovered(parts.path)) is not None:
                return known
            match = _PATH.fullmatch(parts.path)
            if match is None:
                raise Refusal(404, "NotFound", parts.path)
            kind, name, part = match["kind"], match["name"], match["part"]
            query = dict(parse_qsl(parts.query))
            if name is None:
                return self._create(kind, body) if method == "POST" else self._list(kind, query)
            found = self.objects.get((kind, name))
            if found is None:
                raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
            if method == "DELETE":
                return self._end(kind, name, found, body or query)
            return copy.deepcopy(self._one(method, kind, name, part, found, body))

    def note(self, method: str, url: str) -> None:
        """A request has come. Raises `Refusal` during an outage."""
        parts = urlsplit(url)
        with self.lock:
            self.requests.append((method, parts.path))
            if method in ("POST", "PUT", "PATCH"):
                self.writers.add(dict(parse_qsl(parts.query)).get("fieldManager", ""))
            self.lock.wait_for(lambda: not self.hanging)
            if self._outage:
                raise Refusal(503, "ServiceUnavailable")

    def watch(self, path: str, query: dict[str, str]) -> Generator[Object]:
        """First an empty event, or `Refusal`; then those of the watch, as they happen."""
        kind, chosen = _PATH.fullmatch(path)["kind"], _selector(query)  # type: ignore[index]
        deadline = time.monotonic() + float(query.get("timeoutSeconds", 300))
        with self.lock:
            self.requests.append(("WATCH", path))
            if self._outage:
                raise Refusal(503, "ServiceUnavailable")
            seen, connection, bookmarked = int(query["resourceVersion"]), self._connection, self._bookmarked
            self.watching += 1
        try:
            yield {}
            while True:
                with self.lock:
                    if seen < self._forgotten:
                        expired = Refusal(410, "Expired", f"too old resource version: {seen} ({self._forgotten})")
                        events = [{"type": "ERROR", "object": expired.document()}]
                        deadline = 0.0
                    else:
                        fresh = [c for c in self._changes if c.version > seen and c.kind == kind]
                        events = [event for change in fresh if (event := change.event(chosen)) is not None]
                        seen = self.version
                        if self._bookmarked > bookmarked and query.get("allowWatchBookmarks") == "true":
                            metadata = {"resourceVersion": str(seen)}
                            events.append({"type": "BOOKMARK", "object": {"metadata": metadata}})
                        bookmarked = self._bookmarked
                yield from copy.deepcopy(events)
                with self.lock:
                    if time.monotonic() >= deadline or self._connection != connection:
                        return
                    if seen == self.version and bookmarked == self._bookmarked:
                        self.lock.wait(max(0.0, deadline - time.monotonic()))
        finally:
            with self.lock:
                self.watching -= 1

    def _end(self, kind: str, name: str, found: Object, options: Object) -> Object:
        """`options`: of the body; those of the query count only where there is none, as the API server has it."""
        uid, policy = options.get("preconditions", {}).get("uid"), options.get("propagationPolicy", "Background")
        if uid not in (None, found["metadata"]["uid"]):
            there = f"({uid}) does not match the UID in record ({found['metadata']['uid']})"
            raise Refusal(409, "Conflict", f"Operation cannot be fulfilled: the UID in the precondition {there}")
        held = found["metadata"].get("finalizers") or (
            kind == "jobs" and policy == "Foreground" and self._pods_of(name)
        )
        if held:
            return self.put(kind, _merged(found, {"metadata": {"deletionTimestamp": _NOW}}))
        self.delete(kind, name)
        return {"kind": "Status", "status": "Success"}

    def _one(self, method: str, kind: str, name: str, part: str | None, found: Object, body: Any) -> Object:
        if method == "GET":
            return _scale(found) if part else found
        if kind == "videojobs":
            return self._changed_custom(found, part, body)
        if method == "PUT":
            seen = body["metadata"].get("resourceVersion")
            if seen is not None and seen != found["metadata"]["resourceVersion"]:
                raise Refusal(409, "Conflict", "the object has been modified")
            return self.put(kind, body)
        changed = _patched(found, body) if isinstance(body, list) else _merged(found, body)
        return _scale(self.put(kind, changed)) if part else self.put(kind, changed)

    def _changed_custom(self, found: Object, part: str | None, body: Object) -> Object:
        """By a merge patch: the status by itself, and all else without it. What is being deleted and is not held by
        anybody any more is gone."""
        seen = body.get("metadata", {}).get("resourceVersion")
        if seen not in (None, found["metadata"]["resourceVersion"]):
            raise Refusal(409, "Conflict", "the object has been modified")
        status = {"status": found.get("status", {})}
        changed = _merged(found, body if part is None else {"status": body["status"]})
        made = self.put("videojobs", changed if part else {**changed, **status})
        if "deletionTimestamp" in made["metadata"] and not made["metadata"].get("finalizers"):
            self.delete("videojobs", made["metadata"]["name"])
        return made

    def _create(self, kind: str, body: Object) -> Object:
        present = self.objects.get((kind, body["metadata"]["name"]))
        if present is not None:
            going = "object is being deleted: " if "deletionTimestamp" in present["metadata"] else ""
            raise Refusal(409, "AlreadyExists", f"{going}{body['metadata']['name']}")
        if kind == "deployments":
            wanted = body["spec"]["selector"]["matchLabels"].items()
            if not wanted <= body["spec"]["template"]["metadata"]["labels"].items():
                raise Refusal(422, "Invalid", "selector does not match template labels")
        return copy.deepcopy(self.put(kind, body))

    def _list(self, kind: str, query: dict[str, str]) -> Object:
        chosen = _selector(query)
        items = [body for (known, _), body in sorted(self.objects.items()) if known == kind and chosen(body)]
        metadata = {"resourceVersion": str(self.version)}
        return {"kind": "List", "metadata": metadata, "items": copy.deepcopy(items)}

    def _owned_by(self, uid: str) -> list[tuple[str, str]]:
        """What the garbage collector removes with the object of this uid."""
        return [
            key
            for key, body in self.objects.items()
            if any(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences", ()))
        ]

    def _pods_of(self, job: str) -> list[str]:
        pods = [body for (kind, _), body in self.objects.items() if kind == "pods"]
        return [p["metadata"]["name"] for p in pods if (p["metadata"].get("labels") or {}).get(_OWNER) == job]

    def _note(self, kind: str, before: Object | None, after: Object | None) -> None:
        self.version += 1
        if after is not None:
            after["metadata"]["resourceVersion"] = str(self.version)
        self._changes.append(Change(self.version, kind, before, after))
        self.lock.notify_all()


class ApiServer:
    """A cluster over HTTP, from `with` to its end."""

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster = cluster or Cluster()
        self._server = ClosingHTTPServer(("127.0.0.1", 0), _handler(self.cluster))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="kubernetes-api")
        self._clients: list[client.ApiClient] = []

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.outage = True
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for made in self._clients:
            made.rest_client.pool_manager.clear()

    @property
    def port(self) -> int:
        """On which it answers."""
        return self._server.server_port

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> client.ApiClient:
        """A client of it, whose connections end with the server."""
        configuration = client.Configuration(host=self.url)
        configuration.retries = False
        self._clients.append(client.ApiClient(configuration))
        return self._clients[-1]


def _handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with suppress(ConnectionResetError):  # a client has left
                super().handle()

        def _serve(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            try:
                if cluster.token and self.headers.get("authorization") != f"bearer {cluster.token}":
                    raise Refusal(401, "Unauthorized", "Unauthorized")
                if query.get("watch", "").lower() == "true":
                    events = cluster.watch(parts.path, query)
                    next(events)
                    return self._stream(events)
                answer = cluster.answer(self.command, self.path, body)
                status = 201 if self.command == "POST" else 200
            except Refusal as refusal:
                status, answer = refusal.status, refusal.document()
            data = json.dumps(answer).encode() if cluster.garbled is None else cluster.garbled
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return None

        def _stream(self, events: Generator[Object]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for event in events:
                    self._chunk(json.dumps(event).encode() + b"\n")
                self._chunk(b"")
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                events.close()

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    return Handler


def _discovered(path: str) -> Object | None:
    """What the server says of itself: its version, its groups, and the kinds of a group."""
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        versions = [{"groupVersion": name, "version": name.rpartition("/")[2]} for name in _KINDS if "/" in name]
        groups = [(version["groupVersion"].partition("/")[0], version) for version in versions]
        listed = [{"name": name, "versions": [version], "preferredVersion": version} for name, version in groups]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in _KINDS:
        return None
    resources = [
        {"name": kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s"), "singularName": kind.lower()}
        | {"kind": kind, "namespaced": True, "verbs": ["get"]}
        for kind in _KINDS[version]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _selector(query: dict[str, str]) -> Callable[[Object], bool]:
    """Of labels: `a=b` and `a` (there is one of that name), joined by commas; of fields `a.b=c`."""
    terms = [term.partition("=") for term in query.get("labelSelector", "").split(",") if term]
    fields = [term.partition("=") for term in query.get("fieldSelector", "").split(",") if term]

    def chosen(body: Object) -> bool:
        labels = body["metadata"].get("labels") or {}
        return all(name in labels and (not equals or labels[name] == value) for name, equals, value in terms) and all(
            _field(body, name) == value for name, _, value in fields
        )

    return chosen


def _field(body: Any, path: str) -> Any:
    """What an object has at `a.b`."""
    for part in path.split("."):
        body = (body or {}).get(part)
    return body


def status_of_pod(placed: bool, broken: str) -> Object:
    """As the scheduler and a kubelet write it."""
    if not placed:
        message = "0/3 nodes are available: 3 Insufficient cpu."
        unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return {"phase": "Pending", "conditions": [unplaced]}
    state = {"waiting": {"reason": broken}} if broken else {"running": {"startedAt": _NOW}}
    container = {"name": "c", "image": "i", "imageID": "", "ready": not broken, "restartCount": 0, "state": state}
    conditions = [{"type": "PodScheduled", "status": "True"}]
    return {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}


def _over_quota(quota: int) -> Object:
    """The condition that a Deployment shows when its pods are refused."""
    return {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": _beyond(quota)}


def _refused_pod(job: Object, quota: int) -> Object:
    """The event of a Job whose pods are refused; its status does not tell."""
    name = job["metadata"]["name"]
    about = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    said = {"type": "Warning", "reason": "FailedCreate", "message": _beyond(quota), "lastTimestamp": _NOW}
    return {
        "metadata": {"name": f"{name}.1"},
        "involvedObject": about,
        "source": {"component": "job-controller"},
        **said,
    }


def _beyond(quota: int) -> str:
    return f'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods={quota}, limited: pods={quota}'


def _scale(body: Object) -> Object:
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": body["metadata"],
        "spec": {"replicas": body["spec"]["replicas"]},
    }


def _merged(old: Any, new: Any) -> Any:
    """As RFC 7396 merges; lists are replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    merged = {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _patched(old: Object, operations: list[Object]) -> Object:
    """As RFC 6902 says of `add` and `replace` of members."""
    changed = copy.deepcopy(old)
    for operation in operations:
        *way, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        place = changed
        for part in way:
            place = place[part]
        if operation["op"] == "replace" and last not in place:
            raise Refusal(422, "Invalid", f"nothing at {operation['path']}")
        place[last] = operation["value"]
    return changed
