"""Work units of real videos, and what came of them."""

from __future__ import annotations

from pathlib import Path

from essp_common.errors import EsspError, PermanentError
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    DecodeSeed,
    FrameCodec,
    Recipe,
    Resize,
    Seed,
    Seek,
    StreamRequest,
    Video,
)
from essp_engine.decoding.sandbox import Outcome
from essp_engine.video import codec
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import read_number

FRAMES = 40
SIZE = 64


def unit(folder: Path, name: str, *first: int, clip_codec: str = "raw", job: str = "j") -> DecodeSeed:
    path = folder / name
    facts = probe(str(path)) if name in ("a.mp4", "b.avi") else None
    seeds = []
    for index, frame in enumerate(first):
        seed = Seed(index=index, first_frame=frame, frame_count=5, stride=1, last_frame=FRAMES - 1)
        if facts is not None:
            at = [k for k in zip(facts.keyframe_frame, facts.keyframe_pts, strict=True) if k[0] <= frame][-1]
            seed.seek.CopyFrom(Seek(frame_index=at[0], pts=at[1]))
        seeds.append(seed)
    return DecodeSeed(
        job=job,
        purpose=TRAIN,
        epoch=3,
        fence=7,
        video=Video(
            id=name,
            uri=f"file://{path}",
            size_bytes=path.stat().st_size if path.exists() else 0,
            frame_count=FRAMES,
            width=160,
            height=120,
            seekable=True,
        ),
        seeds=seeds,
        recipe=Recipe(
            resize=Resize(mode=Resize.EXACT, height=SIZE, width=2 * SIZE, interpolation="bilinear"),
            codec=FrameCodec(name=clip_codec, quality=95 if clip_codec == "jpeg" else 0),
            streams=[StreamRequest(stream="rgb", feature="rgb", consumers=["trainer.rgb"])],
            ttl_s=600,
            strict=True,
        ),
    )


def numbers(outcome: Outcome) -> list[int]:
    assert not isinstance(outcome, EsspError), outcome
    frames = codec.decode(outcome)
    assert frames.shape == (5, SIZE, 2 * SIZE, 3)
    return [read_number(frame) for frame in frames]


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind if isinstance(outcome, PermanentError) else "clip" for outcome in outcomes]
