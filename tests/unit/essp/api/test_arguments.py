"""A wrong argument is a `ConfigError` of one line that names it; numbers of numpy are as good as those of Python."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import essp
from essp.api.arguments import on_this_gpu, plain
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError
from essp_common.job.data_spec import SamplingSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import numbered, write_video
from tests.harness.refused import refused
from tests.unit.essp.api.numbered_records import build, image

SOMETHING = object()
NUMBERS: list[Any] = [True, -1, 2.5, float("nan"), 10**30, "4", b"4", [], {}, np.array([[1], [2]]), SOMETHING]
"""None of them is a number of frames, pixels or processes."""
NAMES: list[Any] = [3, b"a", [], {}, SOMETHING]
PATHS: list[Any] = [None, 3, b"a", "", [], {}, "a\0b", "\ud800", SOMETHING]
CLOSED = io.BytesIO()
CLOSED.close()
FUNCTIONS: list[Any] = [3, "f", [], SOMETHING]
CLIP = np.zeros((16, 16, 16, 3), np.uint8)

Calls = Mapping[str, Callable[..., Any]]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """Function -> what calls it with one argument that is not as it should be."""
    root = tmp_path_factory.mktemp("arguments")
    store = DirectoryStore.from_url(root.as_uri())
    video = write_video(root / "a.mp4", numbered(20, 64, 48))
    info, facts = store.head("a.mp4"), probe(str(video))
    found = {field.name: getattr(facts, field.name) for field in fields(facts)}
    row = VideoRow("a.mp4", f"file://{video}", "one", "train", info.size_bytes, info.etag, last_frame=19, **found)
    write_catalog(store, "c.parquet", Catalog((row,)))
    records = build(root / "records", [Record.of_image(image(i), i % 2) for i in range(8)])
    catalog: dict[str, Any] = {"catalog": root / "c.parquet", "validation_fraction": 0}
    return {
        "decode": lambda **one: essp.decode(**{"video": row, **one}),
        "stream": lambda **one: essp.stream(**{"videos": row, **one}),
        "compute_feature": lambda **one: essp.compute_feature(one.pop("frames", CLIP), one.pop("name", "flow"), **one),
        "Loader": lambda **one: essp.Loader(**{**catalog, **one}),
        "Clip": lambda **one: essp.Loader(**catalog, clip=essp.Clip(**one)),
        "Sampling": lambda **one: essp.Loader(**catalog, sampling=essp.Sampling(**{"kind": "exhaustive", **one})),
        "Budget": lambda **one: essp.Loader(**catalog, batch_size=essp.Budget(**one)),
        "Targets": lambda **one: essp.Loader(**catalog, targets=essp.Targets(**one)),
        "Limits": lambda **one: essp.Loader(**catalog, limits=essp.Limits(**one)),
        "RecordSampling": lambda **one: essp.RecordSampling(**{"replacement": True, **one}),
        "of": lambda **one: essp.Loader.of(**one),
        "connect": lambda **one: essp.Loader.connect(**{"job": "j", "bus": "memory://", "cache": "memory://", **one}),
        "Records": lambda **one: essp.Records(**{"uri": records, **one}),
        "disk_folder": lambda **one: essp.Records(records, disk="1MiB", **one),
        "share": lambda **one: essp.Records(records).share(**{"processes": 1, **one}),
        "SharedRecords": lambda **one: essp.SharedRecords(**one),
        "set_epoch": lambda **one: essp.Records(records).set_epoch(**one),
        "map": lambda **one: essp.Records(records).map(**one),
        "load_model": lambda **one: essp.load_model(**{"uri": root, **one}),
        "predict": lambda **one: essp.predict(**{"videos": video, "model": root, **one}),
        "open_catalog": lambda **one: essp.open_catalog(**one),
    }


WRONG: dict[str, dict[str, Sequence[Any]]] = {
    "decode": {
        "start": [None, True, 2.5, "4", b"4", "", [None], [2.5], [True], np.array([[1]]), SOMETHING],
        "at_s": [True, "4", b"4", [None], ["4"], [[1.0]], float("nan"), [float("inf")], -1, 1e9, {}, SOMETHING],
        "frames": [0, None, *NUMBERS],
        "stride": [0, None, *NUMBERS],
        "short_side": [0, 2**20, *NUMBERS],
        "size": [4, (4,), (4, 0), (4, True), (4.0, 4), (None, 4), (4, 4, 4), (2**20, 4), "44", {}, SOMETHING],
        "interpolation": [None, 0, "", "area ", "lanczos", b"area", [], np.array([1, 2])],
        "clip": [0, "rgb", {}, essp.Sampling(), SOMETHING],
        "video": [*(path for path in PATHS if path != b"a"), io.StringIO("text"), CLOSED],
    },
    "stream": {
        "frames": [0, None, *NUMBERS],
        "stride": [0, None, *NUMBERS],
        "step": [0, *NUMBERS],
        "short_side": [0, 2**20, *NUMBERS],
        "size": [4, (4, 0), (4, 4, 4)],
        "interpolation": [None, "lanczos"],
        "decoders": [None, 2000, *NUMBERS],
        "memory": [None, True, 0, 2.5, "much", b"1", [], SOMETHING],
        "videos": [None, 3, "", SOMETHING, [None], [""]],
    },
    "compute_feature": {
        "frames": [None, 3, "a", CLIP.tolist(), CLIP[0], CLIP[:, :0], CLIP[..., :2], CLIP.astype(np.float32)],
        "name": [None, *NAMES],
        "snippets": [0, None, *NUMBERS],
        "length": [0, *NUMBERS],
    },
    "Loader": {
        "catalog": PATHS,
        "clip": [None, 4, {}, SOMETHING],
        "sampling": [None, "pooled", {}, essp.RecordSampling(), SOMETHING],
        "limits": [None, 4, {}, SOMETHING],
        "split": [None, *NAMES],
        "feature": [None, "flwo", *NAMES, np.array([1, 2])],
        "params": [3, "ab", [], [1], SOMETHING],
        "validation_fraction": [None, "", [], 1.5, np.array([1, 2])],
        "device": [None, 2.5, "moon", [], SOMETHING],
        "transform": FUNCTIONS,
        "targets": [None, {}, {"a": [0]}, essp.Clip(), SOMETHING],
    },
    "Targets": {
        "series": [None, 3, "a", [], {"a": None}, {"a": ["x"]}, {"a": [float("nan")]}, {"a": [1e30]}, np.ones(2)],
        "text": [None, 3, b"a", [3], ["nothing"], "nothing", SOMETHING],
        "pick": [None, 3, "two", [], SOMETHING],
    },
    "Budget": {"pixels": [0, None, 2**51, *NUMBERS]},
    "Sampling": {
        "kind": [None, 3, "random", [], SOMETHING],
        "seed": [None, *NUMBERS],
        "clips_per_epoch": [0, 2.5, "many", [], SOMETHING],
        "clips_per_video": [0, 2.5, "many", [], SOMETHING],
        "clips_per_visit": [0, 2000, *NUMBERS],
        "window": [0, 7, 2.5, "many", [], SOMETHING],
        "step": [0, 2.5, "many", [], SOMETHING],
    },
    "Limits": {
        "epochs": [0, 10**5, *NUMBERS],
        "decoders": [None, 2000, *NUMBERS],
        "loops": [0, 33, None, *NUMBERS],
        "memory": [True, 0, 2.5, "much", SOMETHING],
        "dead_ratio": [True, -0.5, 2, float("nan"), "all", [], SOMETHING],
    },
    "RecordSampling": {
        "seed": [None, *NUMBERS],
        "sample_size": [0, *NUMBERS],
    },
    "Clip": {
        "frames": [0, None, *NUMBERS],
        "snippets": [0, None, *NUMBERS],
        "size": [0, 10**6, None, 4.5, "4", (4,), (4, 4, 4), (4, 0), {}, SOMETHING],
        "stride": [0, None, 2.5, [], SOMETHING],
        "fps": [0, -1, 1001, True, float("nan"), "fast", [], SOMETHING],
        "every_s": [0, True, 1e9, "fast", SOMETHING],
        "seconds": [0, True, 1e9, "long", SOMETHING],
        "max_frames": [0, 1, *NUMBERS],
        "spread": ["clip", True, 3, SOMETHING],
        "part": [None, 3, (1,), (0.5, 0.5), "ab"],
        "pixels": [None, 3, "bgr"],
        "min_pixels": [0, *NUMBERS],
        "max_pixels": [0, 100, *NUMBERS],
        "multiple_of": [0, None, *NUMBERS, 14],
        "temporal_multiple": [0, None, *NUMBERS, 4],
        "pixels_of": [None, "video", "clip", 3],
    },
    "of": {"job": PATHS},
    "connect": {"job": [None, *NAMES], "bus": NAMES, "cache": NAMES},
    "Records": {
        "uri": PATHS,
        "batch_size": [0, None, *NUMBERS],
        "size": [0, 2**20, 4.5, "4", (4,), {}, SOMETHING],
        "sampling": [None, 3, {}, essp.Sampling(), SOMETHING],
        "version": [0, *NUMBERS],
        "memory": [None, True, 0, 2.5, "much", SOMETHING],
        "device": [None, 2.5, "moon", [], SOMETHING],
        "transform": FUNCTIONS,
    },
    "disk_folder": {"disk_folder": [path for path in PATHS if path is not None]},
    "share": {"processes": [0, None, *NUMBERS], "memory": [None, True, 0, "much"]},
    "SharedRecords": {"address": [*PATHS, "1:2:3"]},
    "set_epoch": {"epoch": [None, 10**4, *NUMBERS]},
    "map": {"function": FUNCTIONS},
    "load_model": {"uri": PATHS, "device": [None, 2.5, "moon", [], SOMETHING]},
    "predict": {"videos": [None, 3, "", [3], SOMETHING, io.StringIO("text"), [CLOSED]], "model": PATHS},
    "open_catalog": {"uri": PATHS},
}


@pytest.mark.parametrize(
    ("call", "argument"), [(call, argument) for call, wrong in WRONG.items() for argument in wrong]
)
def test_a_wrong_argument_is_named_in_one_line(calls: Calls, call: str, argument: str) -> None:
    for value in WRONG[call][argument]:
        with pytest.raises(ConfigError) as caught:
            calls[call](**{argument: value})
        error = caught.value
        assert argument in error.field.split(".")
        assert "\n" not in str(error)
        assert len(str(error)) < 300


@pytest.mark.parametrize(
    "call",
    [
        lambda absent: essp.Loader(absent),
        lambda absent: essp.open_catalog(absent),
        lambda absent: essp.decode(absent, 0, frames=1),
        lambda absent: essp.predict(absent, absent),
        lambda absent: essp.load_model(absent),
        lambda absent: essp.Records(absent),
    ],
)
def test_a_file_that_is_not_there_is_said_in_one_traceback(call: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(essp.EsspError) as raised:
        call(tmp_path / "absent.parquet")
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1


def test_numbers_and_arrays_of_numpy_are_taken(calls: Calls) -> None:
    three, part = np.uint8(3), np.array([0.25, 0.75])
    assert calls["decode"](start=three, frames=three, stride=three, size=np.array([8, 8])).shape == (3, 8, 8, 3)
    assert calls["decode"](start=np.array([1, 2]), frames=three, short_side=np.int64(24)).shape == (2, 3, 24, 32, 3)
    assert calls["compute_feature"](snippets=np.int32(2), length=three).shape == (2, 16, 16, 6)
    calls["stream"](frames=three, decoders=three, memory=np.uint8(255)).close()
    spec = calls["Clip"](frames=three, size=three * 8, part=part).clip
    assert (spec.frames, spec.resize.height, spec.part) == (3, 24, (0.25, 0.75))
    ranked = calls["Records"](rank=np.int64(1), world_size=np.int64(2), batch_size=three, memory=np.int64(99))
    ranked.set_epoch(three)
    next(iter(ranked))
    assert {type(value) for value in ranked.state_dict().values()} == {int}, "torch.load takes no others as they are"
    ranked.close()
    large = 2**62 + 1  # no float is this number
    assert calls["Sampling"](seed=np.int64(large))._source.spec.sampling.seed == large
    assert calls["Loader"](feature="frame_diff", params={"length": three})._source.spec.streams
    assert plain({"a": [np.float64(0.5), (np.bool_(True),)]}) == {"a": [0.5, (True,)]}


def test_what_excludes_each_other_is_refused(calls: Calls) -> None:
    clip = calls["Clip"]().clip
    for beside in ({"frames": 3}, {"stride": 2}, {"short_side": 8}, {"size": (8, 8)}):
        with refused(next(iter(beside)), "conflict"):
            calls["decode"](clip=clip, **beside)
    for beside in ({"start": 3}, {"frames": 3}, {"stride": 2}, {"clip": clip}):
        with refused(next(iter(beside)), "conflict"):
            calls["decode"](at_s=0.1, **beside)
    with refused("size", "conflict"):
        calls["stream"](short_side=8, size=(8, 8))
    with refused("clip.frames", "conflict"):
        essp.Clip(frames=4, fps=1, max_frames=8)
    with refused("clip.stride", "conflict"):
        essp.Clip(stride=4, fps=1)


def test_a_clip_for_which_there_is_no_memory_is_refused(calls: Calls) -> None:
    with refused("frames", "range"):
        calls["decode"](frames=2**31 - 1, size=(8192, 8192))


def test_ranks_of_the_environment_are_checked(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("rank", "range"):
        calls["Records"]()
    assert Path(calls["Records"](rank=0, world_size=1)._uri).name == "records"


def test_the_present_gpu_is_that_of_the_thread_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    found = [str(on_this_gpu(torch.device(name))) for name in ("cuda", "cuda:0", "cpu")]
    assert found == ["cuda:1", "cuda:0", "cpu"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"frames": 0}, "clip.frames"),
        ({"stride": -1}, "clip.stride"),
        ({"size": "224"}, "clip.size"),
        ({"size": (224, 0)}, "clip.size"),
        ({"size": 4}, "clip.size"),
        ({"size": (225, 224), "pixels": "yuv420"}, "clip.size"),
        ({"pixels": "bgr"}, "clip.pixels"),
        ({"part": (0.5, 0.25)}, "clip.part"),
        ({"frames": 5, "snippets": 2}, "clip.frames"),
        ({"max_pixels": 10**6, "size": 112}, "clip.size"),
        ({"max_pixels": 1000, "min_pixels": 2000}, "clip.min_pixels"),
        ({"max_pixels": 783}, "clip.max_pixels"),
        ({"max_pixels": 28 * 28 * 15, "pixels_of": "clip"}, "clip.max_pixels"),
        ({"max_pixels": 10**6, "multiple_of": 7, "pixels": "yuv420"}, "clip.multiple_of"),
        ({"max_pixels": 10**6, "multiple_of": 0}, "clip.multiple_of"),
        ({"max_pixels": 10**6, "temporal_multiple": 2.0}, "clip.temporal_multiple"),
        ({"max_pixels": 10**6, "pixels_of": "video"}, "clip.pixels_of"),
    ],
)
def test_a_clip_that_cannot_be_is_refused_where_it_is_made(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        essp.Clip(**given)
    assert caught.value.field == named


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"kind": "pooled", "window": 20}, "sampling.window"),
        ({"kind": "pooled", "step": 2}, "sampling.step"),
        ({"kind": "uniform", "window": 64}, "sampling.window"),
        ({"clips_per_visit": 8}, "sampling.clips_per_visit"),  # the default of other kinds, and of no use here
    ],
)
def test_a_sampling_of_options_that_do_not_go_together_is_refused(given: dict[str, Any], named: str) -> None:
    with refused(named, "conflict"):
        essp.Sampling(**given)


def test_a_window_holds_whole_visits(calls: Calls) -> None:
    sampling = calls["Sampling"](kind="pooled", clips_per_visit=6)._source.spec.sampling
    assert sampling.window % 6 == 0
    assert essp.Sampling("pooled")._job_section()["window"] == SamplingSpec(kind="pooled").window


def test_the_options_of_a_group_are_those_of_a_job() -> None:
    """A user of both need not learn two sets of names."""
    assert {field.name for field in fields(essp.Sampling)} <= set(SamplingSpec.model_fields)


@pytest.mark.parametrize(
    ("call", "argument", "value", "group"),
    [
        ("Loader", "step", 5, "sampling=essp.Sampling(step=...)"),
        ("Loader", "seed", 5, "sampling=essp.Sampling(seed=...)"),
        ("Loader", "decoders", 1, "limits=essp.Limits(decoders=...)"),
        ("Loader", "frames", 16, "clip=essp.Clip(frames=...)"),
        ("Loader", "series", {}, "targets=essp.Targets(series=...)"),
        ("Loader", "delta_timestamps", {}, "targets=essp.Targets(series=...)"),
        ("of", "epochs", 1, "limits=essp.Limits(epochs=...)"),
        ("Records", "replacement", True, "sampling=essp.RecordSampling(replacement=...)"),
    ],
)
def test_an_option_of_a_group_that_is_given_by_itself_is_sent_there(
    calls: Calls, call: str, argument: str, value: object, group: str
) -> None:
    with refused(argument, "unknown") as caught:
        calls[call](**{argument: value})
    assert group in str(caught.value)


def test_other_arguments_are_unknown_to_python(calls: Calls) -> None:
    with pytest.raises(TypeError, match="stepp"):
        calls["Loader"](stepp=5)


def test_rank_and_world_size_go_together(calls: Calls) -> None:
    for call in (calls["Loader"], calls["Records"]):
        with refused("world_size", "missing"):
            call(rank=0)
        with refused("rank", "missing"):
            call(world_size=2)


@pytest.mark.parametrize(("wrong", "code"), [(True, "type"), (1.5, "type"), ("0", "type"), (-1, "range")])
def test_ranks_are_numbers(calls: Calls, wrong: Any, code: str) -> None:
    for call in (calls["Loader"], calls["Records"]):
        with refused("rank", code):
            call(rank=wrong, world_size=2)
        with refused("world_size", code):
            call(rank=0, world_size=wrong)
