"""All metrics of ESSP's workers, defined once, and the HTTP endpoint that serves them.

Names follow the Prometheus conventions: prefix `essp_`, base units, `_total` on counters. Labels are bounded sets
(stage, outcome, kind), never a job, a video or a clip. The endpoint exists only if `Settings.metrics_port` is set:

    /metrics   the metrics, in the Prometheus text format
    /livez     200 while the process is able to answer; independent of its servers, so a broker's outage
               does not restart every worker
    /readyz    200 while the service accepts work; 503 before, while it drains, and while a condition keeps it from
               working (`conditions.py`), with a line for each
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, Gauge, Histogram, generate_latest

from essp_common import distribution
from essp_common.errors import ConfigError
from essp_common.runtime.hosts import is_inside, search_domains
from essp_common.runtime.listening import EVERYWHERE, listening

log = logging.getLogger(__name__)

UNITS = Counter("essp_units", "Records handled, by stage and outcome (done, rejected, returned).", ["stage", "outcome"])
UNIT_SECONDS = Histogram(
    "essp_unit_duration_seconds",
    "Time to handle one record, retries included.",
    ["stage"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
INFLIGHT = Gauge("essp_inflight_units", "Records being handled now.", ["stage"])
RETRIES = Counter("essp_retries", "Tries that failed and were repeated, by stage and kind of error.", ["stage", "kind"])
FAILURES = Counter("essp_failures", "Records that could not be processed, by stage and kind.", ["stage", "kind"])
REFUSED = Counter("essp_refused_records", "Records that held no message of ours, by topic.", ["topic"])
LAST_PROGRESS = Gauge("essp_last_progress_timestamp_seconds", "When a record was last done, as Unix time.", ["stage"])
FRAMES = Counter(
    "essp_frames",
    "Frames of a decoder: wanted by clips, shared between them, decoded, and skipped on the way to wanted ones.",
    ["what"],
)
VIDEO_CACHE = Counter(
    "essp_video_cache_bytes",
    "Bytes of compressed video: read from what a decoder keeps (hit), or from the store (miss), and let go (evicted).",
    ["what"],
)
VIDEO_CACHE_BYTES = Gauge(
    "essp_video_cache_held_bytes", "Bytes of compressed video that a decoder keeps, by state (used, limit).", ["state"]
)
FLOW_CODES = Counter(
    "essp_flow_codes",
    "Codes of an extractor's flow, a sample of each clip: all, clipped at the bound, and rounded to zero.",
    ["feature", "what"],
)
CHECKPOINTS = Counter(
    "essp_checkpoints",
    "Checkpoints of this trainer, by outcome: staged (in the burst buffer), durable (in the job's store), failed.",
    ["outcome"],
)
CHECKPOINT_COPY_SECONDS = Histogram(
    "essp_checkpoint_copy_duration_seconds",
    "Time to copy a checkpoint from the burst buffer to the job's store, verified.",
    ["trainer"],
    buckets=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
)
STORE_REQUESTS = Counter("essp_store_requests", "Requests sent to S3, repeated ones too, by operation.", ["operation"])
API_SECONDS = Histogram(
    "essp_api_request_duration_seconds",
    "Time until the API began its answer, by method, route (not path) and status.",
    ["method", "route", "status"],
    buckets=(0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
)
BUILD_INFO = Gauge("essp_build_info", "Always 1; the label says which version this process is.", ["version"])
BUILD_INFO.labels(distribution.version()).set(1)
CONDITION = Gauge(
    "essp_condition",
    "1: this keeps ESSP from working now (see docs/conditions.md); 0: it is over. By kind and the pool it concerns; of "
    "all training runs, whose names are those of jobs, `trainer`.",
    ["kind", "subject"],
)
UNEXPECTED = Counter(
    "essp_unexpected_errors",
    "Unexpected errors, each in the log with its traceback, by the thread or the part that continues.",
    ["where"],
)
CACHE_UNSOUND = Counter(
    "essp_cache_unsound",
    "Values of the frame cache that were discarded and made again: damaged (checksum or key does not match), "
    "foreign (of another release or program).",
    ["kind"],
)
CACHE_BYTES = Gauge("essp_cache_bytes", "Bytes in the frame cache, by state (used, limit).", ["state"])


def frames(what: str) -> int:
    """Return how many frames of this kind this process has counted; see `FRAMES`."""
    return int(REGISTRY.get_sample_value("essp_frames_total", {"what": what}) or 0)


class MetricsServer:
    """Serves metrics and health of this process over HTTP, in a separate thread.

    It refuses to serve metrics under a name that a page's owner may have pointed here (`hosts.py`). Prometheus uses an
    address, or a name of the cluster; probes may use any name.
    """

    def __init__(
        self,
        port: int,
        ready: Callable[[], bool],
        host: str = EVERYWHERE,
        hindered: Callable[[], str] = str,
    ) -> None:
        """`port` 0 takes a free one (see `port`). `hindered`: returns what keeps the service from working, in lines;
        empty if nothing does. Raises `ConfigError` if the port is taken."""
        asked = {"ready": staticmethod(ready), "hindered": staticmethod(hindered), "domains": search_domains()}
        handler = type("_Handler", (_Handler,), asked)
        try:
            listener = listening(host, port)
        except OSError as error:
            raise ConfigError(
                f"metrics port {port}: {error.strerror}; set ESSP_METRICS_PORT to another",
                field="ESSP_METRICS_PORT",
                code="taken",
            ) from error
        self._server = _Server(listener.getsockname()[:2], handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._thread = threading.Thread(target=self._server.serve_forever, name="essp-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a probe that gave up waiting, such as on a busy node."""
        error = sys.exception()
        if not isinstance(error, OSError):
            UNEXPECTED.labels("essp-metrics").inc()
            log.error("an answer to %s has failed", client_address, exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0
    """Timeout in seconds. A client that sends nothing for this long is disconnected, since it occupies a thread."""
    ready: Callable[[], bool]
    hindered: Callable[[], str]
    domains: Sequence[str] = ()
    """Domains of this network's names."""

    def do_GET(self) -> None:
        if self.path == "/metrics" and not all(is_inside(host, self.domains) for host in self._hosts()):
            self._answer(
                403, b"the header Host is a name of the internet; ask for an address or a name of this network\n"
            )
        elif self.path == "/metrics":
            self.hindered()  # updates the gauge of conditions
            self._answer(200, generate_latest(), CONTENT_TYPE_LATEST)
        elif self.path == "/livez":
            self._answer(200, b"ok\n")
        elif self.path == "/readyz":
            why = self.hindered() if self.ready() else "not taking work\n"
            self._answer(503 if why else 200, why.encode() or b"ready\n")
        else:
            self._answer(404, b"see /metrics, /livez and /readyz\n")

    def _hosts(self) -> Sequence[str]:
        """Return the client's names for this server; empty if it is not a browser."""
        return self.headers.get_all("Host", [])

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
