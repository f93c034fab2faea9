"""moto's S3 behind the command line of versitygw, as far as the compose file uses it.

    s3.py --port :7070 --health /health posix /data

Objects stay in memory; `/data` has to be writable all the same, as versitygw would need it to be.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", required=True)
    parser.add_argument("--health", required=True)
    parser.add_argument("backend", choices=["posix"])
    parser.add_argument("folder")
    options = parser.parse_args()
    if not os.access(options.folder, os.W_OK):
        parser.error(f"{options.folder} cannot be written")
    if not (os.environ["ROOT_ACCESS_KEY"] and os.environ["ROOT_SECRET_KEY"]):
        parser.error("ROOT_ACCESS_KEY and ROOT_SECRET_KEY are to be set")
    s3 = DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == options.health:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"OK"]
        answer: Iterable[bytes] = s3(environ, start_response)
        return answer

    host, _, port = options.port.rpartition(":")
    run_simple(host or "0.0.0.0", int(port), application, threaded=True)


if __name__ == "__main__":
    main()
