"""Hundreds of damaged files, at night thousands, through the catalog and the decoder: each is decoded to the frames
that were declared, or reported with a reason; nobody hangs, and the pool is as able afterwards as it was before."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from essp.catalog.build import BuildOptions, build
from essp_common import topics
from essp_common.cache.port import clip_key
from essp_common.catalog.file import read_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.failures import kind_word
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    DecodeSeed,
    FrameCodec,
    Progress,
    Recipe,
    Resize,
    Seed,
    Seek,
    StreamRequest,
    Video,
)
from essp_common.runtime.config import Settings
from essp_common.wiring import Adapters, Stores
from essp_decoder.config import DecoderSettings
from essp_decoder.service import build as build_decoder
from essp_engine.decoding.probing import ProbeOptions
from essp_engine.video import codec
from tests.corpus.damage import NEVER_VIDEO, variants
from tests.corpus.sources import FRAMES, write_sources
from tests.lanes import often

SEED = 1
VARIANTS = (50, 200)
"""Of each source: with each change, and at night."""
LIMIT_S = 120.0
"""For one file; none needs a second."""
KINDS = {"damaged", "truncated", "empty", "not_video", "limit", "crashed", "timeout"}
HEIGHT, WIDTH = 48, 64
Frames = NDArray[Any]
_RECIPE = Recipe(
    resize=Resize(mode=Resize.EXACT, height=HEIGHT, width=WIDTH, interpolation="bilinear"),
    codec=FrameCodec(name="raw"),
    streams=[StreamRequest(stream="rgb", feature="rgb", consumers=["c"])],
    ttl_s=600,
    strict=True,
)


@dataclass
class Corpus:
    """The files, and what the catalog says of them."""

    variants: int
    """Of each source."""
    damage: dict[str, str]
    """Name -> kind of damage."""
    rows: dict[str, VideoRow]
    sound: dict[str, VideoRow]
    """The files that the damaged ones were made of."""

    def source_of(self, name: str) -> VideoRow:
        """The sound file that a damaged one was made of."""
        stem, suffix = name.partition("-")[0], name.rpartition(".")[2]
        return self.sound[f"{stem}.{suffix}"]


@pytest.fixture(scope="module", params=often(VARIANTS, 1))
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root = tmp_path_factory.mktemp("corpus")
    sound, damaged = root / "videos" / "sound", root / "videos" / "damaged"
    sound.mkdir(parents=True)
    damaged.mkdir()
    kinds = dict.fromkeys(NEVER_VIDEO, "never-video")
    for name, content in NEVER_VIDEO.items():
        (damaged / name).write_bytes(content)
    for path in write_sources(sound):
        for variant in variants(path.name, path.read_bytes(), request.param, SEED):
            (damaged / variant.name).write_bytes(variant.data)
            kinds[variant.name] = variant.kind
    rows = _catalog(root)
    return Corpus(
        request.param,
        kinds,
        {Path(row.uri).name: row for row in rows if row.class_name == "damaged"},
        {Path(row.uri).name: row for row in rows if row.class_name == "sound"},
    )


def _catalog(root: Path) -> Sequence[VideoRow]:
    uri = f"file://{root}/catalog.parquet"
    build(f"file://{root}/videos", uri, ("file:///",), BuildOptions("folders", probe=ProbeOptions(2, LIMIT_S)))
    return read_catalog(*Stores(("file:///",)).resolve(uri)).rows


def test_the_catalog_has_the_facts_or_a_reason(corpus: Corpus) -> None:
    assert len(corpus.damage) > 10 * corpus.variants
    assert corpus.rows.keys() == corpus.damage.keys()
    assert all(row.error is None and row.frame_count == FRAMES for row in corpus.sound.values())
    found: Counter[str] = Counter()
    for name, row in corpus.rows.items():
        kind = (row.error or "ok").partition(":")[0]
        found[kind] += 1
        assert kind in KINDS | {"ok"}, f"{name}: {row.error}"
        assert row.error is not None or row.frame_count > 0, name
    assert not found["timeout"], found
    each = [found[kind] for kind in ("ok", "damaged", "truncated", "not_video", "empty")]
    assert min(each) > corpus.variants / 4, found


def test_what_was_cut_short_or_is_no_video_is_never_taken_for_sound(corpus: Corpus) -> None:
    for name, row in corpus.rows.items():
        kind = corpus.damage[name]
        if kind == "never-video":
            assert (row.error or "").startswith(("not_video", "truncated")), f"{name}: {row.error}"
        elif kind == "truncated" and row.error is None:
            # What is missing is none of the frames: something behind them.
            assert row.frame_count == FRAMES, f"{name}: {row.frame_count} frames"


def test_a_clip_is_made_of_every_file_or_a_reason_is_given(corpus: Corpus) -> None:
    """What the catalog accepted is decoded as it declared, from its start and from its last keyframe, to the same
    frames. Of the other files the decoder is told what the sound ones were, as if the damage had come later."""
    whole = {name: _unit(corpus, name, whole=True) for name in corpus.rows}
    accepted = {name for name, row in corpus.rows.items() if row.error is None}
    tails = {name: _unit(corpus, name, whole=False) for name in accepted if corpus.rows[name].keyframe_frame}
    sound = DecodeSeed(job="j", purpose=TRAIN, video=_video(corpus.sound["h264.mp4"]), recipe=_RECIPE)
    sound.seeds.append(Seed(frame_count=FRAMES, stride=1, last_frame=FRAMES - 1))
    outcomes = _decoded([*whole.values(), *tails.values(), sound])

    assert isinstance(outcomes[-1], np.ndarray), outcomes[-1]
    found: Counter[str] = Counter()
    clips = dict(zip(whole, outcomes, strict=False))
    for name, clip in clips.items():
        if isinstance(clip, str):
            assert name not in accepted, f"{name}: {clip}"
            assert clip in KINDS, f"{name}: {clip}"
            found[clip] += 1
        else:
            assert clip.shape[1:] == (HEIGHT, WIDTH, 3), name
            found["clip"] += 1
    for name, tail in zip(tails, outcomes[len(whole) :], strict=False):
        first, clip = corpus.rows[name].keyframe_frame[-1], clips[name]
        assert not isinstance(tail, str), f"{name}: {tail}"
        assert not isinstance(clip, str)
        assert np.array_equal(tail, clip[first:]), f"{name}: other frames from keyframe {first} on"
    assert found["clip"] > corpus.variants / 2, found
    assert not found["timeout"], found


def _unit(corpus: Corpus, name: str, whole: bool) -> DecodeSeed:
    """All frames of a file, or those from its last keyframe on."""
    row = corpus.rows[name]
    facts = row if row.error is None else corpus.source_of(name) if corpus.damage[name] != "never-video" else None
    frames = facts.frame_count if facts is not None else FRAMES
    unit = DecodeSeed(job="j", purpose=TRAIN, video=_video(facts, row.uri), recipe=_RECIPE)
    if whole or facts is None:
        unit.seeds.append(Seed(frame_count=frames, stride=1, last_frame=frames - 1))
    else:
        first = facts.keyframe_frame[-1]
        seek = Seek(pts=facts.keyframe_pts[-1], frame_index=first, byte_offset=max(0, facts.keyframe_offset[-1]))
        count = frames - first
        unit.seeds.append(Seed(first_frame=first, frame_count=count, stride=1, last_frame=frames - 1, seek=seek))
    return unit


def _video(facts: VideoRow | None, uri: str = "") -> Video:
    """Without size and etag, so that the decoder opens the file whatever became of it."""
    if facts is None:
        return Video(id=uri, uri=uri, frame_count=FRAMES, width=WIDTH, height=HEIGHT)
    return Video(
        id=uri or facts.uri,
        uri=uri or facts.uri,
        frame_count=facts.frame_count,
        width=facts.width,
        height=facts.height,
        seekable=facts.seekable,
    )


def _decoded(units: Sequence[DecodeSeed]) -> list[Frames | str]:
    """What a real decoder with two children makes of each unit: its frames, or what is wrong."""
    settings = DecoderSettings(decoder_processes=2, decoder_timeout_s=LIMIT_S)
    found: dict[int, Frames | str] = {}
    with closing(Adapters.from_settings(Settings(cache="memory://?bytes=512MiB"))) as adapters:
        for index, unit in enumerate(units):
            unit.seeds[0].index = index
            adapters.bus.publish(topics.SEEDS, unit.video.uri.encode(), unit.SerializeToString())
        decoder = build_decoder(adapters, settings, "w")
        thread = threading.Thread(target=decoder.run, name="decoder")
        thread.start()
        try:
            for progress in _progress(adapters, len(units)):
                if progress.HasField("failed"):
                    found[progress.failed.clip.index] = kind_word(progress.failed.kind)
                else:
                    made = progress.made
                    for place in made.indices:
                        key = clip_key(progress.job, made.purpose, made.epoch, place, 0)
                        found[place] = codec.decode(adapters.cache.get(key)).copy()
                        adapters.cache.ack(key, "c")
        finally:
            decoder.drain()
            thread.join()
    return [found[index] for index in range(len(units))]


def _progress(adapters: Adapters, count: int) -> Iterator[Progress]:
    """The messages that tell of so many clips, decoded or failed."""
    subscription = adapters.bus.subscribe([topics.PROGRESS], group=None)
    seen = 0
    while seen < count:
        records = subscription.poll(count - seen, 3 * LIMIT_S)
        assert records, f"{seen} of {count} files; the decoder says nothing more"
        for progress in (Progress.FromString(record.value) for record in records):
            if progress.WhichOneof("event") in ("made", "failed"):
                seen += len(progress.made.indices) or 1
                yield progress
    subscription.close()
