"""What several features of one clip need on the way (grey frames, flow fields), made once.

A worker makes one `Intermediates` for each clip and hands it to every extractor of that clip that follows
`SharingExtractor`; it dies with the clip. Extractors of other packages can take part: whatever the key, the first
who asks makes the value, and who comes later gets the same object. One instance belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from essp_common.features.port import Extractor

T = TypeVar("T")


class Intermediates:
    """A clip and what has been made of it so far."""

    def __init__(self, clip: NDArray[np.uint8]) -> None:
        """`clip`: `(T, H, W, 3) uint8, RGB`, which must not change from here on."""
        self.clip = clip
        self._made: dict[Hashable, object] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, from `make()` the first time. It must not be written to.

        The key names what is made and everything it depends on but the clip.
        """
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])


@runtime_checkable
class SharingExtractor(Extractor, Protocol):
    """An extractor that can take intermediate results from others, and leave its own to them."""

    def extract_from(self, shared: Intermediates) -> NDArray[Any]:
        """The same as `extract(shared.clip)`."""


def extract_with(extractor: Extractor, shared: Intermediates) -> NDArray[Any]:
    """The feature of `shared.clip`, sharing what can be shared."""
    return extractor.extract_from(shared) if isinstance(extractor, SharingExtractor) else extractor.extract(shared.clip)
