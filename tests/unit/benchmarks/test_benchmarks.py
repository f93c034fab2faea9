"""The arithmetic of the benchmarks, and that what they compare is the same work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import typer
from av.video.reformatter import VideoReformatter

import benchmarks.__main__ as benchmarks
from benchmarks import catalogs, embedded, features, hogwild, measure, peers, views
from benchmarks.__main__ import ROOT, benchmarks_of, document, line
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of, units_of
from benchmarks.inputs import RealClips, VideoSet, make
from benchmarks.loading import loader_of
from benchmarks.measure import Cost
from benchmarks.plot import draw
from benchmarks.progress import Progress, seconds_of
from benchmarks.published import Published
from benchmarks.table import BEGIN, END, table
from essp.catalog.summary import summarize
from essp_common.catalog.file import read_catalog
from essp_common.job.clip_spec import ClipSpec
from essp_common.pb.v1.messages_pb2 import Resize, Seed
from essp_common.wiring import Stores
from essp_engine.features import registry
from essp_engine.planning.even import Uniform
from essp_engine.video.reader import Reader
from tests.lanes import often

TINY = VideoSet("h264", 12, 96, 80, frames=30, videos=2)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(TINY, tmp_path_factory.mktemp("benchmark"))


def test_start_up_is_no_part_of_the_cost_of_a_clip() -> None:
    assert measure.marginal(Cost(1000 + 10 * 4, 500 + 10 * 8), Cost(1000 + 30 * 4, 500 + 30 * 8), 20) == Cost(4, 8)


def test_a_ratio_is_the_median_over_rounds_so_that_a_slow_spell_of_the_machine_cancels_out() -> None:
    ours = [Cost(2, 1), Cost(20, 1), Cost(2.2, 1)]
    theirs = [Cost(4, 1), Cost(40, 1), Cost(2.2, 1)]
    found = measure.ratio(theirs, ours, measure.cpu)
    assert (found.median, found.low, found.high) == (2, 1, 2)


def test_the_best_peer_is_the_cheapest_one() -> None:
    costs = {"a": [Cost(3, 1), Cost(9, 1), Cost(3, 1)], "b": [Cost(4, 1)] * 3, "essp": [Cost(1, 1)] * 3}
    assert measure.cheapest(costs, ["a", "b"], measure.cpu) == ("a", costs["a"])


def test_a_line_says_whether_the_aim_is_met() -> None:
    assert line(Figure("cores", 1.7, "ratio", Aim(least=1.9))) == "cores 1.7 ratio  # aim >= 1.9: missed"
    assert line(Figure("decode_overhead.x", 1.04, "ratio", Aim(most=1.05))).endswith("aim <= 1.05: met")
    assert line(Figure("feature_hog", 12.345, "ms")) == "feature_hog 12.3 ms"


@pytest.mark.parametrize(
    ("asked", "run"),
    [
        ("robot_limit", ["robot"]),
        ("decode_seek", ["decode_peers"]),
        ("decode_overhead.mpeg4_320x240_gop12", ["decode_overhead"]),
        ("decode", ["decode_overhead", "decode_peers"]),
        ("feature_sharing.trajectories", ["feature_sharing"]),
        ("three_streams", ["three_streams", "three_streams_locality"]),
    ],
)
def test_a_figure_is_asked_for_by_its_name_or_the_beginning_of_it(asked: str, run: list[str]) -> None:
    assert benchmarks_of([asked]) == run
    assert benchmarks_of(["page", asked]) == [*run, "page"]


def test_each_figure_that_is_explained_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    explained = re.findall(
        r"`([a-z][a-z0-9_]*)", "\n".join(re.findall(r"^\| (`.*?) \|", text[: text.index(BEGIN)], re.M))
    )
    assert len(explained) > 40
    for name in explained:
        assert benchmarks_of([name])
    with pytest.raises(typer.Exit):
        benchmarks_of(["no_such_figure"])
    assert "no benchmark no_such_figure; there are: decode_overhead" in capsys.readouterr().err


def test_the_document_is_json_with_every_figure(tmp_path: Path) -> None:
    figures = [Figure("a", 1.5, "ratio", Aim(least=2), 1.4, 1.6, {"best_peer": "pyav"}), Figure("b", 3.0, "ms")]
    found = json.loads(json.dumps(document(figures, Scale(tmp_path))))
    assert [(f["name"], f["met"]) for f in found["figures"]] == [("a", False), ("b", None)]


@pytest.mark.parametrize(
    ("only", "told"),
    [(["peers"], ["seek.a", "locality.a"]), (["seek"], ["seek.a"]), (["locality", "other"], ["locality.a", "other"])],
)
def test_a_benchmark_gives_all_its_figures_or_those_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: list[str], told: list[str]
) -> None:
    figures = {"peers": ["seek.a", "locality.a"], "other": ["other"]}
    given = {name: lambda _, name=name: (Figure(each, 1.0, "ms") for each in figures[name]) for name in figures}
    monkeypatch.setattr(benchmarks, "BENCHMARKS", given)
    monkeypatch.setattr(benchmarks, "_FIGURES", {"peers": ("seek", "locality")})
    benchmarks.main(videos=tmp_path, results=tmp_path, only=only)
    assert [f["name"] for f in json.loads((tmp_path / "latest.json").read_text())["figures"]] == told


def test_each_feature_has_a_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_SIDE", 64)
    found = {figure.name: figure.value for figure in features.feature(Scale(tmp_path, rounds=1))}
    assert {f"feature_{name}" for name in registry.names()} <= found.keys()
    assert min(found.values()) > 0


def test_progress_goes_by_the_last_time(tmp_path: Path) -> None:
    now_s = 100.0
    assert seconds_of(tmp_path / "latest.json") == {}
    (tmp_path / "latest.json").write_text(json.dumps({"seconds": {"a": 70.0, "b": 20.0}}), encoding="utf-8")
    progress = Progress(("a", "b", "c"), seconds_of(tmp_path / "latest.json"), lambda: now_s)
    assert progress.begin("a") == "# a: 1 of 3, 0:00 passed, about 1:30 to go, and 1 that never ran here"
    now_s += 65
    progress.end("a")
    assert progress.begin("b") == "# b: 2 of 3, 1:05 passed, about 0:20 to go, and 1 that never ran here"
    assert progress.took_s == {"a": 65.0, "b": 20.0}


def test_figures_that_mean_nothing_are_not_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        benchmarks.main(videos=tmp_path, results=tmp_path, publish=True, quick=True)
    assert "leave --publish out" in capsys.readouterr().err


def test_a_run_of_some_benchmarks_publishes_these_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "benchmarks" / "README.md"
    readme.parent.mkdir()
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(benchmarks, "ROOT", tmp_path)
    monkeypatch.setattr(benchmarks, "FILE", tmp_path / "figures.json")
    monkeypatch.setattr(benchmarks, "draw", lambda *_: None)
    first = [Figure("a", 1.5, "ratio", Aim(least=2), 1.4, 1.6, {"peer": "pyav"}), Figure("a.x", 2.0, "ms")]
    values = {"a": first, "b": [Figure("b", 3.0, "ms")]}
    monkeypatch.setattr(benchmarks, "BENCHMARKS", {name: lambda _, name=name: iter(values[name]) for name in values})
    told = iter(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])
    for only in (None, ["b"]):
        day = document([], Scale(tmp_path)) | {"time": next(told)}
        monkeypatch.setattr(benchmarks, "document", lambda f, _, day=day: day | {"figures": [x.written() for x in f]})
        benchmarks.main(videos=tmp_path, results=tmp_path, publish=True, only=only)
        values["b"] = [Figure("b", 4.0, "ms")]
    text = readme.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.count("| `a` | 1.5 ratio | 1.4 to 1.6 | >= 2 | missed | 1 |\n| `a.x` | 2 ms |  |  |  | 1 |\n") == 1
    assert text.count("| `b` | 4 ms |  |  |  | 2 |\n") == 1
    assert (text[:7], text[-7:]) == ("before\n", "\nafter\n")
    found = Published.read(tmp_path / "figures.json")
    assert [run["time"] for run in found.runs] == ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]
    assert found.figures[0] == (first[0], "2026-01-01T00:00:00Z")


def test_a_run_that_was_interrupted_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is through is not measured again; a run with other settings is another one."""
    ran: list[str] = []

    def first(_: Scale) -> Iterator[Figure]:
        ran.append("first")
        yield Figure("first.a", 1.5, "ratio", Aim(least=2), 1.4, 1.6, {"best_peer": "pyav"})

    def second(_: Scale) -> Iterator[Figure]:
        ran.append("second")
        yield Figure("second", float(len(ran)), "ms")
        if len(ran) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"first": first, "second": second})
    options: dict[str, Any] = {"videos": tmp_path, "results": tmp_path}
    with pytest.raises(typer.Exit):
        benchmarks.main(**options, rounds=1, resume=True)
    assert "there is no run to go on with" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        benchmarks.main(**options, rounds=1)
    with pytest.raises(typer.Exit):
        benchmarks.main(**options, rounds=2, resume=True)
    assert "was another one (rounds)" in capsys.readouterr().err
    for _ in range(2):
        benchmarks.main(**options, rounds=1, resume=True)
        assert capsys.readouterr().out.splitlines() == ["first.a 1.5 ratio  # aim >= 2: missed", "second 3 ms"]
    assert ran == ["first", "second", "second"]
    found = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert [(figure["name"], figure["high"], figure["met"]) for figure in found["figures"]] == [
        ("first.a", 1.6, False),
        ("second", None, None),
    ]


def test_the_table_in_the_readme_is_that_of_the_published_figures() -> None:
    """If not: `python -m benchmarks --draw`."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip() == table(Published.read())


@pytest.mark.lane("long")
def test_real_clips_are_a_set_like_the_others(tmp_path: Path) -> None:
    store, key = Stores(("file:///",)).resolve(f"file://{make(RealClips(), tmp_path)}")
    rows = read_catalog(store, key).rows
    assert {row.split for row in rows} == {"train", "validation"}
    assert all(row.error is None and row.lookahead for row in rows)


def test_a_plot_is_drawn_where_there_are_aims(tmp_path: Path) -> None:
    draw(
        [Figure("ms", 3.0, "ms"), Figure("b", 1.0, "ratio"), Figure("0", 0.0, "s", Aim(most=1))], tmp_path / "none.png"
    )
    missed = Figure("a", 1.5, "ratio", Aim(least=2), 1.4, 1.6)
    draw([missed, Figure("c", 1.0, "ms", Aim(most=2)), Figure("d", 9.0, "s")], tmp_path / "some.png")
    assert [path.name for path in tmp_path.iterdir()] == ["some.png"]


@pytest.mark.parametrize("stride", often([3, 1], 1))
def test_the_bare_loops_make_the_frames_that_the_decoder_makes(catalog: Path, stride: int) -> None:
    job = NullJob(catalog, size=32, frames=5, stride=stride, clips_per_visit=3, window=6)
    resize = Resize(mode=Resize.EXACT, height=32, width=32, interpolation="bilinear")
    units = units_of(job, 6)
    assert {len(unit) for unit in units} <= {3, 6}
    assert sorted(clip for unit in units for clip in unit) == sorted(clips_of(job, 6))
    for unit in units:
        for clip, shared in zip(unit, peers.decoded_once(unit, 32, VideoReformatter()), strict=True):
            expected = np.empty((5, 32, 32, 3), np.uint8)
            seed = Seed(first_frame=clip.first_frame, frame_count=5, stride=stride, last_frame=29)
            with Reader(clip.path) as reader:
                assert reader.read([seed], resize, [expected]) == [None]
            for made in (peers.PyAv()(clip, 32), peers.PyAv(keep_open=1)(clip, 32), shared):
                np.testing.assert_array_equal(made, expected)


def test_peers_are_asked_for_the_views_that_a_loader_gives(catalog: Path) -> None:
    view = read_catalog(*Stores(("file:///",)).resolve(f"file://{catalog}")).view("train")
    plan = Uniform(view, ClipSpec(frames=16), 10)
    asked = [clip.first_frame for row in view.rows for clip in views._clips(row, 1)]
    assert asked == [plan.clip(index).first_frame for index in range(len(plan))]


def test_a_loader_gives_the_frames_of_the_bare_loop(catalog: Path, tmp_path: Path) -> None:
    job = NullJob(catalog, size=32, frames=5)
    with loader_of(job, 10, tmp_path) as loader:
        made = [frames.numpy() for batch in loader for frames in batch.frames]
    expected = [peers.PyAv()(clip, 32) for clip in clips_of(job, 10)]
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("locality", often([4, 0], 1))
def test_a_job_whose_clips_are_thrown_away_completes(catalog: Path, tmp_path: Path, locality: int) -> None:
    job = NullJob(catalog, ("rgb", "frame_diff"), size=32, frames=6, locality=locality)
    taken = embedded.run_spec(job.spec(10, f"file://{tmp_path}"), collate=True)
    assert taken == 2 * (10 + 2)  # two streams; two clips are for validation


def test_each_frame_of_a_robot_comes_once(catalog: Path) -> None:
    job = NullJob(catalog, size=32, frames=1, clips_per_visit=8, window=16, step=1)
    frames = TINY.frames * TINY.videos
    assert len({(clip.path, clip.first_frame) for clip in clips_of(job, frames)}) == frames
    peers.one_pass(sorted({clip.path for clip in clips_of(job, frames)}), 32, 2, frames)


def test_a_catalog_without_videos_is_a_catalog(tmp_path: Path) -> None:
    catalogs.write(tmp_path / "catalog.parquet", 300)
    found = read_catalog(*Stores(("file:///",)).resolve(f"file://{tmp_path}/catalog.parquet"))
    assert (len(found.rows), found.splits) == (300, ("test", "train", "validation"))
    assert found.rows[7].keyframe_frame == tuple(range(0, found.rows[7].frame_count, 60))
    assert summarize(found).straddling == {}


def test_two_processes_of_hogwild_share_the_images_of_an_epoch(tmp_path: Path) -> None:
    images, labels = hogwild.made_up(10, 0)
    folder = hogwild._stored(tmp_path, images, labels, *hogwild.made_up(4, 1))
    trial = hogwild.Trial(folder, "memory", seed=3)
    halves = [hogwild._own(trial, 0, number) for number in range(2)]
    found = [image.numpy().tobytes() for half in halves for some, _ in half for image in some]
    assert sorted(found) == sorted(image.tobytes() for image in images)
    image, label = hogwild.Files(folder, "npy")[7]
    assert (image == images[7]).all()
    normalized, _ = hogwild.Files(folder, "jpg")[7]
    decoded = cv2.imread(str(folder / "train" / "000007.jpg"))
    assert decoded is not None
    assert np.abs(normalized.numpy() - (decoded[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1)).max() < 3 / 127.5
    assert label == labels[7]
