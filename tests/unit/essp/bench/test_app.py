"""The mini-application: what is waited for, what the accelerator is busy with, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.bench.app import sentences
from essp.bench.learner import CLIPS, IMAGES, Pretended, model_for
from essp.bench.pipeline import Batch
from essp.bench.results import Results, Row, Spread
from essp.bench.training import Training
from essp.bench.utilisation import Step, data_wait, utilisation
from essp.cli import bench_app
from essp_common.errors import ConfigError
from essp_engine.video.synthetic import numbered, write_video
from tests.harness.command_line import essp
from tests.harness.photographs import photograph
from tests.harness.refused import Refusal, refused

TIMES = st.floats(0.001, 100.0)
STEPS = st.lists(st.builds(lambda wait_s, step_s: Step(wait_s, step_s, step_s), TIMES, TIMES), max_size=8)


@given(STEPS)
def test_shares_are_between_nothing_and_all(steps: list[Step]) -> None:
    assert 0.0 <= data_wait(steps) < 1.0
    busy = utilisation(steps)
    assert (busy is None) == (len(steps) < 2)
    assert busy is None or 0.0 < busy <= 1.0


def test_the_first_step_counts_for_the_wait_and_not_for_the_utilisation() -> None:
    steps = [Step(9.0, 1.0, 1.0), Step(0.5, 1.0, 1.0), Step(0.0, 1.5, 1.0)]
    assert data_wait(steps) == pytest.approx(9.5 / 13.0)
    assert utilisation(steps) == pytest.approx(2.0 / 3.0)
    assert utilisation(steps[:1]) is None


def test_the_pretended_accelerator_is_busy_for_its_step() -> None:
    slept: list[float] = []
    assert Pretended(0.05, slept.append).step(Batch(4)) == 0.05
    assert slept == [0.05]


def row(store: str, prefetch: int, threads: int, **values: float) -> Row:
    labels: dict[str, str | int] = {"store": store, "batch": 64, "prefetch": prefetch, "threads": threads}
    values = {"samples_per_s": 1000 / values["seconds"]} | values
    return Row(labels, {name: Spread((value,)) for name, value in values.items()})


def test_sentences_say_what_binds() -> None:
    cases: Sequence[tuple[str, Row]] = (
        (
            "a: the accelerator is the limiting factor",
            row("a", 1, 2, seconds=9, data_wait=0.02, utilisation=0.98, cpu_cores=0.5),
        ),
        (
            "b: the cores are the limiting factor",
            row("b", 0, 8, seconds=9, data_wait=0.4, utilisation=0.6, cpu_cores=3.9),
        ),
        (
            "c: the input is the limiting factor",
            row("c", 0, 1, seconds=9, data_wait=0.4, utilisation=0.6, cpu_cores=1.1),
        ),
        ("d: with 1 thread and prefetch 0 there was one step", row("d", 0, 1, seconds=9, data_wait=0.4, cpu_cores=1)),
    )
    said = sentences([one for _, one in cases], cores=4)
    for sentence, (expected, _) in zip(said, cases, strict=True):
        assert sentence.startswith(expected)
    assert "passes the 90 %" in said[0]
    assert "below the 90 %" in said[1]


def test_the_best_row_makes_the_most_samples() -> None:
    """So many batches of 8 are soon made, since they are few samples."""
    common = {"data_wait": 0.4, "utilisation": 0.6, "cpu_cores": 1.0}
    small, large = (
        row("a", 0, 1, seconds=2, samples_per_s=40, **common),
        row("a", 0, 1, seconds=9, samples_per_s=90, **common),
    )
    small = Row({**small.labels, "batch": 8}, small.values)
    assert sentences([small, large], 4)[0].startswith(
        "a: the input is the limiting factor with 1 thread and prefetch 0, in batches of 64,"
    )
    assert sentences([small], 4)[0].startswith("a: the input is the limiting factor with 1 thread and prefetch 0: ")


def test_sentences_say_what_prefetch_hides() -> None:
    common = {"data_wait": 0.1, "utilisation": 0.9, "cpu_cores": 1.0}
    rows = [row("a", 0, 1, seconds=20, **common), row("a", 1, 1, seconds=10, **common)]
    rows += [row("b", 0, 1, seconds=14, **common), row("b", 1, 1, seconds=10.5, **common)]
    said = "with prefetch 1 training runs take 50 % to 75 % of the time without, and those of all threads and stores"
    assert sentences(rows, 4)[-1] == f"{said} lie within 5.0 %."
    assert len(sentences(rows[::2], 4)) == 2  # one a store: prefetch was not compared


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 32, 32, 3), (4, 2, 32, 32, 3)], ids=["images", "clips"])
def test_a_training_learns_and_saves_what_it_is(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    training = Training(CLIPS, ("a", "b", "c"), shape[-2], "cpu")
    batch = Batch(4, rng.integers(0, 256, shape, np.uint8), np.array([0, 1, 2, -1]))
    before = training.checkpoint()["model.tensors"]
    assert [training.step(batch) > 0 for _ in range(2)] == [True, True]
    after = training.checkpoint()
    assert np.isfinite(training.losses).all()
    assert before != after["model.tensors"]
    assert len(after["optimizer.tensors"]) > 1.9 * len(before)  # two moments of each weight


def test_what_cannot_be_trained_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (model_for("clip"), model_for("record")) == (CLIPS, IMAGES)
    with refused("--size", "range"):
        Training(IMAGES, ("a", "b"), 32)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with refused("--device", "unsupported"):
        Training(CLIPS, ("a", "b"), 32, "cuda")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images in two folders, and a damaged one."""
    import cv2

    root = tmp_path_factory.mktemp("images")
    for number in range(12):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        cv2.imwrite(str(folder / f"{number}.jpg"), photograph(48, 40, number))
    (root / "class0" / "damaged.jpg").write_bytes(b"nonsense")
    return root


def test_a_benchmark_from_the_command_line(images: Path, tmp_path: Path) -> None:
    trace, plot = tmp_path / "trace.csv", tmp_path / "app.png"
    options = "--step-time 1ms --batch 4 --batches 3 --runs 2 --size 16 --threads 1,2 --prefetch 0,1 --trace-every 0.05"
    files = ["--trace", str(trace), "--plot", str(plot), "--json"]
    done = essp("bench", "app", "--source", str(images), *options.split(), *files)
    document = json.loads(done.stdout)
    assert document["benchmark"] == "app"
    assert document["partial"] is False
    assert document["facts"]["damaged"] == 1
    assert [(row["prefetch"], row["threads"]) for row in document["rows"]] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    for found in document["rows"]:
        assert 0 < found["utilisation"]["median"] <= 1
        assert 0 <= found["data_wait"]["median"] < 1
        assert found["samples_per_s"]["median"] == pytest.approx(12 / found["seconds"]["median"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert trace.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "trace-files.csv").read_text().splitlines()[-1].startswith("(all),")
    assert "left out class0/damaged.jpg" in done.stderr


@pytest.mark.parametrize(("sizes", "drawn"), [("4", ("seconds", "threads")), ("2,4", ("samples_per_s", "batch"))])
def test_the_plot_compares_batch_sizes_by_what_does_not_grow_with_them(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: str, drawn: Refusal
) -> None:
    """As many batches of other sizes are other numbers of samples, and take other times."""
    asked: list[tuple[str, str]] = []

    def bars(results: Results, value: str, groups: str, panels: str) -> bytes:
        asked.append((value, groups))
        return b""

    monkeypatch.setattr(bench_app, "bars", bars)
    options = f"--step-time 1ms --batch {sizes} --batches 2 --runs 1 --size 16 --threads 1 --prefetch 0"
    essp("bench", "app", "--source", str(images), *options.split(), "--plot", str(tmp_path / "app.png"))
    assert asked == [drawn]


@pytest.mark.slow
def test_clips_of_a_catalog_are_learned(tmp_path: Path) -> None:
    for take in range(4):
        path = tmp_path / "videos" / f"class{take % 2}" / f"{take}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_video(path, numbered(12, 64, 48))
    catalog = str(tmp_path / "catalog.parquet")
    essp("catalog", "build", str(tmp_path / "videos"), "--out", catalog)
    options = "--batch 2 --batches 2 --runs 1 --size 32 --frames 4 --threads 1 --prefetch 1 --device cpu --json"
    document = json.loads(essp("bench", "app", "--source", catalog, *options.split()).stdout)
    assert document["facts"]["learner"] == "small on cpu"
    assert document["facts"]["unit"] == "clip"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--step-time fast", "--step-time: 'fast'"),
        ("--step-time 0ms", "more than nothing"),
        ("--device gpu", "there is no 'gpu'"),
        ("--prefetch -1", "--prefetch: "),
        ("--batch 0", "--batch: "),
        ("--step-time 1ms --trace trace.txt", "ends with .csv"),
        ("--step-time 1ms --trace no/where/trace.csv", "there is no folder no/where"),
        ("--step-time 1ms --batch 99", "fewer than a batch"),
    ],
)
def test_wrong_arguments_are_named(images: Path, options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        essp("bench", "app", "--source", str(images), *options.split())
