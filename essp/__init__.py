"""ESSP in Python: catalogs, clips, features, predictions and trained models as plain functions.

    import essp

    catalog = essp.open_catalog("catalog.parquet")
    clip = essp.decode(catalog.rows[0], start=16, frames=16, short_side=128)   # (16, H, W, 3) uint8, RGB
    flow = essp.compute_feature(clip, "flow", length=10)                       # (1, H, W, 20) uint8
    for video, first_frame, frames in essp.stream("talk.mp4", frames=16, step=8): ...  # all of a video, in windows
    loader = essp.Loader("catalog.parquet", clip=essp.Clip(frames=16), batch_size=32)  # for a loop of your own
    answers = essp.predict(["a.mp4", "b.mp4"], "runs/ucf101")
    model = essp.load_model("runs/ucf101")

Importing `essp` loads no library: each name loads what it needs when it is first used, and a library that is not
installed is then a `ConfigError` that names the extra to install. All errors that ESSP raises on purpose are
`EsspError`: `BadVideo` for a file that cannot be decoded, `NotFound`, `ConfigError` for what the caller has to change.

Paths may be URIs (`file:///...`, `s3://bucket/...`); the environment variable `ESSP_STORES` names the object stores.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from essp.api.clips import decode, open_catalog
    from essp.api.features import compute_feature, features
    from essp.api.loader import Batch, Clip, Loader
    from essp.api.models import Model, StreamModel, load_model
    from essp.api.prediction import Segment, VideoPrediction, predict
    from essp.api.streaming import Stream, Window, stream
    from essp_common.catalog.table import Catalog, VideoRow
    from essp_common.errors import BadVideo, ConfigError, EsspError, NotFound, PermanentError

_HOMES = {
    "essp.api.clips": ("decode", "open_catalog"),
    "essp.api.features": ("compute_feature", "features"),
    "essp.api.loader": ("Batch", "Clip", "Loader"),
    "essp.api.models": ("Model", "StreamModel", "load_model"),
    "essp.api.prediction": ("Segment", "VideoPrediction", "predict"),
    "essp.api.streaming": ("Stream", "Window", "stream"),
    "essp_common.catalog.table": ("Catalog", "VideoRow"),
    "essp_common.errors": ("BadVideo", "ConfigError", "EsspError", "NotFound", "PermanentError"),
}
"""Module -> the names that come from it."""

__all__ = [
    "BadVideo",
    "Batch",
    "Catalog",
    "Clip",
    "ConfigError",
    "EsspError",
    "Loader",
    "Model",
    "NotFound",
    "PermanentError",
    "Segment",
    "Stream",
    "StreamModel",
    "VideoPrediction",
    "VideoRow",
    "Window",
    "compute_feature",
    "decode",
    "features",
    "load_model",
    "open_catalog",
    "predict",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (PEP 562)."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'essp' has no attribute {name!r}")
    from essp_common.distribution import needs_extra

    with needs_extra(f"essp.{name}"):
        found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
