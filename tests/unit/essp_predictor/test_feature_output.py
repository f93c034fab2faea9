"""What an extract job writes from saved parts: each vector once, in order, however the parts are cut."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import essp
from essp_common.artifacts import features
from essp_common.artifacts.partial_scores import ScoredPart
from essp_common.artifacts.scores import ScoreTable
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import Rows
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_engine.planning.phases import Phases
from essp_predictor import feature_output
from essp_predictor.feature_output import FeatureOutput, Pieces, Written
from tests.harness.catalog_rows import row

FRAMES = 4
LENGTHS = {"a/1.mp4": 4, "a/2.avi": 25, "a/2.mp4": 9, "b/3.mp4": 12}
"""Frames of each video: 1, 6, 2 and 3 clips without overlap."""
CATALOG = Catalog(
    [row(name, frames=count) for name, count in LENGTHS.items()] + [row("b/bad.mp4", error="empty: it is")]
)
CLIPS = 12
LOST = {2: "damaged: one clip", 10: "damaged: the middle of the last"}
"""Clip -> why it is missing: of a/2.avi, of b/3.mp4."""
NUMBERS = 3


def job(root: Path, **extract: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "x",
            "output": f"file://{root}",
            "data": {"catalog": "file:///c.parquet"},
            "clip": {"frames": FRAMES},
            "sampling": {"every_frames": FRAMES},
            "extract": extract,
        }
    )


DIGEST = Phases(job(Path("/")), CATALOG).digest
"""Of the plan of `CATALOG`."""


def vector(index: int, dtype: str = "float32") -> NDArray[Any]:
    return np.array([index, index / 3, -index], dtype)


def pieces(step: int, dtype: str = "float32", lost: Mapping[int, str] = LOST) -> Callable[[str], Pieces]:
    """The parts of a job, cut every `step` clips."""
    plan = Phases(job(Path("/")), CATALOG).plan(0)
    assert len(plan) == CLIPS
    names = sorted(LENGTHS)

    def cut(stream: str) -> Iterator[tuple[int, int, ScoredPart]]:
        for start in range(0, CLIPS, step):
            stop = min(CLIPS, start + step)
            there = [index for index in range(start, stop) if index not in lost]
            table = ScoreTable(
                tuple(names[plan.clip(index).video] for index in there),
                np.full(len(there), -1, np.int32),
                np.array(there, np.int64),
                np.zeros((len(there), 1), np.float32),
                ("",),
                np.array([vector(index, dtype) for index in there]).reshape(-1, NUMBERS) if there else None,
            )
            errors = {names[plan.clip(index).video]: lost[index] for index in range(start, stop) if index in lost}
            ends = {index: (plan.clip(index).first_frame, plan.clip(index).first_frame + 3) for index in there}
            part = ScoredPart({"rgb": table} if there else {}, {}, ends)
            # However a part keeps its errors, it names them by video.
            yield start, stop, _WithErrors(part, errors)  # type: ignore[misc]

    return cut


class _WithErrors:
    def __init__(self, part: ScoredPart, errors: dict[str, str]) -> None:
        self.tables, self.frames, self.errors = part.tables, part.frames, errors


def written(root: Path, step: int = 5, lost: Mapping[int, str] = LOST, **extract: Any) -> Written:
    store = DirectoryStore.from_url(f"file://{root}")
    dtype = extract.get("dtype", "float32")
    output = FeatureOutput(store, job(root, **extract), CATALOG)
    return output.write(pieces(step, dtype, lost), "an identity", DIGEST, [("rgb", "rgb")])


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("step", [1, 5, 12])
def test_each_vector_is_there_once_in_order(tmp_path: Path, step: int) -> None:
    assert written(tmp_path, step) == Written(videos=5, failed=1)
    table = pq.read_table(tmp_path / "features" / "rgb")
    kept = [index for index in range(CLIPS) if index not in LOST]
    assert table["vector"].to_pylist() == [vector(index).tolist() for index in kept]
    assert table.schema.field("vector").type.list_size == NUMBERS
    assert table["video_id"].to_pylist() == ["a/1.mp4"] + 5 * ["a/2.avi"] + 2 * ["a/2.mp4"] + 2 * ["b/3.mp4"]
    assert table["clip"].to_pylist() == [0, 0, 2, 3, 4, 5, 0, 1, 0, 2]
    assert table["first_frame"].to_pylist() == [0, 0, 8, 12, 16, 20, 0, 4, 0, 8]
    assert table["last_frame"].to_pylist() == [3, 3, 11, 15, 19, 23, 3, 7, 3, 11]
    assert table["start_s"].to_pylist() == pytest.approx([frame / 25 for frame in table["first_frame"].to_pylist()])
    assert table["end_s"].to_pylist() == pytest.approx([(frame + 1) / 25 for frame in table["last_frame"].to_pylist()])


@pytest.mark.parametrize("form", ["parquet", "npy"])
@pytest.mark.parametrize("pool", ["none", "mean"])
def test_the_bytes_do_not_depend_on_how_parts_are_cut(
    tmp_path: Path, form: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_output, "_TABLE_BYTES", 3 * 4 * NUMBERS)  # three vectors a table
    for step in (1, 4, 12):
        written(tmp_path / str(step), step, format=form, pool=pool)
    first, second, third = (files(tmp_path / str(step)) for step in (1, 4, 12))
    assert first == second == third
    if form == "parquet":
        parts = features.read_manifest(DirectoryStore.from_url(f"file://{tmp_path}/1")).sources["rgb"].parts
        assert len(parts) == (4 if pool == "none" else 2)


def test_no_part_reads_a_column_of_all_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many parts as videos, and each would cost more the more videos there are."""
    asked, numbers = list[str](), Rows.numbers

    def noted(rows: Rows, name: str) -> Any:
        asked.append(name)
        return numbers(rows, name)

    monkeypatch.setattr(Rows, "numbers", noted)
    counts = []
    for step in (1, 12):
        asked.clear()
        written(tmp_path / str(step), step)
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_every_video_of_the_catalog_is_in_the_table_with_the_reason_of_what_is_missing(tmp_path: Path) -> None:
    written(tmp_path)
    rows = pq.read_table(tmp_path / "features" / "rgb-videos.parquet").to_pylist()
    assert [(row["video_id"], row["clips"], row["error"]) for row in rows] == [
        ("a/1.mp4", 1, None),
        ("a/2.avi", 5, LOST[2]),
        ("a/2.mp4", 2, None),
        ("b/3.mp4", 2, LOST[10]),
        ("b/bad.mp4", 0, "empty: it is"),
    ]


def test_files_of_numpy_keep_the_place_of_a_clip_that_is_missing(tmp_path: Path) -> None:
    written(tmp_path, format="npy", dtype="float16")
    found = {name: np.load(io.BytesIO(data)) for name, data in files(tmp_path / "features" / "rgb").items()}
    assert sorted(found) == ["a/1.npy", "a/2.avi.npy", "a/2.mp4.npy", "b/3.npy"]  # two are called 2
    expected = np.array([vector(index, "float16") for index in range(9, 12)])
    expected[1] = np.nan
    np.testing.assert_array_equal(found["b/3.npy"], expected)
    assert found["b/3.npy"].dtype == np.float16


@pytest.mark.parametrize(("pool", "of"), [("mean", np.mean), ("max", np.max)])
def test_a_video_has_one_vector_if_they_are_pooled(tmp_path: Path, pool: str, of: Callable[..., Any]) -> None:
    assert written(tmp_path, step=2, pool=pool).failed == 1
    table = pq.read_table(tmp_path / "features" / "rgb")
    assert table["video_id"].to_pylist() == sorted(LENGTHS)
    own = [vector(index) for index in (1, 3, 4, 5, 6)]
    np.testing.assert_allclose(table["vector"].to_pylist()[1], of(own, axis=0), rtol=1e-6)
    assert (table["first_frame"].to_pylist()[1], table["last_frame"].to_pylist()[1]) == (0, 23)


def test_a_video_without_any_clip_has_no_vector(tmp_path: Path) -> None:
    lost = dict.fromkeys((7, 8), "timeout: too long")
    assert written(tmp_path, lost=lost, pool="mean").failed == 2
    found = essp.load_features(tmp_path)
    assert found.failed == {"a/2.mp4": "timeout: too long", "b/bad.mp4": "empty: it is"}
    assert "a/2.mp4" not in found


def test_nothing_at_all_is_still_a_result(tmp_path: Path) -> None:
    assert written(tmp_path, lost=dict.fromkeys(range(CLIPS), "damaged")).failed == 5
    assert len(essp.load_features(tmp_path)) == 0


def test_what_an_earlier_run_has_written_is_replaced_and_other_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(feature_output, "_TABLE_BYTES", 4 * NUMBERS)
        written(tmp_path)
    written(tmp_path, format="npy")
    (tmp_path / "features" / "mine.txt").write_text("mine")
    written(tmp_path)
    assert sorted(files(tmp_path)) == [
        "features/manifest.json",
        "features/mine.txt",
        "features/rgb-videos.parquet",
        "features/rgb/part-00000.parquet",
    ]


def test_a_writer_that_dies_leaves_nothing_that_looks_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    before = files(tmp_path)

    def dies(self: FeatureOutput, source: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(FeatureOutput, "_write_videos", dies)
        with pytest.raises(RuntimeError, match="killed"):
            written(tmp_path)
    with pytest.raises(essp.NotFound):
        essp.load_features(tmp_path)
    written(tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "now",
    [
        {**LENGTHS, "z.mp4": 4},
        {name: count for name, count in LENGTHS.items() if name != "b/3.mp4"},
        {("b/4.mp4" if name == "b/3.mp4" else name): count for name, count in LENGTHS.items()},
        {**LENGTHS, "a/1.mp4": 8, "a/2.mp4": 5},
    ],
    ids=["more", "fewer", "renamed", "other lengths"],
)
def test_vectors_are_not_given_to_the_videos_of_another_catalog(tmp_path: Path, now: dict[str, int]) -> None:
    """What the catalog of before was given stays, with its manifest."""
    written(tmp_path)
    before = files(tmp_path)
    store = DirectoryStore.from_url(f"file://{tmp_path}")
    catalog = Catalog([row(name, frames=count) for name, count in now.items()])
    with pytest.raises(essp.PermanentError, match="has changed since"):
        FeatureOutput(store, job(tmp_path), catalog).write(pieces(5), "an identity", DIGEST, [("rgb", "rgb")])
    assert files(tmp_path) == before


@pytest.mark.parametrize("form", ["parquet", "npy"])
def test_features_are_read_as_arrays(tmp_path: Path, form: str) -> None:
    written(tmp_path, format=form)
    found = essp.load_features(tmp_path)
    kept = [index for index in range(CLIPS) if index not in LOST]
    np.testing.assert_array_equal(found.vectors, [vector(index) for index in kept])
    assert list(found) == sorted(LENGTHS)
    np.testing.assert_array_equal(found["a/2.mp4"], [vector(7), vector(8)])
    assert found.clip.tolist() == [0, 0, 2, 3, 4, 5, 0, 1, 0, 2]
    assert set(found.failed) == {"a/2.avi", "b/3.mp4", "b/bad.mp4"}
    aligned = found.of(row.id for row in CATALOG.rows)
    np.testing.assert_allclose(aligned[2], (vector(7) + vector(8)) / 2, rtol=1e-6)
    assert np.isnan(aligned[4]).all()


@pytest.mark.parametrize("name", ["runs", "features"])
def test_features_are_found_from_the_output_and_from_their_folder_in_it(tmp_path: Path, name: str) -> None:
    written(output := tmp_path / name)
    for folder in (output, f"{output}/", output / "features", f"file://{output}/features/"):
        assert len(essp.load_features(folder)) == CLIPS - len(LOST)
    with pytest.raises(essp.NotFound):
        essp.load_features(tmp_path)


def test_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(essp.NotFound):
        essp.load_features(tmp_path)
    written(tmp_path)
    with pytest.raises(essp.ConfigError) as caught:
        essp.load_features(tmp_path, "rbg")
    assert (caught.value.field, caught.value.code) == ("source", "unknown")
    part = tmp_path / "features" / "rgb" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(essp.PermanentError):
        essp.load_features(tmp_path)


def test_files_have_names_of_their_own_on_any_file_system() -> None:
    videos = [
        "a.mp4",
        "A.mp4",
        "a",
        "b.avi",
        "b.mp4",
        "/x/c.mp4",
        "../d.mp4",
        "e%2F.mp4",
        "f\n.mp4",
        "é" * 300 + ".mp4",
    ]
    names = features.file_names(videos)
    assert len({name.lower() for name in names}) == len(videos)
    assert names[7] == "e%252F.npy"
    assert features.file_names(["v.mp4", "w.1.mp4", "x.mp4#1-2"]) == ["v.npy", "w.1.npy", "x.mp4#1-2.npy"]
    store = DirectoryStore.from_url("file:///")
    for name in names:
        assert store.uri(features.array_key("rgb", name))
        assert all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in name.split("/"))
