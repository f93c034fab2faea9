"""Paths as people write and read them, and the URIs they stand for."""

from __future__ import annotations

import os
from pathlib import Path


def as_uri(text: str, folder: Path = Path()) -> str:
    """`file://` URI of a path, meant from `folder`; what has a scheme already stays as it is.

    Paths go in without percent-encoding and without `..`: a URI here is a root and a key, not a link.
    """
    if "://" in text:
        return text
    path = os.path.abspath(folder / Path(text).expanduser())
    return f"file:///{path.lstrip('/')}"  # POSIX lets a path begin with two slashes


def shown(uri: str) -> str:
    """A URI as a user would type it: a file's path, from the working folder where it lies below that."""
    if not uri.startswith("file://"):
        return uri
    path = Path(uri.removeprefix("file://"))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
