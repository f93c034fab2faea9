"""Finds the videos that are too alike to learn from one and judge by another: they share a file or a catalog group.

The same rule carves a validation split out of the training videos (`essp_common.catalog.splits`). Data sets such as
UCF-101 contain several videos of each recording; a model that has memorised one of them is right about the others, but
about nothing else.

If clips are judged independently (`data.targets: spans`), the clips of one video are too alike as well.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np

from essp_aggregator.fusion import NO_GROUPS, Groups
from essp_common.artifacts.scores import clip_named
from essp_common.catalog.splits import together
from essp_common.errors import EsspError, TransientError
from essp_common.job.spec import JobSpec
from essp_common.records.rows import open_data
from essp_common.wiring import Stores

log = logging.getLogger(__name__)

_COLUMNS = ("group",)


def groups_of(spec: JobSpec, stores: Stores, names: Collection[str]) -> Groups:
    """Read the groups of these videos, or of independently judged clips, from the job's catalog.

    If the catalog is gone, logs a warning and groups only the clips of one video. Records have no groups. Raises
    `TransientError`.
    """
    if spec.data.records:
        return NO_GROUPS
    if spec.data.targets != "spans":
        return _shared(spec, stores, set(names))
    videos = {name: clip_named(name)[0] for name in names}
    shared = _shared(spec, stores, set(videos.values()))
    return {name: shared.get(video, video) for name, video in videos.items()}


def _shared(spec: JobSpec, stores: Stores, videos: Collection[str]) -> dict[str, int | str]:
    """The groups of those videos that share a group with another video of the catalog."""
    try:
        rows = open_data(spec, stores, _COLUMNS).rows
    except TransientError:
        raise
    except EsspError as error:
        log.warning(
            "job %s: each video is taken for unlike all others, since its catalog is gone: %s", spec.name, error
        )
        return {}
    numbers = together(rows)
    shared = np.flatnonzero(np.bincount(numbers)[numbers] > 1)
    named = ((rows.text("id", row), int(numbers[row])) for row in shared.tolist())
    return {video: number for video, number in named if video in videos}
