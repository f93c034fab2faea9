"""OpenCV as extractors load it: in `setup`, so that a process that only asks for shapes does not pay for it."""

from __future__ import annotations

from typing import Any


def load_opencv() -> Any:
    """The module `cv2`, limited to one thread: the lanes of a worker run in parallel, and have the cores already."""
    import cv2

    cv2.setNumThreads(1)
    return cv2
