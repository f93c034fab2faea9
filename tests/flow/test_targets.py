"""Targets of clips: what the catalog says of a frame is what a loader hands out with that very frame."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import essp
from essp.catalog.build import BuildOptions, build
from essp_common.catalog.targets import Span, unpack
from tests.harness.loops import in_groups
from tests.harness.refused import refused

pytestmark = pytest.mark.lane("promises")

CLIP = essp.Clip(frames=4, stride=3, size=40)


@pytest.fixture(scope="module")
def marked(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog of a few videos of the small set: one whole, one with a segment, one shorter than a clip, one plain."""
    folder = tmp_path_factory.mktemp("marked")
    files = sorted(videos.rglob("*.mp4"))[:4]
    lines = ["path,label,labels,start_frame,end_frame,frame_labels,values:number,take"]
    for number, (file, cut) in enumerate(zip(files, ((None, None), (3, 20), (2, 6), (None, None)), strict=True)):
        count = essp_frames(file)
        first, last = cut[0] or 0, cut[1] or count - 1
        (folder / f"{number}.txt").write_text("\n".join(["", "low"][i % 8 < 4] for i in range(count)))
        np.save(folder / f"{number}.npy", np.arange(first, last + 1, dtype=np.float32) + 1000 * number)
        bounds = ",".join("" if bound is None else str(bound) for bound in cut)
        targets = f"{number}.txt,{number}.npy" if number < 3 else ","
        lines.append(f"{file},{'ab'[number % 2]},{'x|y' if number == 0 else ''},{bounds},{targets},{number}")
    (folder / "list.csv").write_text("\n".join(lines))
    build(f"file://{folder}/list.csv", f"file://{folder}/c.parquet", ("file:///",), BuildOptions("csv"))
    return folder / "c.parquet"


def essp_frames(file: Path) -> int:
    [_, *_] = windows = list(essp.stream(file, frames=1, short_side=16))
    return len(windows)


def loader(catalog: Path, **options: Any) -> essp.Loader:
    given = {"clip": CLIP, "batch_size": 3, "clips_per_epoch": 12, "validation_fraction": 0, **options}
    return essp.Loader(catalog, **in_groups(given))


def test_targets_are_those_of_the_very_frames(marked: Path) -> None:
    rows = {row.id: row for row in essp.open_catalog(marked).rows}
    seen = set()
    with loader(marked) as clips:
        assert clips.target_names == ("a", "b", "low", "x", "y")
        for batch in clips:
            targets = batch.targets
            assert targets is not None
            for at, (video, first) in enumerate(zip(batch.meta["video"], batch.meta["first_frame"], strict=True)):
                row, take = rows[video], int(batch.meta["take"][at])
                seen.add(take)
                expected = [min(first + step * 3, row.last_frame) for step in range(4)]
                assert targets.frame_numbers[at].tolist() == expected
                decoded = essp.decode(row, first - row.first_frame, clip=clips.clip)
                assert np.array_equal(batch.frames[at].numpy(), decoded)
                values = targets.values["number"][at]
                if take == 3:
                    assert values.isnan().all()
                else:
                    assert values.tolist() == [1000 * take + frame for frame in expected]
                low = [take < 3 and frame % 8 < 4 for frame in expected]
                assert targets.frame_labels[at, :, clips.target_names.index("low")].tolist() == low
                shown = {name for name, on in zip(clips.target_names, targets.labels[at].tolist(), strict=True) if on}
                assert shown == {row.class_name} | ({"x", "y"} if take == 0 else set())
                assert all(name == "low" for _, _, name in targets.stretches[at])
    assert seen == {0, 1, 2, 3}


def test_targets_of_clips_by_time_are_those_of_the_very_frames(marked: Path) -> None:
    rows = {row.id: row for row in essp.open_catalog(marked).rows}
    with loader(marked, clip=essp.Clip(frames=4, every_s=0.1, size=40)) as clips:
        for batch in pickle.loads(pickle.dumps(clips)):  # noqa: S301
            assert batch.targets is not None
            for at, (video, times_s) in enumerate(zip(batch.meta["video"], batch.meta["times_s"], strict=True)):
                shown = [round(second * rows[video].fps) for second in times_s]
                assert batch.targets.frame_numbers[at].tolist() == shown
                assert len(set(shown)) > 1 or rows[video].last_frame == shown[0]
                take = int(batch.meta["take"][at])
                if take < 3:
                    assert batch.targets.values["number"][at].tolist() == [1000 * take + frame for frame in shown]
                low = [take < 3 and frame % 8 < 4 for frame in shown]
                assert batch.targets.frame_labels[at, :, clips.target_names.index("low")].tolist() == low


def test_every_batch_has_every_series_and_column(marked: Path) -> None:
    """Also one whose only video has none of them; and times are looked up in them all the same."""
    for deltas in ({}, {"number": [0.0]}):
        with loader(marked, batch_size=1, clips_per_epoch=8, delta_timestamps=deltas) as clips:
            batches = list(clips)
        assert {int(batch.meta["take"][0]) for batch in batches} == {0, 1, 2, 3}
        for batch in batches:
            assert batch.targets is not None
            known = int(batch.meta["take"][0]) < 3
            assert batch.targets.values["number"].isnan().all().item() is not known


def test_seconds_of_a_series_that_there_is_not_are_refused(marked: Path, catalog: Path) -> None:
    """A catalog without any targets took them, and gave none."""
    for path in (marked, catalog):
        with refused("delta_timestamps", "unknown"):
            loader(path, delta_timestamps={"gaze": [0.0]})


def test_targets_go_along_to_a_device_and_into_copies(marked: Path) -> None:
    with loader(marked) as clips:
        batch = next(iter(clips))
    moved = batch.to("meta")
    assert moved.targets is not None
    assert moved.targets.labels.device == torch.device("meta")
    assert moved.targets.values["number"].device == torch.device("meta")
    assert pickle.loads(pickle.dumps(clips)).target_names == clips.target_names  # noqa: S301


def test_a_catalog_without_targets_has_none(catalog: Path) -> None:
    with loader(catalog) as clips:
        assert next(iter(clips)).targets is None


def test_videos_in_an_archive_give_the_frames_that_they_give_outside(videos: Path, tmp_path: Path) -> None:
    files = sorted(videos.rglob("*.mp4"))[:3]
    with tarfile.open(tmp_path / "train-000.tar", "w") as archive:
        for number, file in enumerate(files):
            (tmp_path / "label.cls").write_text(file.parent.name)
            archive.add(file, f"{number}.mp4")
            archive.add(tmp_path / "label.cls", f"{number}.cls")
    for source, out in ((tmp_path / "train-000.tar", "tar"), (videos, "plain")):
        build(f"file://{source}", f"file://{tmp_path}/{out}.parquet", ("file:///",), BuildOptions())
    by_uri = {row.uri: row for row in essp.open_catalog(tmp_path / "plain.parquet").rows}
    plain = {f"{number}.mp4": by_uri[f"file://{file}"] for number, file in enumerate(files)}
    rows = essp.open_catalog(tmp_path / "tar.parquet").rows
    assert [row.error for row in rows] == [None] * 3
    for row in rows:
        other = plain[Path(row.id).name]
        assert row.class_name == files[int(Path(row.id).stem)].parent.name
        assert (row.frame_count, row.keyframe_frame) == (other.frame_count, other.keyframe_frame)
        assert np.array_equal(essp.decode(row, 5, frames=3), essp.decode(other, 5, frames=3))
    with loader(tmp_path / "tar.parquet", clips_per_epoch=4) as clips:
        for batch in clips:
            for frames, video, first in zip(batch.frames, batch.meta["video"], batch.meta["first_frame"], strict=True):
                row = plain[Path(video).name]
                assert np.array_equal(frames.numpy(), essp.decode(row, first, clip=clips.clip))


def test_segments_of_one_file_are_stretches_in_its_frames(videos: Path, tmp_path: Path) -> None:
    file = sorted(videos.rglob("*.mp4"))[0]
    (tmp_path / "v_one.mp4").symlink_to(file)
    annotations = '[{"segment": [0.2, 0.6], "label": "Run"}, {"segment": [0.4, 0.8], "label": "Sing"}]'
    (tmp_path / "list.json").write_text(
        f'{{"database": {{"one": {{"subset": "training", "annotations": {annotations}}}}}}}'
    )
    where = (f"file://{tmp_path}/list.json", f"file://{tmp_path}/c.parquet", ("file:///",))
    (row,) = build(*where, BuildOptions(whole=True)).catalog.rows
    assert row.error is None
    fps = row.fps
    expected = tuple(
        Span(round(start * fps), round(end * fps) - 1, name)
        for start, end, name in ((0.2, 0.6, "Run"), (0.4, 0.8, "Sing"))
    )
    assert unpack(row.targets).spans == expected
    assert (row.first_frame, row.last_frame) == (0, row.frame_count - 1)
    with loader(tmp_path / "c.parquet", clips_per_epoch=2) as clips:
        batch = next(iter(clips))
        assert batch.targets is not None
        assert [tuple(stretch) for stretch in batch.targets.stretches[0]] == [tuple(span) for span in expected]
        assert clips.target_names == ("Run", "Sing")
