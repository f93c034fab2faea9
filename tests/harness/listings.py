"""Folders of videos and the lists that name them, and what a catalog would be made of."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from essp.catalog.build import _check_names, _row
from essp.catalog.layout import Kind
from essp.catalog.sources import Listing, read_source
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import row_problems
from essp_common.catalog.rows import VideoRow
from essp_common.wiring import Stores

FILE = VideoRow("", "", "", "", 1, "", width=8, height=8, fps=25.0, frame_count=300, last_frame=299)
"""What `rows` takes each video for: 12 s."""


def make(root: Path, *names: str) -> None:
    """Files that have the names of videos."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def write(path: Path, text: str) -> None:
    """A list, in a folder that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def shard(path: Path, **files: bytes) -> None:
    """A tar archive. `__` in a name stands for a point."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def listing(root: Path, name: str = "", kind: Kind = "auto", split: int = 1) -> Listing:
    """What is listed of a folder, or by a file in it."""
    return read_source(f"file://{root / name}" if name else f"file://{root}", Stores([f"file://{root}"]), kind, split)


def csv_of(root: Path, text: str, name: str = "index.csv") -> Listing:
    """What a CSV file lists."""
    (root / name).write_text(text, encoding="utf-8")
    return listing(root, name)


def labelled(found: Listing) -> dict[str, tuple[str, str]]:
    """Usable entries: id -> class and split."""
    return {e.id: (e.class_name, e.split) for e in found.entries if e.error is None}


def errors(found: Listing) -> dict[str, str]:
    """Unusable entries: id -> the problem in words."""
    return {entry.id: entry.error for entry in found.entries if entry.error is not None}


def one_error(found: Listing) -> str:
    """The problem of the one unusable entry."""
    (error,) = errors(found).values()
    return error


def problems(found: Listing) -> dict[str, str]:
    """Unusable entries: id -> kind of the problem."""
    return {name: error.partition(":")[0] for name, error in errors(found).items()}


def rows(found: Listing) -> dict[str, VideoRow]:
    """What a build makes of it, if each file is `FILE`."""
    _check_names(found.entries)
    made = [_row(entry, FILE) for entry in found.entries]
    assert not list(row_problems(Catalog(made)))
    return {row.id: row for row in made}
