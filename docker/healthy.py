"""The health check of the images: exit status 0 if the service in this container takes work.

    python -I -S healthy.py [PORT]        PORT: of /readyz, by default ESSP_METRICS_PORT

It runs every ten seconds in every container, hence the standard library alone and no `site`: some 30 ms of CPU.
"""

from __future__ import annotations

import os
import socket
import sys

_TIMEOUT_S = 4.0


def main(arguments: list[str]) -> int:
    """Ask, and say what was answered."""
    port = int(arguments[0] if arguments else os.environ["ESSP_METRICS_PORT"])
    try:
        with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = connection.recv(1024)
    except OSError as error:
        print(f"port {port}: {error}")
        return 1
    status = answer.partition(b"\r\n")[0].decode("latin-1")
    print(status)
    return 0 if " 200 " in status else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
