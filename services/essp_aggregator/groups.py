"""Which videos are too alike to learn from one and judge by another: those of one file or one group of the catalog.

It is the rule by which a validation split is carved out of the training videos (`essp_common.catalog.splits`). Data
sets such as UCF-101 have several videos of each recording; who has learned one of them by heart is right about the
others, and about nothing else.

Where clips stand for themselves (`data.targets: spans`), those of one video are as much alike.
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
    """The groups of these videos, or clips that stand for themselves, as the catalog of the job tells them. If it is
    gone, only the clips of one video are alike, with a warning.

    Records have no groups. Raises `TransientError`.
    """
    if spec.data.records:
        return NO_GROUPS
    if spec.data.targets != "spans":
        return _shared(spec, stores, set(names))
    videos = {name: clip_named(name)[0] for name in names}
    shared = _shared(spec, stores, set(videos.values()))
    return {name: shared.get(video, video) for name, video in videos.items()}


def _shared(spec: JobSpec, stores: Stores, videos: Collection[str]) -> dict[str, int | str]:
    """The groups of those of these videos that share one with another video of the catalog."""
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
