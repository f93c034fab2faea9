"""`essp init`: the job file it writes can be run as it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from essp.cli.init import job_text, main
from essp.cli.job_file import load_job
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError
from essp_common.job.spec import parse_spec
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import TRAIN, PhasePlan
from essp_trainer.model.schedule import rate_at
from tests.harness.command_line import essp
from tests.harness.record_sets import make_records, png
from tests.harness.refused import refused

ROWS = tuple(
    VideoRow(f"{split}/{n}.mp4", f"s3://v/{split}/{n}.mp4", label, split, 1, "e", width=320, height=240)
    for split in ("train", "test")
    for n, label in enumerate(("left", "right"))
)


def test_results_lie_below_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = parse_spec(job_text(Catalog(ROWS), "file:///data/My Set.parquet", "job.yaml", "small"))
    assert (spec.name, spec.output) == ("my-set", "runs/my-set")
    assert set(spec.trainers) == {"rgb", "flow"}
    assert (spec.clip.resize.height, spec.trainers["rgb"].augment.crop) == (128, 112)


@pytest.mark.parametrize(
    "file", ["2024", "yes", "null", "1e5", "run: 1", "- x", "é", "'", '"', "x" * 80, "a" * 62 + "-b"]
)
def test_any_name_of_a_catalog_is_one_of_a_job(file: str) -> None:
    uri = f"file:///data/{file}.parquet"
    spec = parse_spec(job_text(Catalog(ROWS), uri, "job.yaml", "small"))
    assert spec.data.catalog == uri
    assert spec.output == f"runs/{spec.name}"


@pytest.mark.parametrize(
    ("catalog", "file", "name"),
    [
        ("ucf.parquet", "jobs/job.yaml", "ucf"),
        ("mine.parquet", "mine.yaml", "mine"),
        ("ucf.parquet", "few.yaml", "ucf-few"),
        ("ucf.parquet", "../My Paper.yaml", "ucf-my-paper"),
        ("c" * 80, "few.yaml", "c" * 59 + "-few"),
        ("c" * 80, "f" * 80 + ".yaml", "c" * 32 + "-" + "f" * 30),
    ],
)
def test_jobs_on_one_catalog_have_outputs_of_their_own(catalog: str, file: str, name: str) -> None:
    spec = parse_spec(job_text(Catalog(ROWS), f"s3://bucket/{catalog}", file, "small"))
    assert (spec.name, spec.output) == (name, f"s3://bucket/runs/{name}")


def test_results_of_a_catalog_in_an_object_store_lie_beside_it() -> None:
    spec = parse_spec(job_text(Catalog(ROWS), "s3://bucket/sets/ucf.parquet", "job.yaml", "resnet18"))
    assert (spec.data.catalog, spec.output) == ("s3://bucket/sets/ucf.parquet", "s3://bucket/sets/runs/ucf")
    assert {trainer.model for trainer in spec.trainers.values()} == {"resnet18"}


def test_a_model_whose_weights_come_in_a_package_starts_from_them() -> None:
    spec = parse_spec(job_text(Catalog(ROWS), "set.parquet", "job.yaml", "efficientnet_lite0"))
    assert {t.weights for t in spec.trainers.values()} == {"package:efficientnet_lite0"}
    assert "weights:" not in job_text(Catalog(ROWS), "set.parquet", "job.yaml", "resnet18")


def test_few_videos_get_what_is_solved_for(tmp_path: Path) -> None:
    """A probe of a network that knows photographs, and trajectories: no rates, and every video alike."""
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", videos(60, keyframe_every=300))
    file = tmp_path / "job.yaml"
    done = essp("init", str(tmp_path / "set.parquet"), "--for", "few", "--out", str(file))
    assert done.exit_code == 0, done.output
    spec = load_job(file)
    rgb, tracks = spec.trainers["rgb"], spec.trainers["tracks"]
    assert (rgb.weights, rgb.probe is not None) == ("package:efficientnet_lite0", True)
    assert (tracks.model, spec.streams["tracks"].feature) == ("fisher_vector", "improved_trajectories")
    assert (spec.sampling.kind, spec.sampling.clips_per_video, spec.epochs) == ("uniform", 3, 3)
    assert spec.clip.frames == 48


@pytest.mark.parametrize(("frames", "expected"), [(10, 16), (30, 30), (300, 48)])
def test_clips_of_few_videos_are_as_long_as_these_and_trajectories_need(frames: int, expected: int) -> None:
    rows = tuple(replace(row, frame_count=frames) for row in ROWS)
    assert parse_spec(job_text(Catalog(rows), "set.parquet", "job.yaml", "small", "few")).clip.frames == expected


def test_nothing_is_said_against_the_recipe_for_few(tmp_path: Path) -> None:
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", videos(60, keyframe_every=300))
    file = tmp_path / "job.yaml"
    essp("init", str(tmp_path / "set.parquet"), "--for", "few", "--out", str(file))
    assert json.loads(essp("validate", str(file), "--json").stdout)["warnings"] == []


def test_what_is_no_recipe_for_few_is_said(tmp_path: Path) -> None:
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(ROWS))
    make_records(tmp_path / "cats", [0, 1])
    file = tmp_path / "job.yaml"
    with refused("--model", "conflict"):
        main(str(tmp_path / "set.parquet"), file, model="resnet18", recipe="few")
    with refused("--for", "conflict"):
        main(str(tmp_path / "cats"), file, recipe="few")
    assert not file.exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", videos(20, 150))
    with pytest.raises(ConfigError, match=r"nowhere/job\.yaml cannot be written"):
        main(str(tmp_path / "set.parquet"), tmp_path / "nowhere" / "job.yaml")
    with pytest.raises(ConfigError, match="cannot be written"):
        main(str(tmp_path / "set.parquet"), tmp_path / ("x" * 300))


def test_a_file_that_is_not_text_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"PAR1\xbc\xff")
    with pytest.raises(ConfigError, match="not a text file"):
        load_job(tmp_path / "job.yaml")


def videos(count: int, keyframe_every: int) -> Catalog:
    places = tuple(range(0, 300, keyframe_every))
    return Catalog(
        tuple(
            VideoRow(
                f"{n:04}.mp4", f"s3://v/{n:04}.mp4", f"c{n % 10}", "train", 1, "e", width=320, height=240,
                frame_count=300, last_frame=299, seekable=True, keyframe_pts=places, keyframe_frame=places,
                keyframe_offset=(-1,) * len(places),
            )
            for n in range(count)
        )
    )  # fmt: skip


@pytest.mark.parametrize("model", ["small", "resnet18"])
def test_visits_are_proposed_where_videos_outnumber_the_window(tmp_path: Path, model: str) -> None:
    """With the reason, and with a budget that holds the window."""
    catalog = videos(1000, keyframe_every=150)
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", catalog)
    text = job_text(catalog, f"file://{tmp_path}/set.parquet", "job.yaml", model)
    file = tmp_path / "job.yaml"
    file.write_text(text)
    spec = load_job(file)
    assert (spec.sampling.kind, spec.sampling.clips_per_visit, spec.sampling.window) == ("pooled", 8, 512)
    told = re.search(r"# The (\d+) training videos outnumber the window.* decodes ([\d.]+) times", text, re.DOTALL)
    assert told
    done = essp("validate", str(file), "--json")
    found = json.loads(done.stdout)
    assert found["warnings"] == []
    assert found["videos"]["train"] == int(told[1])
    assert round(found["decoding"]["times_less"], 1) == float(told[2]) > 2
    assert f"{told[2]} times fewer than clip by clip" in " ".join(essp("validate", str(file)).stdout.split())


@pytest.mark.parametrize(("count", "keyframe_every"), [(400, 150), (1000, 1)])
def test_visits_are_not_proposed_where_they_save_nothing(count: int, keyframe_every: int) -> None:
    """Of few videos, and of videos in which every frame can be decoded by itself."""
    text = job_text(videos(count, keyframe_every), "set.parquet", "job.yaml", "small")
    assert parse_spec(text).sampling.kind == "class_balanced"


def test_records_are_proposed_as_they_are(tmp_path: Path) -> None:
    """In the size that the images have, tested on a data set of their own."""
    make_records(tmp_path / "cats", [0, 1] * 8, png)
    make_records(tmp_path / "held-out", [0, 1])
    file = tmp_path / "job.yaml"
    done = essp("init", str(tmp_path / "cats"), "--test", str(tmp_path / "held-out"), "--out", str(file))
    assert done.exit_code == 0, done.output
    spec = load_job(file)
    assert (spec.data.records, spec.data.records_test) == (f"file://{tmp_path}/cats", f"file://{tmp_path}/held-out")
    assert (spec.clip.resize.height, spec.clip.frames, spec.sampling.kind) == (16, 1, "exhaustive")
    assert "# 16 records of 2 classes" in file.read_text()
    checked = essp("validate", str(file), "--json")
    assert checked.exit_code == 0, checked.output
    facts = json.loads(checked.stdout)
    assert facts["records"] == {"train": 14, "validation": 2, "test": 2}
    assert facts["records_of"]["test"]["version"] == 1
    said = " ".join(essp("validate", str(file)).stdout.split())
    assert "train 14 records, 280 clips" in said
    assert "records of a file are read together" in said


def test_records_that_cannot_be_trained_on_say_so(tmp_path: Path) -> None:
    make_records(tmp_path / "cats", [-1] * 3)
    with pytest.raises(ConfigError, match="its records have no labels, so there is nothing to train"):
        main(str(tmp_path / "cats"), tmp_path / "job.yaml")
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(ROWS))
    with pytest.raises(ConfigError, match=r"--test and --validation name data sets of records, and .* is not one"):
        main(str(tmp_path / "set.parquet"), tmp_path / "job.yaml", test=str(tmp_path / "cats"))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("resnet19", r"--model: no model 'resnet19'; .*did you mean resnet18"),
        ("our_package.nets:TINY", "--model: "),
        ("fisher_vector", "--model: fisher_vector"),
        ("r3d_18", "--model r3d_18 does not fit the streams that are written: "),
    ],
)
def test_a_network_that_cannot_learn_from_the_streams_is_refused_at_once(tmp_path: Path, model: str, said: str) -> None:
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", videos(20, 150))
    with pytest.raises(ConfigError, match=said):
        main(str(tmp_path / "set.parquet"), tmp_path / "job.yaml", model=model)
    assert not (tmp_path / "job.yaml").exists()


def test_where_there_is_one_class_there_is_nothing_to_learn() -> None:
    rows = tuple(replace(row, class_name="left") for row in ROWS)
    with pytest.raises(ConfigError, match=r"one class, 'left'.*essp\.Loader"):
        job_text(Catalog(rows), "set.parquet", "job.yaml", "small")


def test_one_line_more_leaves_a_group_out(tmp_path: Path) -> None:
    """As docs/recipes.md has it, of a catalog without a test split."""
    rows = tuple(replace(row, split="train") for row in ROWS)
    text = job_text(Catalog(rows), "set.parquet", "job.yaml", "small")
    assert parse_spec(text).data.test is None
    data = parse_spec(text.replace("data:\n", 'data:\n  left_out: {group: "1"}\n', 1)).data
    assert (data.left_out, data.test) == ({"group": "1"}, "test")


@pytest.mark.parametrize("recipe", ["paper", "many"])
def test_a_recipe_is_sound_once_its_weights_are_there(tmp_path: Path, recipe: str) -> None:
    """With all the networks that its comments offer, too."""
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", videos(1000, keyframe_every=150))
    file = tmp_path / "job.yaml"
    done = essp("init", str(tmp_path / "set.parquet"), "--for", recipe, "--out", str(file))
    assert "(essp weights fetch)" in done.stderr
    first = sorted(name for trainer in parse_spec(file.read_text()).trainers.values() if (name := trainer.weights))[0]
    with pytest.raises(
        ConfigError, match=rf"weights: .*{first}.*essp weights fetch {first.removesuffix('.safetensors')}`"
    ):
        essp("validate", str(file))
    file.write_text(re.sub(r"(?m)^  # (?=(spatial|temporal)-)", "  ", file.read_text()))
    for trainer in parse_spec(file.read_text()).trainers.values():
        assert trainer.weights is not None
        (tmp_path / trainer.weights).touch()
    checked = essp("validate", str(file), "--json")
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["warnings"] == []


@pytest.mark.parametrize(("count", "told"), [(20, "1 batch"), (60, "2 batches")])
def test_few_videos_make_several_batches_an_epoch(count: int, told: str) -> None:
    """With one clip of each, a job of 20 epochs would end after a few updates."""
    text = job_text(videos(count, 150), "set.parquet", "job.yaml", "small")
    assert f"one clip of each training video, is {told}\n" in text
    spec = parse_spec(text)
    assert spec.sampling.clips_per_epoch is not None
    assert spec.trainers["rgb"].updates(spec.sampling.clips_per_epoch) == 15


def test_enough_videos_give_one_clip_each() -> None:
    for catalog in (videos(600, 150), Catalog(ROWS[:2])):  # of the second none can be set aside, so none is counted
        assert parse_spec(job_text(catalog, "set.parquet", "job.yaml", "small")).sampling.clips_per_epoch is None


def test_the_recipe_of_the_paper_has_its_numbers(tmp_path: Path) -> None:
    spec = parse_spec(job_text(videos(10, 150), "set.parquet", "job.yaml", "small", "paper"))
    spatial, temporal = spec.trainers["spatial-vgg19"], spec.trainers["temporal-vgg19"]
    updates = spec.epochs * spatial.updates(spec.sampling.clips_per_epoch or 0)

    def rates(trainer: TrainerSpec, *steps: int) -> list[float]:
        """Before and after each of these updates, and at the end."""
        places = [0, *(update for step in steps for update in (step - 1, step)), updates - 1]
        phases = [PhasePlan(purpose=TRAIN, epoch=place // 5000, clips=1_280_000) for place in places]
        return [rate_at(trainer, 50, plan, place % 5000 * 256) for plan, place in zip(phases, places, strict=True)]

    assert rates(spatial, 14_000, 20_000) == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    assert rates(temporal, 100_000, 200_000) == pytest.approx([1e-2, 1e-2, 1e-3, 1e-3, 1e-4, 1e-4])
    assert {trainer.dropout for trainer in spec.trainers.values()} == {0.9}
    assert {(trainer.model, trainer.batch_size) for trainer in spec.trainers.values()} == {("vgg19", 256)}
    assert (spec.clip.frames, spec.clip.resize.height, spec.clip.resize.width) == (11, 256, 256)
    assert [strategy.name for strategy in spec.aggregation.strategies] == ["average"]


def test_the_recipe_for_many_has_snippets_visits_and_half_precision() -> None:
    spec = parse_spec(job_text(videos(10, 150), "set.parquet", "job.yaml", "small", "many"))
    rgb, flow = spec.trainers["rgb"], spec.trainers["flow"]
    assert (spec.clip.snippets, spec.clip.snippet_frames, spec.sampling.kind) == (3, 6, "pooled")
    assert (rgb.amp, flow.amp) == (True, True)
    assert {trainer.model for trainer in (rgb, flow)} == {"resnet50"}
    assert {trainer.optimizer.schedule for trainer in (rgb, flow)} == {"cosine"}
    assert 256 * rgb.optimizer.lr / rgb.batch_size == pytest.approx(0.01)
    assert 256 * flow.optimizer.lr / flow.batch_size == pytest.approx(0.005)
    assert rgb.augment.rand_augment is not None
    assert flow.augment.rand_augment is None, "flow is not a photograph"
