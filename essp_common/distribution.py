"""The name under which ESSP is installed: `essp-video` on the package index, `essp` in imports and on the command line.

Every hint and message takes the name from here.
"""

from __future__ import annotations

from importlib import metadata

NAME = "essp-video"


def version() -> str:
    """The version that is installed."""
    return metadata.version(NAME)


def install(extra: str) -> str:
    """The command that installs an extra, for messages: `pip install 'essp-video[kafka]'`."""
    return f"pip install '{NAME}[{extra}]'"
