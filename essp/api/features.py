"""Features of frames: `essp.features`, `essp.compute_feature`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp.api.arguments import name_of, plain, whole_number
from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError
from essp_common.field_names import renamed
from essp_common.job.spec import JobSpec
from essp_common.validation import shown
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import ArraySpec
from essp_engine.video.colour import Colour


def features() -> list[str]:
    """The sorted names of the installed features: those of ESSP, and those that other packages register.

    `essp extractor describe NAME` shows the parameters of one.

        "flow" in essp.features()  # True
    """
    return registry.names()


def compute_feature(frames: NDArray[np.uint8], name: str, /, *, snippets: int = 1, **params: Any) -> NDArray[Any]:
    """Compute a feature of one clip, exactly as the extractor service does.

    frames: `(T, H, W, 3)` uint8, RGB; or `(T, H, W, 1)` uint8, grey levels, for `rgb` and for features of grey levels
        such as `flow`. They are not modified.
    name: one of `essp.features()`.
    snippets: compute the feature for each of this many equal parts of the frames (`model.clip.snippets`), and
        concatenate the results along T'.
    params: the parameters of the feature, as under `streams.<name>.params` of a job file.

    Returns `(T', H, W, C)` uint8 for features that networks read, and `(T', rows, columns, bins)` or
    `(1, tracks, 1, length)` float32 for descriptors.

        clip = essp.decode("a.mp4", frames=11, short_side=128)
        essp.compute_feature(clip, "flow", length=10).shape  # (1, 128, 171, 20): ten fields of dx and dy

    Raises `ConfigError` for a feature that is not installed, for unknown parameters or values out of range, for a clip
    that is too short, and for a grey clip if the feature needs colours.
    """
    if not isinstance(frames, np.ndarray):
        raise ConfigError(
            f"must be a NumPy array, uint8 of shape (T, H, W, 3), got {shown(frames)}", field="frames", code="type"
        )
    if frames.ndim != 4 or frames.shape[3] not in (1, 3) or frames.dtype != np.uint8 or 0 in frames.shape[1:]:
        raise ConfigError(
            f"must be uint8 of shape (T, H, W, 3), or (T, H, W, 1) for grey levels, got {frames.dtype} of shape "
            f"{frames.shape}",
            field="frames",
            code="type",
        )
    if len(frames) % whole_number("snippets", snippets, 1):
        raise ConfigError(
            f"{len(frames)} frames cannot be divided into {snippets} equal parts", field="snippets", code="conflict"
        )
    params = plain(params)
    _check(name_of("name", name), params, ArraySpec(frames.shape, "uint8"), snippets)
    luma = frames.shape[3] == 1 and registry.needs_of(name) == "luma"
    if frames.shape[3] == 1 and not luma and name != "rgb":
        raise ConfigError(
            f"{name} needs colours, and these are grey; give RGB of shape (T, H, W, 3)", field="frames", code="conflict"
        )
    extractor = registry.create(name, params)
    with needs_extra(f"the feature {name!r}"):
        extractor.setup()
    parts = np.split(np.ascontiguousarray(frames), snippets)
    made = [extract_with(extractor, Intermediates(part, Colour(full=True) if luma else None)) for part in parts]
    return made[0] if snippets == 1 else np.concatenate(made)


def _check(name: str, params: Mapping[str, Any], clip: ArraySpec, snippets: int) -> None:
    """Raises `ConfigError` for wrong parameters and for too few frames."""
    try:
        registry.output_of(name, params, clip, snippets=snippets)
    except ConfigError as found:
        error = renamed(found, {"params": "", "clip.frames": "frames"}, JobSpec)
        raise (error if error.field else error.within("name" if error.code == "unknown" else "frames")) from found
