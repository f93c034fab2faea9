"""What tests of whole journeys share: a small labelled set, a job on it, and what came of a job."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from google.protobuf.message import DecodeError

from essp_common import topics
from essp_common.artifacts.fused_model import open_model
from essp_common.bus.port import Record
from essp_common.pb.v1.messages_pb2 import DecodeSeed
from essp_common.wiring import Stores
from essp_engine.video.synthetic import Encoding, drifting, texture, write_video

_JOB = """
name: {name}
output: {output}
epochs: {epochs}
data: {{catalog: "{catalog}"}}
clip: {{frames: 4, resize: {{mode: crop, height: 40, width: 40}}}}
sampling: {{clips_per_epoch: {clips}, clips_per_video: 2, seed: 3}}
streams:
  rgb: {{feature: rgb}}
  flow: {{feature: flow, params: {{method: dis, length: 3}}}}
trainers:
  rgb: &trainer
    stream: rgb
    batch_size: 4
    threads: 1
    checkpoint: {{every: {checkpoint}, parallel: thread}}
    augment: {{crop: 32, flip: false}}
  flow: {{<<: *trainer, stream: flow}}
limits: {{budget: {budget}}}
"""

IssuedSeed = tuple[int, int, int, int, str, int]
"""Purpose, epoch, index, attempt, video, first frame."""


class JobOptions(TypedDict, total=False):
    """What a job of `job_text` may have otherwise."""

    epochs: int
    clips: int
    budget: str | int
    checkpoint: int
    extra: str


def job_text(
    name: str,
    *,
    output: str,
    catalog: str,
    epochs: int = 2,
    clips: int = 12,
    budget: str | int = "4MiB",
    checkpoint: int = 0,
    extra: str = "",
) -> str:
    """A job file: two streams of the small set. `output` and `catalog` are URIs."""
    fields = {"name": name, "output": output, "catalog": catalog, "epochs": epochs, "clips": clips}
    return _JOB.format(**fields, budget=budget, checkpoint=checkpoint) + extra


def make_videos(root: Path, times: int = 1) -> None:
    """Two classes, told apart by their motion, in both codecs, below folders of their splits: 20 videos, so many
    times."""
    for split, count in (("train", 6), ("validation", 2), ("test", 2)):
        for label, velocity in (("left", (-2, 0)), ("right", (2, 0))):
            for number in range(count * times):
                codec, suffix = (("h264", "mp4"), ("mpeg4", "avi"))[number % 2]
                path = root / split / label / f"{number}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                seed = len(split) * 100 + number
                write_video(path, drifting(texture(96, 80, seed), 24, velocity), Encoding(codec=codec, gop=8))


def weights_of(stores: Stores, output: str) -> dict[str, str]:
    """Trainer -> digest of the weights that were fused."""
    _, model = open_model(stores, f"{output}/model")
    return {member.trainer: member.sha256 for member in model.members}


def seeds_in(records: Iterable[Record], job: str) -> list[IssuedSeed]:
    """The seeds of one job among these records, as they came; anybody may put anything else beside them."""
    found: list[IssuedSeed] = []
    for record in records:
        if record.topic != topics.SEEDS:
            continue
        unit = DecodeSeed()
        with suppress(DecodeError):
            unit.ParseFromString(record.value)
        if unit.job == job:
            found += [(unit.purpose, unit.epoch, s.index, s.attempt, unit.video.id, s.first_frame) for s in unit.seeds]
    return found
