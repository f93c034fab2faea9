"""Loads OpenCV for extractors, in `setup`, so that a process that only needs shapes does not load it."""

from __future__ import annotations

from typing import Any


def load_opencv() -> Any:
    """The module `cv2`, limited to one thread: the lanes of a worker run in parallel and already use all cores."""
    import cv2

    cv2.setNumThreads(1)
    return cv2
