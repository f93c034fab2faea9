"""Clips for vision-language models: a size for each video, as their processors compute it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import essp
from essp.api.loader import Loader
from essp.catalog.build import BuildOptions, build
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.job.clip_spec import ClipSpec
from essp_common.messages.recipe import resize_of
from essp_common.objects.directory import DirectoryStore
from essp_engine.video.geometry import output_size
from essp_engine.video.synthetic import numbered, write_video
from tests.flow.conftest import EXAMPLES
from tests.harness.loops import loader
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.lane("promises")

SIDES = st.integers(1, 5000) | st.sampled_from([13, 14, 15, 27, 28, 29, 42, 224, 720, 1080, 1920])
STEPS = st.sampled_from([1, 4, 14, 28, 32])
PIXELS = st.none() | st.integers(1, 5_000_000) | st.sampled_from([3136, 50176, 100352, 602112, 786432])


def spec_of(**options: Any) -> ClipSpec:
    return ClipSpec.model_validate(essp.Clip(**options)._job_section())


@settings(max_examples=200, deadline=None)
@given(SIDES, SIDES, STEPS, PIXELS, PIXELS, st.integers(1, 40), st.integers(1, 6), st.sampled_from(["frame", "clip"]))
def test_sizes_are_those_of_the_processors_of_transformers(
    height: int, width: int, step: int, low: int | None, high: int | None, frames: int, pairs: int, of: str
) -> None:
    from transformers.models.qwen2_vl import video_processing_qwen2_vl as qwen2
    from transformers.models.qwen3_vl import video_processing_qwen3_vl as qwen3

    pairs = min(pairs, frames)
    asked = {"frames": frames, "multiple_of": step, "temporal_multiple": pairs, "pixels_of": of}
    together = max(1, round(frames / pairs)) * pairs if of == "clip" else 1
    least = step**2 * together
    low, high = low and max(low, 1), high and max(high, least, low or 0)
    if low is None and high is None:
        high = least
    spec = spec_of(**asked, min_pixels=low, max_pixels=high)
    assert spec.frames % pairs == 0
    assert abs(spec.frames - frames) <= pairs / 2
    low, high = low or least, high or 2**60
    if max(height, width) / min(height, width) > 200:  # there, transformers refuses it
        expected = None
    elif of == "frame":
        expected = qwen2.smart_resize(height, width, step, low, high)
    else:
        expected = qwen3.smart_resize(spec.frames, height, width, pairs, step, low, high)
    found = output_size(resize_of(spec), height, width)
    assert found == (expected or found)
    assert all(side and side % step == 0 for side in found)


def test_frames_are_as_many_as_the_processor_takes() -> None:
    from transformers import Qwen2VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    processor = Qwen2VLVideoProcessor()
    for frames in range(4, 60):
        for pairs in (1, 2, 3, 4):
            below = frames // pairs * pairs
            video = VideoMetadata(below * (below + pairs))  # a multiple of the number of frames, whichever it is
            taken = processor.sample_frames(video, temporal_patch_size=pairs, num_frames=frames)
            assert spec_of(frames=frames, temporal_multiple=pairs, max_pixels=10**6).frames == len(taken)


def test_the_processor_would_have_made_the_same_of_the_whole_frames(mixed: Path) -> None:
    """Patch by patch, up to the two libraries' kinds of bicubic interpolation and chroma."""
    from transformers import Qwen2VLVideoProcessor

    size = {"shortest_edge": 1500, "longest_edge": 9000}
    scaling = Qwen2VLVideoProcessor(size=size, cap_pixels_per_frame=False, return_tensors="pt")
    taking = Qwen2VLVideoProcessor(do_resize=False, cap_pixels_per_frame=False, return_tensors="pt")
    clip = essp.Clip(frames=4, min_pixels=1500, max_pixels=9000)
    for row in essp.open_catalog(mixed).rows:
        whole, ours = (torch.from_numpy(essp.decode(row, **of)) for of in ({"frames": 4}, {"clip": clip}))
        expected, found = scaling(whole.permute(0, 3, 1, 2)), taking(ours.permute(0, 3, 1, 2))
        assert torch.equal(found["video_grid_thw"], expected["video_grid_thw"])
        assert (found["pixel_values_videos"] - expected["pixel_values_videos"]).abs().mean() < 0.1


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog of videos of six sizes, each with a caption."""
    folder = tmp_path_factory.mktemp("mixed")
    sizes = ((64, 48), (48, 64), (160, 120), (176, 96), (96, 96), (32, 128))
    for number, (width, height) in enumerate(sizes):
        write_video(folder / f"{number}.mp4", numbered(8, width, height))
    lines = [f"{number}.mp4,a moving texture {number}" for number in range(len(sizes))]
    (folder / "list.csv").write_text("\n".join(["path,caption", *lines]))
    build(f"file://{folder}/list.csv", f"file://{folder}/c.parquet", ("file:///",), BuildOptions("csv"))
    return folder / "c.parquet"


CLIP: dict[str, Any] = {"frames": 3, "max_pixels": 3000, "min_pixels": 1500, "multiple_of": 14}


@pytest.mark.parametrize(("pixels", "apart"), [("rgb", False), ("yuv420", False), ("gray", False), ("yuv420", True)])
def test_a_batch_is_a_list_of_clips_with_the_sizes_of_their_videos(
    mixed: Path, pixels: Any, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the process that prepares clips for a GPU."""
    monkeypatch.setattr(Loader, "_leaves_interpreter", lambda self: apart)
    rows = {row.id: row for row in essp.open_catalog(mixed).rows}
    clip = essp.Clip(**CLIP, pixels=pixels)
    sizes = set()
    with loader(mixed, clip=clip, validation_fraction=0, text="caption") as clips:
        assert "a size for each video" in repr(clips)
        for batch in clips:
            assert isinstance(batch.frames, list)
            assert len(batch.frames) == len(batch) == len(batch.labels)
            for frames, video, first, caption in zip(
                batch.frames, batch.meta["video"], batch.meta["first_frame"], batch.text["caption"], strict=True
            ):
                row = rows[video]
                assert frames.shape == (4, *output_size(resize_of(clips.clip), row.height, row.width), frames.shape[-1])
                assert np.array_equal(frames.numpy(), essp.decode(row, first, clip=clip))
                assert caption == row.meta["caption"]
                sizes.add(tuple(frames.shape))
            assert f"{len(batch)} tensors like" in repr(batch)
            assert [clip.device.type for clip in batch.to("meta").frames] == ["meta"] * len(batch)
    assert len(sizes) >= 4


def test_views_of_one_event_have_one_size_each(mixed: Path) -> None:
    by_video, one = essp.Clip(**CLIP), essp.Clip(4)
    for clips, field in (
        ({"a": by_video, "b": one}, "clip.max_pixels"),
        ({"a": one, "b": by_video}, "clip.b.max_pixels"),
    ):
        with refused(field, "conflict"):
            loader(mixed, clip=clips)


def test_features_and_transforms_of_clips_that_differ_in_size(mixed: Path) -> None:
    clip = essp.Clip(**CLIP)
    with loader(mixed, clip=clip, validation_fraction=0) as clips:
        frames = [each for batch in clips for each in batch.frames]
    with loader(mixed, clip=clip, validation_fraction=0, feature="frame_diff", params={"length": 3}) as clips:
        for each, feature in zip(frames, (each for batch in clips for each in batch.frames), strict=True):
            assert np.array_equal(feature.numpy(), essp.compute_feature(each.numpy(), "frame_diff", length=3))
    with loader(mixed, clip=clip, validation_fraction=0, transform=lambda each, random: each[:2] / 255) as clips:
        batch = next(iter(clips))
        assert all(
            torch.equal(one, other[:2].double() / 255) for one, other in zip(batch.frames, frames[:4], strict=True)
        )
    kinds = iter([np.uint8, np.float32] * 10)
    with (
        loader(
            mixed, clip=clip, validation_fraction=0, transform=lambda each, random: each.astype(next(kinds))
        ) as clips,
        pytest.raises(essp.ConfigError, match="differ in type"),
    ):
        next(iter(clips))


@pytest.mark.parametrize(
    ("resize", "field", "code"),
    [
        ({}, "resize.max_pixels", "missing"),
        ({"min_pixels": 5000, "max_pixels": 3000}, "resize.min_pixels", "range"),
        ({"max_pixels": 700}, "resize.max_pixels", "range"),
        ({"max_pixels": 6000, "pixels_of": "clip", "multiple_of": 40}, "resize.max_pixels", "range"),
        ({"max_pixels": 3000, "temporal_multiple": 3}, "frames", "conflict"),
        ({"max_pixels": 3000, "mode": "exact"}, "resize.max_pixels", "conflict"),
    ],
)
def test_bounds_of_a_job_that_cannot_be_are_refused(resize: dict[str, Any], field: str, code: str) -> None:
    with refused(field, code):
        ClipSpec.model_validate({"frames": 4, "resize": {"mode": "bounded", **resize}})


# --- batches with a budget of pixels ---

LIMIT = 40_000


def batches_of(clips: essp.Loader) -> list[list[tuple[int, int]]]:
    """The clips of each batch: index in the epoch, and pixels."""
    return [
        list(zip(batch.meta["index"], (math.prod(each.shape[:3]) for each in batch.frames), strict=True))
        for batch in clips
    ]


def as_many_as_fit(clips: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    made: list[list[tuple[int, int]]] = [[]]
    for clip in clips:
        if made[-1] and sum(pixels for _, pixels in (*made[-1], clip)) > LIMIT:
            made.append([])
        made[-1].append(clip)
    return made


def with_budget(mixed: Path, **options: Any) -> essp.Loader:
    given = {"clip": essp.Clip(**CLIP), "batch_size": essp.Budget(pixels=LIMIT), "clips_per_epoch": 60}
    return loader(mixed, **given | {"validation_fraction": 0} | options)


def test_a_batch_has_as_many_clips_as_fit_and_resumes_exactly(mixed: Path) -> None:
    with with_budget(mixed) as clips:
        assert "at most 40,000 pixels" in repr(clips)
        lengths, epochs, states = [len(clips)], [], []
        for batch in clips:
            states.append((clips.state_dict(), batch.meta["index"]))
        lengths.append(len(clips))
        epochs = [batches_of(clips)]
    with with_budget(mixed) as clips:
        first = batches_of(clips)
        assert first == as_many_as_fit([clip for batch in first for clip in batch])
        assert [[index for index, _ in batch] for batch in first] == [indices for _, indices in states]
        assert batches_of(clips) == epochs[0] != first
    assert lengths == [len(first), len(epochs[0])]
    assert len({len(batch) for batch in first}) > 1
    for number in (0, len(first) // 2):
        with with_budget(mixed) as clips:
            clips.load_state_dict(states[number][0])
            assert batches_of(clips) == first[number + 1 :]
    with with_budget(mixed) as clips:  # from within a batch
        clips.load_state_dict(states[0][0] | {"clip": 1})
        assert batches_of(clips) == as_many_as_fit([clip for batch in first for clip in batch][1:])
    with with_budget(mixed, batch_size=7) as clips:
        clips.load_state_dict(states[1][0])
        assert batches_of(clips)[0][0][0] == states[1][1][-1] + 1


def test_ranks_take_equally_many_clips_within_their_budgets(mixed: Path) -> None:
    shares, states = [], []
    for rank in range(2):
        with with_budget(mixed, rank=rank, world_size=2) as clips:
            batches = iter(clips)
            share = [batch.meta["index"] for batch in (next(batches), next(batches))]
            states.append(clips.state_dict())
            share += [[index for index, _ in batch] for batch in batches_of_rest(batches)]
            shares.append(share)
            assert len(clips) == len(share)
    assert states[0] == states[1]
    assert [len(batch) for batch in shares[0]] == [len(batch) for batch in shares[1]]
    with with_budget(mixed, batch_size=60) as clips:
        pixels = dict(clip for batch in batches_of(clips) for clip in batch)
    assert sorted(index for share in shares for batch in share for index in batch) == list(range(60))
    for step, both in enumerate(zip(*shares, strict=True)):
        assert all(sum(pixels[index] for index in batch) <= LIMIT for batch in both)
        if step + 1 < len(shares[0]):
            more = [[*batch, shares[rank][step + 1][0]] for rank, batch in enumerate(both)]
            assert any(sum(pixels[index] for index in batch) > LIMIT for batch in more), "one more would fit"


def batches_of_rest(batches: Any) -> list[list[tuple[int, int]]]:
    return [[(index, 0) for index in batch.meta["index"]] for batch in batches]


@pytest.mark.parametrize("options", [{"kind": "pooled", "clips_per_visit": 4, "window": 24}, {"split": "test"}])
def test_a_small_memory_holds_a_batch(mixed: Path, options: dict[str, Any], tmp_path: Path) -> None:
    """The budget of a job is computed for the largest clips, of which there are the fewest in a batch."""
    rows = tuple(replace(row, split=options.get("split", "train")) for row in essp.open_catalog(mixed).rows)
    write_catalog(DirectoryStore(str(tmp_path)), "c.parquet", Catalog(rows))
    with with_budget(tmp_path / "c.parquet", **options) as clips:
        consumer = clips._source.spec.consumers["loop"]
        assert consumer.batch_pixels == LIMIT
        assert consumer.batch_size == math.ceil(LIMIT / max(pixels for b in batches_of(clips) for _, pixels in b)) + 1


def test_a_budget_that_cannot_be_is_refused(mixed: Path) -> None:
    with refused("batch_size.pixels", "range"):
        with_budget(mixed, batch_size=essp.Budget(5000))
    with refused("drop_last", "conflict"):
        with_budget(mixed, drop_last=True)


def test_a_job_file_has_the_same_sizes(mixed: Path, tmp_path: Path) -> None:
    document = {
        "name": "sizes",
        "output": f"file://{tmp_path}/run",
        "data": {"catalog": f"file://{mixed}", "consumed": "train", "validation_fraction": 0},
        "epochs": 1,
        "sampling": {"clips_per_epoch": 10},
        "clip": {"frames": 4, "resize": {"mode": "bounded", "interpolation": "bicubic", "max_pixels": 3000}},
        "streams": {"rgb": {"params": {"frames": 4}}},
        "consumers": {"loop": {"stream": "rgb", "batch_pixels": LIMIT}},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    targets, limits = essp.Targets(text=["caption"]), essp.Limits(decoders=1)
    with essp.Loader.of(tmp_path / "job.yaml", batch_size=essp.Budget(LIMIT), targets=targets, limits=limits) as clips:
        of_job = [(batch.text, [each.shape for each in batch.frames]) for batch in clips]
    clip = essp.Clip(4, max_pixels=3000)
    with loader(mixed, clip=clip, batch_size=essp.Budget(LIMIT), validation_fraction=0, text="caption") as clips:
        assert of_job == [(batch.text, [each.shape for each in batch.frames]) for batch in clips]
    assert len(of_job) > 1


@pytest.mark.processes
def test_batches_with_a_budget_are_the_same_from_another_process(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with with_budget(mixed) as clips:
        expected = batches_of(clips)
    monkeypatch.setattr(Loader, "_leaves_interpreter", lambda self: True)
    with with_budget(mixed) as clips:
        assert batches_of(clips) == expected


# --- the notebook ---


@pytest.mark.slow
@pytest.mark.processes
def test_the_notebook_fine_tunes_a_model_on_questions_and_answers(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from jupyter_core.utils import ensure_event_loop
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(EXAMPLES.parents[1]), str(EXAMPLES.parents[1] / "services"))))
    os.symlink(catalog, tmp_path / "catalog.parquet")
    notebook = nbformat.read(EXAMPLES / "vision_language.ipynb", as_version=4)
    NotebookClient(notebook, timeout=int(LONGEST_S), resources={"metadata": {"path": str(tmp_path)}}).execute()
    ensure_event_loop().close()
    said = ["".join(output.get("text", "") for output in cell.get("outputs", ())) for cell in notebook.cells]
    [losses] = [
        [float(line.split()[-1]) for line in text.splitlines() if line.startswith("epoch ")]
        for text in said
        if "epoch 1: loss" in text
    ]
    assert len(losses) == 6
    assert losses[-1] < losses[0] * 2 / 3
    assert said[-1].startswith("(4, ")
