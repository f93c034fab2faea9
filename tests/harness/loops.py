"""Loops over the small set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import essp

CLIP = essp.Clip(frames=4, stride=2, size=40)


def loader(catalog: Path, **options: Any) -> essp.Loader:
    """Ten clips an epoch, in batches of four."""
    return essp.Loader(catalog, **in_groups({"clip": CLIP, "batch_size": 4, "clips_per_epoch": 10, **options}))


def in_groups(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a loader with one decoder; the options of `Sampling`, `Targets` and `Limits` may stand alone."""
    given = {"decoders": 1, **options}
    groups: dict[str, type[Any]] = {"sampling": essp.Sampling, "targets": essp.Targets, "limits": essp.Limits}
    grouped = {
        argument: group(**{field.name: given.pop(field.name) for field in fields(group) if field.name in given})
        for argument, group in groups.items()
        if argument not in given
    }
    return {**given, **grouped}


def ask_in_a_worker_of_torch(loader: essp.Loader | essp.Records) -> None:
    """Have a worker process of a `DataLoader` ask for the first batch.

    The worker is told to end, as torch waits five seconds for one whose `DataLoader` the garbage collector takes.
    """
    batches = iter(DataLoader(loader, batch_size=None, num_workers=1))
    try:
        next(batches)
    finally:
        batches._shutdown_workers()  # type: ignore[attr-defined]


def taken(batches: Any) -> list[tuple[int, int, str, int, int]]:
    """What identifies each clip: epoch, index, video, first frame, a sum over its pixels."""
    return [
        (*values, int(frames.sum()))
        for batch in batches
        for frames, *values in zip(
            batch.frames, *(batch.meta[name] for name in ("epoch", "index", "video", "first_frame")), strict=True
        )
    ]
