"""ESSP in Python: clips for training loops, frames, features, predictions and trained models.

Your own training loop needs a catalog (`essp catalog build videos --out catalog.parquet`) and an `essp.Loader`.
Each `for` over it is an epoch. Killed and started again, this program continues with the very next clip:

    import os, torch, essp

    loader = essp.Loader("catalog.parquet", clip=essp.Clip(frames=16, stride=4, size=112), batch_size=8)
    model = torch.nn.Sequential(
        torch.nn.Conv3d(3, 32, (1, 7, 7), stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool3d(1),
        torch.nn.Flatten(), torch.nn.Linear(32, len(loader.classes)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if os.path.exists("loop.pt"):
        saved = torch.load("loop.pt")
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    for epoch in range(loader.epoch, 10):
        for batch in loader:  # batch.frames (8, 16, 112, 112, 3) uint8, batch.labels (8,) int64, batch.meta
            pixels = batch.frames.permute(0, 4, 1, 2, 3) / 127.5 - 1  # (B, C, T, H, W) float32
            loss = torch.nn.functional.cross_entropy(model(pixels), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, "loop.new")
            os.replace("loop.new", "loop.pt")  # a kill leaves the old file or the new one

Optical flow is `(B, 1, H, W, 20)` uint8, with 128 for no motion, so `Conv3d(20, ...)`:

    flow = {"feature": "flow", "params": {"length": 10}, "clip": essp.Clip(frames=11, size=112)}
    loader = essp.Loader("catalog.parquet", batch_size=8, **flow)

`split="validation"` reads the videos set aside, `device="cuda"` copies batches to the GPU ahead of use,
`sampling=essp.Sampling(kind="pooled")` decodes less, and `torchrun` sets `rank` and `world_size`. docs/loader.md covers
Lightning, accelerate, the Trainer of Hugging Face and notebooks.

`essp.lerobot.LeRobotDataset` reads a robot's data set item by item, as LeRobot's own class does (docs/robots.md).

Everything else is plain functions:

    catalog = essp.open_catalog("catalog.parquet")                             # rows, classes, splits
    clip = essp.decode("talk.mp4", start=16, frames=16, short_side=128)        # (16, H, W, 3) uint8, RGB, frame-exact
    flow = essp.compute_feature(clip, "flow", length=10)                       # (1, H, W, 20) uint8
    for video, first_frame, frames in essp.stream("talk.mp4", frames=16): ...  # all of a video, in windows
    answers = essp.predict(["a.mp4", "b.mp4"], "runs/ucf101")                  # class scores of each video
    mix = essp.Mix({loader: 0.7, other: 0.3})                                  # batches of several loaders, by weight
    data = essp.to_hf_iterable(loader)                                         # for Hugging Face's `datasets`
    model = essp.load_model("runs/ucf101")                                     # the networks, and how they fuse
    found = essp.load_features("runs/dino")                                    # vectors of all clips (`essp extract`)

Importing `essp` loads no library. Each name loads what it needs when it is first used; if a library is missing, that
raises a `ConfigError` that names the extra to install. After `import essp`, `import torchvision` also works with a
CPU-only torch, for which the torchvision wheel on PyPI is not built. All errors that ESSP raises on purpose are
`EsspError`: `BadVideo` for a file that cannot be decoded, `NotFound`, `ConfigError` for what the caller must change.

Paths may be URIs (`file:///...`, `s3://bucket/...`); the environment variable `ESSP_STORES` names the object stores.
docs/python.md has all of this as a page.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from essp_engine.learning import torchvision_import

if TYPE_CHECKING:
    from essp import lerobot as lerobot
    from essp.api.clips import decode, open_catalog
    from essp.api.epochs import Batch
    from essp.api.extraction import Features, load_features
    from essp.api.features import compute_feature, features
    from essp.api.hugging_face import to_hf_iterable
    from essp.api.loader import Loader
    from essp.api.loader_arguments import Budget, Clip, Limits, RecordSampling, Sampling, Targets
    from essp.api.mix import Mix
    from essp.api.models import Model, StreamModel, load_model
    from essp.api.prediction import Segment, VideoPrediction, predict
    from essp.api.records import Records
    from essp.api.shared import SharedRecords
    from essp.api.streaming import Stream, Window, stream
    from essp.api.targets import BatchTargets
    from essp_common.catalog.catalog import Catalog
    from essp_common.catalog.rows import VideoRow
    from essp_common.errors import BadVideo, ConfigError, EsspError, NotFound, PermanentError
    from essp_engine.learning.network import Network

    __version__: str

torchvision_import.install()

_HOMES = {
    "essp.api.clips": ("decode", "open_catalog"),
    "essp.api.epochs": ("Batch",),
    "essp.api.extraction": ("Features", "load_features"),
    "essp.api.features": ("compute_feature", "features"),
    "essp.api.loader": ("Loader",),
    "essp.api.loader_arguments": ("Budget", "Clip", "Limits", "RecordSampling", "Sampling", "Targets"),
    "essp.api.hugging_face": ("to_hf_iterable",),
    "essp.api.mix": ("Mix",),
    "essp.api.models": ("Model", "StreamModel", "load_model"),
    "essp.api.prediction": ("Segment", "VideoPrediction", "predict"),
    "essp.api.records": ("Records",),
    "essp.api.shared": ("SharedRecords",),
    "essp.api.streaming": ("Stream", "Window", "stream"),
    "essp.api.targets": ("BatchTargets",),
    "essp_common.catalog.catalog": ("Catalog",),
    "essp_common.catalog.rows": ("VideoRow",),
    "essp_common.errors": ("BadVideo", "ConfigError", "EsspError", "NotFound", "PermanentError"),
    "essp_engine.learning.network": ("Network",),
}
"""Module -> its public names."""
_MODULES = ("lerobot",)
"""Public modules with names of their own."""

__all__ = [
    "BadVideo",
    "Batch",
    "BatchTargets",
    "Budget",
    "Catalog",
    "Clip",
    "ConfigError",
    "EsspError",
    "Features",
    "Limits",
    "Loader",
    "Mix",
    "Model",
    "Network",
    "NotFound",
    "PermanentError",
    "RecordSampling",
    "Records",
    "Sampling",
    "Segment",
    "SharedRecords",
    "Stream",
    "StreamModel",
    "Targets",
    "VideoPrediction",
    "VideoRow",
    "Window",
    "compute_feature",
    "decode",
    "features",
    "load_features",
    "load_model",
    "open_catalog",
    "predict",
    "stream",
    "to_hf_iterable",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (PEP 562)."""
    if name == "__version__":
        from essp_common.distribution import version

        return version()
    if name in _MODULES:
        return import_module(f"essp.{name}")
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'essp' has no attribute {name!r}")
    from essp_common.distribution import needs_extra

    with needs_extra(f"essp.{name}"):
        found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})
