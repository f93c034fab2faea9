"""A double of the Kubernetes API server: as much of it as ESSP uses, with the semantics that matter.

Deployments (with their scale), Jobs, Pods and Leases of one namespace: create (409 when it is there), list by labels,
get, replace (409 for a stale `resourceVersion`), merge patch, delete. Every request is kept. `outage` makes it answer
503. Most tests that use it run against a real cluster as well: see `api` in `tests/unit/test_pools_kubernetes.py`.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

Object = dict[str, Any]
_PATH = re.compile(
    r"/(?:api/v1|apis/(?:apps/v1|batch/v1|coordination\.k8s\.io/v1))/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<kind>deployments|jobs|pods|leases)(?:/(?P<name>[^/]+))?(?:/(?P<part>scale))?"
)


@dataclass
class Refusal(Exception):
    """An answer other than success."""

    status: int
    reason: str
    message: str = ""


@dataclass
class Cluster:
    """The objects of the cluster. Thread-safe."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    """(kind, name) -> object."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    outage: bool = False
    version: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def names(self, kind: str) -> list[str]:
        """Names of all objects of a kind."""
        with self.lock:
            return sorted(name for known, name in self.objects if known == kind)

    def put(self, kind: str, body: Object) -> Object:
        """Have an object, as somebody with all rights would."""
        with self.lock:
            self.objects[(kind, body["metadata"]["name"])] = body
            return self._stamp(body)

    def answer(self, method: str, url: str, body: Any) -> Object:
        """One request."""
        parts = urlsplit(url)
        with self.lock:
            self.requests.append((method, parts.path))
            if self.outage:
                raise Refusal(503, "ServiceUnavailable")
            match = _PATH.fullmatch(parts.path)
            if match is None:
                raise Refusal(404, "NotFound", parts.path)
            kind, name, part = match["kind"], match["name"], match["part"]
            if name is None:
                return self._create(kind, body) if method == "POST" else self._list(kind, parts.query)
            found = self.objects.get((kind, name))
            if found is None:
                raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
            return self._one(method, kind, name, part, found, body)

    def _one(self, method: str, kind: str, name: str, part: str | None, found: Object, body: Any) -> Object:
        if method == "GET":
            return _scale(found) if part else found
        if method == "DELETE":
            del self.objects[(kind, name)]
            return {"kind": "Status", "status": "Success"}
        if method == "PUT":
            seen = body["metadata"].get("resourceVersion")
            if seen is not None and seen != found["metadata"]["resourceVersion"]:
                raise Refusal(409, "Conflict", "the object has been modified")
            return self.put(kind, body)
        changed = _merged(found, body)
        return _scale(self.put(kind, changed)) if part else self.put(kind, changed)

    def _create(self, kind: str, body: Object) -> Object:
        if (kind, body["metadata"]["name"]) in self.objects:
            raise Refusal(409, "AlreadyExists", body["metadata"]["name"])
        if kind == "deployments":
            wanted = body["spec"]["selector"]["matchLabels"].items()
            if not wanted <= body["spec"]["template"]["metadata"]["labels"].items():
                raise Refusal(422, "Invalid", "selector does not match template labels")
            body.setdefault("status", {})
        return self.put(kind, body)

    def _list(self, kind: str, query: str) -> Object:
        selector = parse_qs(query).get("labelSelector", [""])[0]
        wanted = dict(term.split("=", 1) for term in selector.split(",") if term)
        items = [
            body
            for (known, _), body in sorted(self.objects.items())
            if known == kind and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]
        return {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _stamp(self, body: Object) -> Object:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        return body


class ApiServer:
    """A cluster over HTTP, from `with` to its end."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.cluster))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="kubernetes-api")

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def client(self) -> client.ApiClient:
        """A client of it."""
        configuration = client.Configuration(host=f"http://127.0.0.1:{self._server.server_port}")
        configuration.retries = False
        return client.ApiClient(configuration)


def _handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            try:
                status, answer = 200, cluster.answer(self.command, self.path, body)
            except Refusal as refusal:
                status = refusal.status
                answer = {
                    "kind": "Status",
                    "status": "Failure",
                    "code": refusal.status,
                    "reason": refusal.reason,
                    "message": refusal.message,
                }
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    return Handler


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
