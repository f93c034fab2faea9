"""What a user types as a path or a URI, as a URI."""

from __future__ import annotations

from pathlib import Path


def as_uri(text: str) -> str:
    """`file://` URI of a path; what has a scheme already stays as it is.

    Paths go in as they are, without percent-encoding: a URI here is a root and a key, not a link.
    """
    return text if "://" in text else f"file://{Path(text).expanduser().absolute()}"
