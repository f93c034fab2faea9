"""The Pythons of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def pythons() -> dict[str, Path]:
    """Version -> interpreter, of each Python from 3.11 that is on the path or that pyenv has installed."""
    roots = [Path(folder) for folder in os.get_exec_path()]
    roots += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    found: dict[str, Path] = {}
    for minor in range(11, 20):
        for root in roots:
            python = root / f"python3.{minor}"
            if python.exists() and _runs(python):
                found.setdefault(f"3.{minor}", python.resolve())
    return found


def _runs(python: Path) -> bool:
    """A shim of pyenv may lie there for a Python that is not installed."""
    return subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0
