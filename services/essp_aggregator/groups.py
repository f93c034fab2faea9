"""Which videos are too alike to learn from one and judge by another: those of one file or one group of the catalog.

It is the rule by which a validation split is carved out of the training videos (`essp_common.planning.splits`). Data
sets such as UCF-101 have several videos of each recording; who has learned one of them by heart is right about the
others, and about nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np

from essp_aggregator.fusion import NO_GROUPS, Groups
from essp_common.errors import EsspError, TransientError
from essp_common.job.spec import JobSpec
from essp_common.planning.splits import together
from essp_common.records.rows import open_data
from essp_common.wiring import Stores

log = logging.getLogger(__name__)

_COLUMNS = ("group",)


def groups_of(spec: JobSpec, stores: Stores, videos: Collection[str]) -> Groups:
    """The groups of these videos, as the catalog of the job tells them; none, with a warning, if it is gone.

    Records have no groups. Raises `TransientError`.
    """
    if spec.data.records:
        return NO_GROUPS
    try:
        rows = open_data(spec, stores, _COLUMNS).rows
    except TransientError:
        raise
    except EsspError as error:
        log.warning(
            "job %s: each video is taken for unlike all others, since its catalog is gone: %s", spec.name, error
        )
        return NO_GROUPS
    numbers = together(rows)
    shared = np.flatnonzero(np.bincount(numbers)[numbers] > 1)
    wanted = set(videos)
    named = ((rows.text("id", row), int(numbers[row])) for row in shared.tolist())
    return {video: number for video, number in named if video in wanted}
