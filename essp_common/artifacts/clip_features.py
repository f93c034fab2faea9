"""Passes the features of a trainer's clips through the frame cache to the aggregator.

The aggregator that fuses the trainers needs, once, the input of a network's last layer for each clip of an evaluation.
Like all intermediate data, it stays off the disk: it is stored in the frame cache, one value per video, until the
aggregator has acknowledged it. The table of scores in the job's output says which clips the rows of a value belong to.

A finished training cannot recreate lost features; `FeaturesLost` says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.scores import ScoreTable, numbered
from essp_common.cache.port import FrameCache, job_prefix
from essp_common.errors import CacheMiss, PermanentError
from essp_common.runtime import ids

Rows = NDArray[np.intp]

_TTL_S = 30 * 24 * 3600.0
"""The last trainer of a job may end days after the first one. The master frees what a job leaves behind."""


class FeaturesLost(PermanentError):
    """The cache no longer has what a trainer stored."""


def store_features(
    cache: FrameCache,
    job: str,
    trainer: str,
    purpose: str,
    table: ScoreTable,
    retry: Callable[[Callable[[], None]], None],
) -> None:
    """Put the features of a table into the cache, for the aggregator. Safe to repeat.

    `retry` calls its argument until the cache has room and is reachable.
    """
    if table.features is None:
        raise ValueError("the table has no features")
    for own in _rows(table).values():
        key = _key(job, trainer, purpose, table, own)
        retry(partial(cache.put, key, table.features[own].tobytes(), [ids.AGGREGATOR], _TTL_S))


def with_features(cache: FrameCache, job: str, trainer: str, purpose: str, table: ScoreTable) -> ScoreTable:
    """The table with the features of its clips. Raises `FeaturesLost`, `Unavailable`."""
    found: list[tuple[Rows, NDArray[np.float16]]] = []
    for video, own in _rows(table).items():
        try:
            value = cache.get(_key(job, trainer, purpose, table, own))
        except CacheMiss as error:
            raise FeaturesLost(
                f"the features that trainer {trainer} gave of the {purpose} clips of {video} are no longer in the "
                "cache: the job was stopped, or the cache restarted, after that trainer had ended. Give the job an "
                "epoch more (`essp run --epochs`), and they are made again"
            ) from error
        found.append((own, np.frombuffer(value, np.float16).reshape(len(own), -1)))
    features = np.zeros((len(table), found[0][1].shape[1] if found else 0), np.float16)
    for own, rows in found:
        features[own] = rows
    return replace(table, features=features)


def release_features(cache: FrameCache, job: str, trainer: str, purpose: str, table: ScoreTable) -> None:
    """Free the features of a table after use."""
    keys = [_key(job, trainer, purpose, table, own) for own in _rows(table).values()]
    cache.ack_all(keys, ids.AGGREGATOR)


def _rows(table: ScoreTable) -> dict[str, Rows]:
    """Video -> its rows, in index order."""
    order = np.argsort(table.clip_index, kind="stable")
    videos, number = numbered(table.video_id)
    by_video = order[np.argsort(number[order], kind="stable")]
    ends = np.cumsum(np.bincount(number, minlength=len(videos)))
    return dict(zip(videos, np.split(by_video, ends[:-1]), strict=True)) if videos else {}


def _key(job: str, trainer: str, purpose: str, table: ScoreTable, rows: Rows) -> str:
    """The key for the rows of one video, identified by its first clip."""
    first = int(table.clip_index[rows[0]])
    return f"{job_prefix(job)}{{features.{trainer}.{purpose}.{first}}}"
