"""One catalog with everything that splits and plans look at, and a job on it: what is made of them never changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import VideoRow
from essp_common.job.spec import JobSpec

POOLED = {"kind": "pooled", "clips_per_visit": 4, "window": 64}


def rows() -> Iterator[VideoRow]:
    """In no order: segments of shared files, groups, classes of all sizes, several splits, videos that cannot be used.

    One class has no usable video, and ids are of all alphabets.
    """
    for number in range(600):
        n = number * 7919 % 600
        name = f"{('straße', 'a', 'zoo', '😀', 'kicks', '')[n % 5]}{n % 37 % 9}"
        frames = 1 + n * n % 401
        first = n % 7 if frames > 20 else 0
        keyframes = range(n % 3, frames + 1, 12)
        yield VideoRow(
            f"{name}/{n:04}{'#1' * (n % 3)}",
            f"s3://videos/{name}/{n // 2 if n % 4 < 2 else n:04}",
            name,
            ("train", "train", "train", "train", "test")[n // 3 % 5],
            1000 + n,
            f"{n:x}",
            frame_count=frames + 3,
            first_frame=first,
            last_frame=frames - 1,
            seekable=bool(n % 11),
            keyframe_pts=tuple(512 * frame - 512 for frame in keyframes),
            keyframe_frame=tuple(keyframes),
            keyframe_offset=tuple(48 + 1000 * frame if frame % 5 else -1 for frame in keyframes),
            group=f"g{n // 5}" if n % 2 else "",
            error="damaged: x" if n % 23 == 0 or name == "zoo8" else None,
        )


CATALOG = Catalog(tuple(rows()))


def digest(parts: Iterable[object]) -> str:
    return blake2b("\n".join(map(repr, parts)).encode(), digest_size=8).hexdigest()


def job(sampling: dict[str, Any], **data: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "pinned",
            "output": "file:///out",
            "data": {"catalog": "file:///c"} | data,
            "clip": {"frames": 8, "stride": 3},
            "sampling": sampling | {"seed": 11},
            "streams": {"rgb": {}},
            "trainers": {"rgb": {"stream": "rgb"}},
            "epochs": 2,
        }
    )
