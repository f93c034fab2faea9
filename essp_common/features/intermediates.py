"""Shares intermediate results (grey frames, flow fields) between the features of one clip.

A worker creates one `Intermediates` per clip and passes it to each `SharingExtractor` of that clip. The first request
for a key computes the value, and later requests return the same object. Extractors of other packages can use it, too.
One instance belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from essp_common.features.port import Extractor

T = TypeVar("T")


class Intermediates:
    """A clip and the values computed from it so far."""

    def __init__(self, clip: NDArray[np.uint8]) -> None:
        """`clip`: `(T, H, W, 3) uint8, RGB`. Do not modify it afterwards."""
        self.clip = clip
        self._made: dict[Hashable, object] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, computed by `make()` on the first request. Do not modify it.

        The key has to identify the value and everything that it depends on, except for the clip.
        """
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])


@runtime_checkable
class SharingExtractor(Extractor, Protocol):
    """An extractor that can share intermediate results with others."""

    def extract_from(self, shared: Intermediates) -> NDArray[Any]:
        """The same result as `extract(shared.clip)`."""


def extract_with(extractor: Extractor, shared: Intermediates) -> NDArray[Any]:
    """The feature of `shared.clip`. Uses `shared` if the extractor can."""
    return extractor.extract_from(shared) if isinstance(extractor, SharingExtractor) else extractor.extract(shared.clip)
