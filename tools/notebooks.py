"""Run the notebooks of docs/examples on the demo's videos, and keep what they show: `python -m tools.notebooks`.

Readers of the files and of the site see the outputs. What differs from run to run (times, ids, warnings) is left out,
so that a notebook changes only if what it shows does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from essp.demo.dataset import make_dataset

ROOT = Path(__file__).parents[1]
_VIDEOS_PER_CLASS = 6
_LONGEST_S = 300


def main() -> None:
    """Run and rewrite each of them."""
    with tempfile.TemporaryDirectory() as folder:
        make_dataset(Path(folder) / "videos", videos_per_class=_VIDEOS_PER_CLASS)
        build = [sys.executable, "-m", "essp", "catalog", "build", "videos", "--out", "catalog.parquet"]
        subprocess.run(build, cwd=folder, check=True, env=_environment())
        for path in sorted((ROOT / "docs" / "examples").glob("*.ipynb")):
            run(path, Path(folder))
            print(path.relative_to(ROOT))


def run(path: Path, folder: Path) -> None:
    """Run a notebook in this folder, and keep its outputs in its file."""
    notebook = nbformat.read(path, as_version=4)
    os.environ.update(_environment())
    NotebookClient(notebook, timeout=_LONGEST_S, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":  # warnings depend on the machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, path)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "services")))}


if __name__ == "__main__":
    main()
