"""A stand-in for the Hub of Hugging Face: one data set, which is a folder here, as far as its file system needs it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub

from tests.harness.http_server import ClosingHTTPServer

NAME = "owner/name"


@contextmanager
def hub(folder: Path, token: str = "", asked: list[str] | None = None) -> Iterator[str]:
    """The address of a hub with the data set `owner/name`. `token`: required if given. `asked`: receives the ranges of
    bytes that clients ask for."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if token and self.headers.get("Authorization") != f"Bearer {token}":
                self._send(401, b"{}")
            elif path in (f"/api/datasets/{NAME}", f"/api/datasets/{NAME}/revision/main"):
                self._json({"id": NAME, "sha": "0" * 40, "siblings": [], "tags": [], "downloads": 0, "private": False})
            elif found := re.fullmatch(rf"/api/datasets/{NAME}/tree/main/?(.*)", path):
                self._tree(found[1], "recursive=true" in self.path.lower())
            elif found := re.fullmatch(rf"/datasets/{NAME}/resolve/main/(.+)", path):
                self._file(folder / found[1])
            else:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._json([])  # of paths that no folder has

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _tree(self, below: str, recursive: bool) -> None:
            root = folder / below
            if not root.is_dir():
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                return
            paths = sorted(root.rglob("*") if recursive else root.iterdir())
            self._json([self._entry(path) for path in paths])

        def _entry(self, path: Path) -> dict[str, Any]:
            name = str(path.relative_to(folder))
            if path.is_dir():
                return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
            oid = hashlib.sha1(path.read_bytes()).hexdigest()
            return {"type": "file", "oid": oid, "size": path.stat().st_size, "path": name}

        def _file(self, path: Path) -> None:
            if not path.is_file():
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                return
            data = path.read_bytes()
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if wanted is None:
                self._send(200, data)
                return
            if asked is not None:
                asked.append(f"{path.name} {wanted[1]}-{wanted[2]}")
            part = data[int(wanted[1]) : int(wanted[2]) + 1]
            self._send(206, part, {"Content-Range": f"bytes {wanted[1]}-{wanted[2]}/{len(data)}"})

        def _json(self, value: Any) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _send(self, code: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    server = ClosingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="hub", args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        huggingface_hub.close_session()
        server.shutdown()
        server.server_close()
        thread.join()
