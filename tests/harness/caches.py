"""What tests keep on this machine from run to run, because it takes long to make."""

from __future__ import annotations

import os
from pathlib import Path


def cached(name: str) -> Path:
    """A folder of this name in the user's folder for caches; it may not exist yet."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "essp-tests" / name
