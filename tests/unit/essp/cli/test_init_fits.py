"""`essp init` looks at the data: what it writes can be run, whatever the data set and the options are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from essp.cli import init
from essp.cli.job_edits import with_values
from essp.cli.job_file import load_job
from essp.cli.recipes import Recipe
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError
from essp_common.job.documents import read_yaml
from essp_common.job.spec import parse_spec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import TRAIN, PhasePlan
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.preflight.checks import check
from essp_engine.preflight.resolve import resolve, resolve_on
from essp_trainer.model.schedule import rate_at
from tests.harness.command_line import essp
from tests.harness.refused import refused


def video(number: int, name: str, split: str = "train", side: int = 240, frames: int = 60, group: str = "") -> VideoRow:
    return VideoRow(
        f"{number:04}.mp4",
        f"s3://v/{number:04}.mp4",
        name,
        split,
        1,
        "e",
        width=side + 40,
        height=side,
        frame_count=frames,
        last_frame=frames - 1,
        group=group,
        fps=25.0,
    )


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    names = draw(st.sampled_from([["a"], ["a", "b"], ["no", "yes", "null"], [f"c{n}" for n in range(40)]]))
    splits = draw(
        st.sampled_from([["train"], ["train", "test"], ["train", "validation", "test"], ["test"], [""], ["x"]])
    )
    count = draw(st.sampled_from([1, 2, 3, 7, 40, 310, 700]))
    side, frames = draw(st.sampled_from([16, 17, 100, 240, 1080])), draw(st.sampled_from([1, 2, 11, 60]))
    groups = draw(st.sampled_from([0, 1, 3]))
    return Catalog(
        tuple(
            video(
                n, names[n % len(names)], splits[n // 2 % len(splits)], side, frames, f"g{n % groups}" if groups else ""
            )
            for n in range(count)
        )
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    catalog=catalogs(),
    model=st.sampled_from([None, None, "small", "resnet18", "resnet19", "r3d_18", "fisher_vector"]),
    recipe=st.sampled_from([None, None, "scratch", "few", "many", "paper"]),
    sets=st.sampled_from([(), (), ("epochs=3",), ("trainers.rgb.optimizer.lr=0.5",), ("clip.frames=2",)]),
)
def test_what_is_written_can_be_run(
    tmp_path: Path, catalog: Catalog, model: str | None, recipe: Recipe | None, sets: tuple[str, ...]
) -> None:
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", catalog)
    file = tmp_path / "job.yaml"
    file.unlink(missing_ok=True)
    try:
        init.main(str(tmp_path / "set.parquet"), file, model=model, recipe=recipe, sets=list(sets))
    except ConfigError:
        assert not file.exists()
        return
    check(resolve_on(catalog, load_job(file)))


@pytest.fixture
def small(tmp_path: Path) -> str:
    rows = tuple(video(n, f"c{n % 3}") for n in range(60))
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(rows))
    return str(tmp_path / "set.parquet")


def test_few_videos_start_from_a_trained_network(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    done = essp("init", small, "--out", str(file))
    assert "51 training videos" in done.stderr
    assert load_job(file).trainers["rgb"].weights == "package:efficientnet_lite0"
    for options in (["--for", "scratch"], ["--model", "small"]):
        done = essp("init", small, "--out", str(file), "--force", *options)
        assert load_job(file).trainers["rgb"].weights is None
        assert "training videos" not in done.stderr
    monkeypatch.setattr(init, "find_spec", lambda name: None)
    done = essp("init", small, "--out", str(file), "--force")
    assert "essp-video[efficientnet]" in done.stderr
    assert load_job(file).trainers["rgb"].weights is None


@pytest.mark.parametrize("recipe", [None, "scratch", "paper"])
@pytest.mark.parametrize(
    "names", [("left", "wrist"), ("observation.images.top", "observation.images.wrist", "Übersicht")]
)
def test_every_view_has_its_streams_and_trainers(tmp_path: Path, recipe: Recipe | None, names: tuple[str, ...]) -> None:
    """The whole file is read as one writes it, comments and all, and the catalog is opened as a run opens it."""
    rows = [
        replace(video(n, f"c{n % 3}"), id=f"{n}/{view}", uri=f"s3://v/{n}/{view}", event=f"{n}", view=view)
        for n in range(60)
        for view in names
    ]
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(rows))
    file = tmp_path / "job.yaml"
    init.main(str(tmp_path / "set.parquet"), file, recipe=recipe)
    job = resolve(load_job(file), Stores(Settings().stores))
    check(job)
    spec = job.spec
    assert tuple(spec.clip.views) == tuple(sorted(names))
    seen = {name: stream.view for name, stream in spec.streams.items()}
    assert sorted(seen.values()) == sorted(names * (len(seen) // len(names)))
    assert {trainer.stream for trainer in spec.trainers.values()} == set(seen)
    assert "60 videos" in file.read_text()


def test_clips_of_pieces_have_no_views(tmp_path: Path) -> None:
    rows = [replace(video(n, "ab"[n % 2]), event=f"{n // 2}", view="lr"[n % 2]) for n in range(8)]
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(rows))
    with refused("--for", "conflict"):
        init.main(str(tmp_path / "set.parquet"), tmp_path / "job.yaml", recipe="many")


def test_many_videos_learn_from_scratch(tmp_path: Path) -> None:
    write_catalog(
        DirectoryStore(str(tmp_path)), "set.parquet", Catalog(tuple(video(n, f"c{n % 3}") for n in range(500)))
    )
    essp("init", str(tmp_path / "set.parquet"), "--out", str(tmp_path / "job.yaml"))
    assert load_job(tmp_path / "job.yaml").trainers["rgb"].weights is None


def test_a_catalog_that_cannot_be_trained_on_writes_nothing(tmp_path: Path) -> None:
    rows = tuple(video(n, f"c{n % 3}", "test") for n in range(60))
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(rows))
    with pytest.raises(ConfigError, match="no file is written"):
        init.main(str(tmp_path / "set.parquet"), tmp_path / "job.yaml")
    assert not (tmp_path / "job.yaml").exists()


def test_the_rate_falls_at_a_share_of_the_training(small: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for epochs in (4, 20):
        essp("init", small, "--for", "scratch", "--out", str(file), "--force", "--set", f"epochs={epochs}")
        trainer = load_job(file).trainers["rgb"]
        plans = [PhasePlan(purpose=TRAIN, epoch=epoch, clips=480) for epoch in range(epochs)]
        rates = [rate_at(trainer, epochs, plan, 0) for plan in plans]
        assert rates == pytest.approx([0.01] * (3 * epochs // 4) + [0.001] * (epochs // 4))


@pytest.mark.parametrize(
    ("optimizer", "field", "code"),
    [
        ("{unit: share, steps: [15]}", "steps", "range"),
        ("{unit: share, steps: [1.0]}", "steps", "range"),
        ("{unit: share, warmup: 1}", "warmup", "range"),
        ("{steps: [0.5]}", "steps", "type"),
        ("{unit: updates, steps: [10, 20.5]}", "steps", "type"),
    ],
)
def test_shares_are_of_the_training_and_epochs_are_whole(optimizer: str, field: str, code: str) -> None:
    with refused(f"trainers.rgb.optimizer.{field}", code):
        parse_spec(f"{{name: a, output: o, trainers: {{rgb: {{stream: rgb, optimizer: {optimizer}}}}}}}")


def test_settings_are_written_into_the_commented_file(small: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    given = ["trainers.rgb.optimizer.lr=0.5", "trainers.flow.augment.crop=96", "limits.lead=2", "epochs=3"]
    options = [part for one in given for part in ("--set", one)]
    essp("init", small, "--for", "scratch", "--out", str(file))
    before = load_job(file, sets=given, name="mine")
    comments = [line.partition("#")[2] for line in file.read_text().splitlines() if "#" in line]
    essp("init", small, "--for", "scratch", "--out", str(file), "--force", "--name", "mine", *options)
    assert load_job(file).model_dump(exclude={"output"}) == before.model_dump(exclude={"output"})
    assert load_job(file).output.endswith("/runs/mine")
    assert [line.partition("#")[2] for line in file.read_text().splitlines() if "#" in line] == comments
    for wrong, field in (
        (["--set", "trainers.rbg.batch_size=3"], "trainers.rbg.batch_size"),
        (["--set", "trainers.rgb.batchsize=3"], "trainers.rgb.batchsize"),
    ):
        with refused(field, "unknown"):
            essp("init", small, "--for", "scratch", "--out", str(file), "--force", *wrong)
    with refused("trainers.flow", "unsupported"):
        essp("init", small, "--for", "scratch", "--out", str(file), "--force", "--set", "trainers.flow=null")


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        ("a: 1  # one\nb: 2\n", "a", 3, "a: 3  # one\nb: 2\n"),
        ("a: {b: 1, c: [x, y]}\n", "a.c", ["z"], "a: {b: 1, c: [z]}\n"),
        ("a: {}\n", "a.b", True, "a: {b: true}\n"),
        ("a:\n  b: 1\n  # more\nc: 2\n", "a.d", "x", "a:\n  b: 1\n  d: x\n  # more\nc: 2\n"),
        ("a: &x {b: 1}\nc: *x\n", "c.b", 2, "a: &x {b: 1}\nc: {b: 2}\n"),
        ("a: &x {b: 1}\nc: *x\n", "a.b", 2, "a: &x {b: 2}\nc: {b: 1}\n"),
        ("a: &x\n  b: 1\nc:\n  <<: *x\n", "a.b", 2, "a: &x\n  b: 2\nc:\n  <<: *x\n  b: 1\n"),
        ("a: null\n", "a.b", 1, "a: {b: 1}\n"),
        ("a:\n  - 1\n  - 2\nb: 3\n", "a", [5], "a: [5]\nb: 3\n"),
        ('"a": "1"', "a", "yes", "\"a\": 'yes'"),
    ],
)
def test_a_value_is_edited_where_it_stands(text: str, path: str, value: object, expected: str) -> None:
    wanted = read_yaml(text, "text")
    section, *rest = path.split(".")
    wanted |= {section: (wanted[section] or {}) | {rest[0]: value} if rest else value}
    assert with_values(text, wanted) == expected
    assert read_yaml(expected, "text") == wanted
