"""Scores of clips for tests of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from essp_common.artifacts.figures import top_k
from essp_common.artifacts.scores import ClipScores, ScoreTable, clips_by_video
from essp_common.tensors.packed import pack, unpack
from essp_engine.aggregation import registry


def scored_clips(clips: Sequence[np.ndarray], labels: Sequence[int], videos: Sequence[str] | None = None) -> ClipScores:
    """Of videos with probabilities `(T, C)` each, with the precision of a trainer's scores."""
    names = videos or [f"v{number:04d}" for number in range(len(clips))]
    counts = [len(own) for own in clips]
    rows = np.concatenate(clips).astype(np.float32)
    return clips_by_video(
        ScoreTable(
            video_id=tuple(np.repeat(np.array(names), counts).tolist()),
            class_id=np.repeat(np.array(labels, dtype=np.int32), counts),
            clip_index=np.arange(len(rows), dtype=np.int64),
            probabilities=rows,
            classes=tuple(f"class{number}" for number in range(rows.shape[1])),
        )
    )


def with_features(
    features: Sequence[np.ndarray], labels: Sequence[int], clips: Sequence[np.ndarray] | None = None
) -> ClipScores:
    """Of videos with features `(T, D)` each; without `clips`, their scores of 3 classes tell nothing."""
    scores = clips or [np.full((len(own), 3), 1 / 3) for own in features]
    return replace(scored_clips(scores, labels), features=np.concatenate(features).astype(np.float16))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: np.ndarray = odds / odds.sum(axis=-1, keepdims=True)
    return shares


def one_telling_clip(videos: int, seed: int, classes: int = 10, clips: int = 20) -> ClipScores:
    """Of the clips of each video, all but one show noise, in which the classes are a little apart."""
    random = np.random.Generator(np.random.Philox(seed))
    labels = np.arange(videos) % classes
    logits = random.normal(0, 1, (videos, clips, classes))
    logits[np.arange(videos), random.integers(0, clips, videos), labels] += 6
    return scored_clips(list(softmax(logits)), labels.tolist())


def any_clips(videos: int, classes: int, seed: int, most_clips: int = 7) -> ClipScores:
    """Of videos of different length, which tell their class more or less, with features of 6 numbers."""
    random = np.random.Generator(np.random.Philox(seed))
    labels = np.random.Generator(np.random.Philox(videos)).integers(0, classes, videos)
    counts = random.integers(1, most_clips + 1, videos)
    skill = 2 * random.random()
    known = np.eye(classes)[labels]
    clips = [softmax(skill * known[v] + random.normal(0, 1, (n, classes))) for v, n in enumerate(counts.tolist())]
    shown = np.random.Generator(np.random.Philox(seed, counter=1)).normal(0, 1, (counts.sum(), 6))
    return replace(scored_clips(clips, labels.tolist()), features=shown.astype(np.float16))


def reached(name: str, known: ClipScores, asked: ClipScores, **params: Any) -> float:
    """The share of videos that a strategy is right about, by what it has learned from other ones."""
    strategy = registry.create(name, params)
    state = unpack(pack(strategy.fit({"rgb": known})))
    found = strategy.predict({"rgb": asked.unlabelled()}, state).probabilities
    return top_k(asked.means.class_id, found, 1)
