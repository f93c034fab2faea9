"""A collector of OpenTelemetry traces, OTLP over HTTP, that keeps what it gets."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.harness.http_server import ClosingHTTPServer


class Collector:
    """What came so far."""

    def __init__(self) -> None:
        self.services: set[str] = set()
        self.spans: list[Span] = []
        self.url = ""

    def take(self, message: ExportTraceServiceRequest) -> None:
        for found in message.resource_spans:
            about = {attribute.key: attribute.value.string_value for attribute in found.resource.attributes}
            self.services.add(about["service.name"])
            self.spans += [span for scope in found.scope_spans for span in scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = ClosingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
