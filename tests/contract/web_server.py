"""A web server over a folder, as far as stores need one: ranges, versions, and what else it may answer."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.harness.http_server import ClosingHTTPServer


@contextmanager
def http_server(
    folder: Path, ranges: bool = True, status: int = 200, is_away: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """The address of a server of the files below `folder`. `ranges`: whether it knows them. `status`: its answer.
    `is_away`: whether a request is answered with 503."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self, with_body: bool) -> None:
            path = folder / unquote(urlsplit(self.path).path).lstrip("/")
            data = path.read_bytes() if path.is_file() else None
            code = 503 if is_away() else 404 if data is None and status == 200 else status
            data = data or b""
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            self.etag = hashlib.sha256(data).hexdigest()
            if wanted and ranges and code == 200:
                code, whole = 206, len(data)
                data = data[int(wanted[1]) : int(wanted[2] or whole) + 1]
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{self.etag}"')
            if code == 206 and wanted:
                self.send_header("Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(data) - 1}/{whole}")
            if ranges:
                self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if with_body:
                self.wfile.write(data)

    server = ClosingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="web", args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
