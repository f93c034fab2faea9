"""The environments in which ESSP is installed: a stranger's, and with the oldest packages that it says it runs with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.install.readme import ROOT

EXTRA = "demo"
_SOURCES = ("essp", "essp_common", "essp_engine", "services", "pyproject.toml", "README.md", "LICENSE")
_OF_TORCH = re.compile(r"(torch|torchvision|triton|nvidia-.*|cuda-.*)==")
_OURS = ("ESSP_", "PYTHON", "VIRTUAL_ENV")


def environment(**settings: str) -> dict[str, str]:
    """That of a stranger: nothing of ESSP, nor of the Python that runs this."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(_OURS)}, **settings}


def build_wheel(folder: Path) -> Path:
    """A wheel of a copy of the sources, so that the build leaves nothing in them."""
    project = folder / "project"
    project.mkdir()
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, project)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, project], check=True
    )
    [wheel] = folder.glob("*.whl")
    return wheel


def oldest(version: str, folder: Path, torch: bool) -> Path:
    """A file of pip's constraints: the oldest versions of what `pyproject.toml` names for this Python, as far as they
    have wheels. `torch`: of torch and what it brings, too."""
    tool = folder / "uv"
    if not tool.exists():  # pip has nothing that resolves to the oldest
        subprocess.run([sys.executable, "-m", "venv", tool], check=True)
        subprocess.run([tool / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    resolved = subprocess.run(
        [
            *(
                tool / "bin" / "uv",
                "pip",
                "compile",
                "--quiet",
                "--no-header",
                "--no-annotate",
                "--only-binary",
                ":all:",
            ),
            *("--resolution", "lowest-direct", "--python-version", version, "--extra", EXTRA, "pyproject.toml"),
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(UV_NATIVE_TLS="1"),
    ).stdout
    path = folder / f"oldest-{version}.txt"
    path.write_text("".join(_kept(resolved, torch)), encoding="utf-8")
    return path


def _kept(resolved: str, torch: bool) -> Iterator[str]:
    for line in resolved.splitlines(keepends=True):
        if torch or not _OF_TORCH.match(line):
            yield line
