"""The messages between `fits.py` and its child process: pickles, and `GO_ON`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

GO_ON = b"go on"
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Request:
    """What to fit."""

    fit: str
    """A key of `fit_child.FITS`."""
    arrays: Arrays
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """Progress, with the arguments of `Tell`."""

    what: str
    done: int
    most: int


@dataclass(frozen=True)
class Learned:
    """The result of a fit."""

    arrays: Arrays


@dataclass(frozen=True)
class Failed:
    """The exception of a fit."""

    kind: str
    said: str
    trace: str
