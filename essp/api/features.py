"""Features of frames: `essp.features`, `essp.compute_feature`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp.api.arguments import name_of, plain, whole_number
from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError
from essp_common.validation import shown
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import ArraySpec
from essp_engine.video.colour import Colour


def features() -> list[str]:
    """The names of the features that are installed, sorted: ESSP's own, and those that other packages register.

    `essp extractor describe NAME` shows the parameters of one.

        "flow" in essp.features()  # True
    """
    return registry.names()


def compute_feature(frames: NDArray[np.uint8], name: str, /, *, snippets: int = 1, **params: Any) -> NDArray[Any]:
    """A feature of one clip, exactly as the extractor service computes it.

    frames: `(T, H, W, 3)` uint8, RGB, or `(T, H, W, 1)`, grey levels, for features of these such as `flow`, and for
        `rgb`; not written to.
    name: one of `essp.features()`.
    snippets: the feature of each of this many equal parts of the frames (`model.clip.snippets`); T' is that of all.
    params: the parameters of the feature, as under `streams.<name>.params` of a job file.

    The result of a feature for networks is `(T', H, W, C)` uint8; descriptors are `(T', rows, columns, bins)` or
    `(1, tracks, 1, length)` float32.

        clip = essp.decode("a.mp4", frames=11, short_side=128)
        essp.compute_feature(clip, "flow", length=10).shape  # (1, 128, 171, 20): ten fields of dx and dy

    Raises `ConfigError` for a feature that is not installed, for parameters that it does not have or that are out of
    range, for clips that are too short, and for grey ones where it needs colours.
    """
    if not isinstance(frames, np.ndarray):
        raise ConfigError(f"frames: {shown(frames)} is no array of numpy; give uint8 of shape (T, H, W, 3)")
    if frames.ndim != 4 or frames.shape[3] not in (1, 3) or frames.dtype != np.uint8 or 0 in frames.shape[1:]:
        raise ConfigError(
            f"frames are {frames.dtype} of shape {frames.shape}; give uint8 of shape (T, H, W, 3), or grey ones of "
            "shape (T, H, W, 1)"
        )
    if len(frames) % whole_number("snippets", snippets, 1):
        raise ConfigError(f"snippets={snippets}: {len(frames)} frames cannot be divided into so many")
    params = plain(params)
    registry.output_of(
        name_of("name", name), params, ArraySpec(frames.shape, "uint8"), snippets=snippets
    )  # are they too few?
    luma = frames.shape[3] == 1 and registry.needs_of(name) == "luma"
    if frames.shape[3] == 1 and not luma and name != "rgb":
        raise ConfigError(f"frames: they are grey, and {name} needs colours; give RGB, of shape (T, H, W, 3)")
    extractor = registry.create(name, params)
    with needs_extra(f"the feature {name!r}"):
        extractor.setup()
    parts = np.split(np.ascontiguousarray(frames), snippets)
    made = [extract_with(extractor, Intermediates(part, Colour(full=True) if luma else None)) for part in parts]
    return made[0] if snippets == 1 else np.concatenate(made)
