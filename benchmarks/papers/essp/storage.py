"""Disk space and processor time to extract the published data sets, estimated by `essp plan --against extract`.

The cost of a frame is measured on made videos: MPEG-4 of 320x240 for UCF-101, H.264 of 640x360 for FCVID, with the
paper's frame size and streams. It is multiplied by the number of frames in the hours of the data set. The paper itself
states 1.5 TB for UCF-101 ("the full extracted information") and more than 50 TB for the challenge's 3 TB of video, with
frames and features such as HOF and MBH.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.inputs import VideoSet, make
from benchmarks.papers.document import markdown
from benchmarks.papers.essp.extracting import MADE, job
from benchmarks.papers.essp.traditional import Task
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.capacity.extraction import DataSet, Machines, comparison, sample
from essp.capacity.measuring import measure
from essp_common.catalog.file import read_catalog
from essp_common.quantities import size
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

LARGER = VideoSet("h264", 60, 640, 360, frames=300, videos=16)
CORES, WITHIN_H = 16, 24.0


@dataclass(frozen=True, slots=True)
class Published:
    """A data set as in the paper's Table 1, and the disk space that the paper states for it."""

    title: str
    like: VideoSet
    videos: int
    hours: float
    epochs: int
    said: str


SETS = {
    "ucf101": Published("UCF-101, 27 h", MADE, 13_320, 27.0, 100, "1.5 TB"),
    "fcvid": Published("FCVID, 4,232 h", LARGER, 91_223, 4232.0, 5, "more than 50 TB, for the whole challenge"),
}


def estimate(name: str, root: Path, quick: bool) -> dict[str, Any]:
    """Extraction against streaming for one data set, with sampling clip by clip and pooled."""
    data = SETS[name]
    videos = VideoSet("mpeg4", 12, 320, 240, ".avi", frames=40, videos=4) if quick else data.like
    catalog = make(videos, root)
    rows = read_catalog(*Stores(("file:///",)).resolve(f"file://{catalog}")).view("train").rows
    present = DataSet.of(rows)
    task = Task((Path(),) * (32 if quick else 240), (0,), epochs=200, batch=8)
    found = sample(job(catalog, "file:///none", task, False), rows, 2.0 if quick else 20.0)
    ways = {}
    for way in ("essp", "pooled"):
        spec = job(catalog, "file:///none", task, way == "pooled")
        costs = measure(spec, Settings(), 5.0 if quick else 20.0)
        own = {"epochs": data.epochs, "sampling": spec.sampling.model_copy(update={"clips_per_epoch": None})}
        asked = present.scaled(data.videos, data.hours)
        costs = replace(costs, epoch_clips=len(rows))  # an epoch shows a clip of each video
        machines = Machines(WITHIN_H, CORES)
        ways[way] = comparison(spec.model_copy(update=own), costs, found, present, asked, machines)
    return ways


def _steps(options: Options) -> Steps:
    for name in SETS:
        yield name, partial(apart, estimate, name, options.work / "videos", options.quick)


def _table(values: Values) -> str:
    rows = []
    for name, data in SETS.items():
        if name not in values:
            continue
        clip_by_clip, pooled = values[name]["essp"], values[name]["pooled"]
        kept, raw = clip_by_clip["extract"]["bytes"], clip_by_clip["extract"]["raw_bytes"]
        rows.append(
            [
                data.title,
                f"{size(sum(kept.values()))} in {clip_by_clip['extract']['files'] / 1e6:,.1f} million files",
                size(sum(raw.values())),
                data.said,
                f"{clip_by_clip['extract']['core_hours']:,.1f}",
                f"{clip_by_clip['core_hours']['extract']:,.1f} / {clip_by_clip['core_hours']['essp']:,.1f} / "
                f"{pooled['core_hours']['essp']:,.1f}, for {data.epochs}",
                f"{_epoch(clip_by_clip)} / {_epoch(pooled)}",
                f"{clip_by_clip['machines']['extract']} / {clip_by_clip['machines']['essp']} / "
                f"{pooled['machines']['essp']}",
            ]
        )
    head = ["data set", "JPEG files", "uncompressed", "the paper", "core-hours before the first clip"]
    head += ["core-hours of all epochs: extract / ESSP / ESSP pooled", "extraction pays from epoch: ESSP / ESSP pooled"]
    head.append(f"machines of {CORES} cores for {WITHIN_H:g} h: extract / ESSP / ESSP pooled")
    return markdown(head, rows)


def _epoch(compared: Mapping[str, Any]) -> str:
    """The number of epochs from which extraction would have cost less processor time."""
    return str(compared["pays_after_epochs"] or "never")


PART = Part("storage", "disk space and processor time of extracting the published data sets", _steps, _table, uses=())
