"""LeRobot itself, in an environment of its own, and what runs there: `lerobot_reader.py`.

LeRobot needs PyAV below 16 and ESSP needs 18, so each of them reads in its own environment. Only for a policy of
LeRobot that trains on ESSP's class do both run in one process: in LeRobot's environment, where what ESSP needs comes
first. ESSP itself is always imported from this folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tools.pythons import pythons

PACKAGE = "lerobot[dataset]==0.6.1"
_PYTHON = "3.12"
_ROOT = Path(__file__).parents[1]
_READER = Path(__file__).with_name("lerobot_reader.py")
_BESIDE = (
    *("av", "annotated-types", "markdown-it-py", "mdurl", "prometheus-client", "protobuf", "psutil", "pydantic"),
    *("pydantic-core", "pydantic-settings", "pygments", "python-dotenv", "rich", "simplejpeg", "typer"),
    *("typing-extensions", "typing-inspection", "xxhash", "zstandard"),
)
"""What ESSP needs, without what LeRobot has."""


class LeRobot:
    """LeRobot, installed below a folder."""

    def __init__(self, folder: Path, *more: str) -> None:
        """Install what is not there yet, 6 GB. `more`: packages to install with it.

        Raises `FileNotFoundError` if this machine has no Python that LeRobot runs with.
        """
        self.python = folder / "lr" / "bin" / "python"
        self._beside = folder / "beside"
        if not self.python.exists():
            _make(folder / "lr")
        self._install(PACKAGE, *more)
        if not self._beside.exists():
            with TemporaryDirectory(dir=folder) as new:
                pinned = ["--constraint", str(_ROOT / "constraints.txt")]
                self._install("--no-deps", "--target", f"{new}/beside", *pinned, *_BESIDE)
                Path(new, "beside").rename(self._beside)

    def record(self, root: Path, kind: str) -> None:
        """Have LeRobot record a data set: `aloha`, `droid` or `small`."""
        _printed(self.python, "record", root, kind)

    def items(self, root: Path, reader: str) -> dict[str, Any]:
        """Items of a data set by one of the readers, with and without windows, and what it says of itself."""
        with TemporaryDirectory() as folder:
            file = Path(folder, "items.pt")
            _printed(self._python_of(reader), "dump", root, reader, file)
            return dict(torch.load(file, weights_only=False))

    def measured(self, root: Path, reader: str, how: str, batches: int) -> dict[str, Any]:
        """What batches of a reader cost."""
        return dict(json.loads(_printed(self._python_of(reader), "measure", root, reader, how, batches)))

    def losses(self, root: Path, reader: str, steps: int) -> list[float]:
        """The losses of LeRobot's ACT policy while it trains on the class of a reader."""
        first = [_ROOT, self._beside] if reader.startswith("essp") else []
        return list(json.loads(_printed(self.python, "train", root, reader, steps, paths=first)))

    def _python_of(self, reader: str) -> Path:
        return Path(sys.executable) if reader.startswith("essp") else self.python

    def _install(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *arguments]
        subprocess.run(command, check=True)


def _make(folder: Path) -> None:
    """An empty environment."""
    found = pythons()
    if _PYTHON not in found:
        raise FileNotFoundError(
            f"LeRobot needs Python {_PYTHON}, and only {', '.join(found)} are on the path; install python{_PYTHON}"
        )
    subprocess.run([found[_PYTHON], "-m", "venv", folder], check=True)


def _printed(python: Path, *arguments: object, paths: Sequence[Path] = (_ROOT,)) -> str:
    """The last line that `lerobot_reader.py` prints. Raises `RuntimeError` with the end of its errors if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [str(python), "-P", str(_READER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, env=environment, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout.splitlines()[-1] if done.stdout else ""


def compared(theirs: Any, ours: Any, name: str = "items") -> int:
    """The number of tensors that two readers have alike, bit by bit; statistics within rounding.

    Raises `ValueError` for one that differs.
    """
    if isinstance(theirs, dict):
        if theirs.keys() != ours.keys():
            raise ValueError(f"{name}: only one of them has {theirs.keys() ^ ours.keys()}")
        return sum(compared(value, ours[key], f"{name}.{key}") for key, value in theirs.items())
    if isinstance(theirs, torch.Tensor):
        alike = theirs.dtype == ours.dtype and theirs.shape == ours.shape
        if not alike or not (torch.allclose if "stats" in name else torch.equal)(theirs, ours):
            raise ValueError(f"{name}: {theirs.dtype} {theirs.shape} and {ours.dtype} {ours.shape}, or other values")
        return 1
    if theirs != ours:
        raise ValueError(f"{name}: {theirs} and {ours}")
    return 0
