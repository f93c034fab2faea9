"""`python -m tools.proto_drift`: the committed message classes are what protoc makes of `proto/`."""

from __future__ import annotations

import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]


def drifted() -> list[str]:
    """The generated files that differ from what protoc makes now."""
    protos = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    well_known = str(resources.files("grpc_tools") / "_proto")
    with tempfile.TemporaryDirectory() as made:
        arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", f"--python_out={made}", f"--pyi_out={made}"]
        if protoc.main([*arguments, *protos]) != 0:
            raise SystemExit("protoc failed")
        return [
            str(path.relative_to(made))
            for path in sorted(Path(made).rglob("*_pb2.py*"))
            if not (ROOT / path.relative_to(made)).exists()
            or path.read_text() != (ROOT / path.relative_to(made)).read_text()
        ]


if __name__ == "__main__":
    stale = drifted()
    if stale:
        sys.exit(f"generated code is stale: {', '.join(stale)}; run: make proto")
    print("generated code is up to date")
