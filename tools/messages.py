"""`python -m tools.messages --write`: make the message classes from `proto/`, with protoc (`make proto`)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from grpc_tools import protoc

from tools.written import ROOT, settle

PROTO = ROOT / "proto"


def current() -> dict[Path, str]:
    """The files that protoc makes of all there is in `proto/`. Raises `ValueError` if it refuses them."""
    protos = sorted(str(path) for path in PROTO.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as made:
        if protoc.main(["protoc", f"-I{PROTO}", f"--python_out={made}", f"--pyi_out={made}", *protos]) != 0:
            raise ValueError("protoc refuses proto/, as it says above")
        return {
            ROOT / path.relative_to(made): path.read_text(encoding="utf-8")
            for path in sorted(Path(made).rglob("*_pb2.py*"))
        }


if __name__ == "__main__":
    settle(current(), remedy="make proto")
