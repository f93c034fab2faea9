"""Loops over the small set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import essp

CLIP = essp.Clip(frames=4, stride=2, size=40)


def loader(catalog: Path, **options: Any) -> essp.Loader:
    """Ten clips an epoch, in batches of four."""
    return essp.Loader(catalog, **{"clip": CLIP, "batch_size": 4, "clips_per_epoch": 10, "decoders": 1, **options})


def taken(batches: Any) -> list[tuple[int, int, str, int, int]]:
    """What identifies each clip: epoch, index, video, first frame, a sum over its pixels."""
    return [
        (*values, int(frames.sum()))
        for batch in batches
        for frames, *values in zip(
            batch.frames, *(batch.meta[name] for name in ("epoch", "index", "video", "first_frame")), strict=True
        )
    ]
