"""`essp bench io` as it is called: results, plans, wrong arguments, and what is left behind."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import cv2
import numpy as np
import pytest

from essp.cli import bench_options
from essp.cli.bench_options import Clock, numbers, words
from essp_common.errors import ConfigError, EsspError, NotFound, Unavailable
from tests.harness.command_line import essp, main_of
from tests.harness.refused import refused
from tests.lanes import across, often


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(6):
        cv2.imwrite(str(folder / f"{number}.png"), rng.integers(0, 256, (20, 20, 3), np.uint8))
    (folder / "6.png").write_bytes(b"no image")
    return folder


SMALL = ("--batch", "3", "--runs", "2", "--threads", "1,2", "--size", "16")


def test_results_are_a_table_and_a_sentence(images: Path) -> None:
    done = essp("bench", "io", "--source", str(images), *SMALL, "--pipeline", "read,full", "--throttle", "1GB/s,0.1ms")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["pipeline", "threads", "images/s"]
    assert [line.split()[:2] for line in lines[1:7]] == [[k, n] for k in ("raw", "read", "full") for n in "12"]
    assert [line.partition(":")[0] for line in lines[7:]] == ["1GB/s,0.1ms, read", "1GB/s,0.1ms, full"]
    assert "images in folders; 7 images" in done.stderr
    assert "6 configurations x 2 runs of 2 batches of 3" in done.stderr


def test_json_plot_and_trace_are_written(images: Path, tmp_path: Path) -> None:
    done = essp(
        "bench", "io", "--source", str(images), *SMALL, "--json", "--batches", "3", "--cold", "--prefetch", "0,1",
        "--plot", str(tmp_path / "plot.png"), "--trace", str(tmp_path / "trace.csv"),
        "--store", str(tmp_path / "copy"),
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert (document["benchmark"], document["partial"], document["facts"]["damaged"]) == ("io", False, 1)
    assert len(document["rows"]) == 2 + 2 * 2
    assert {row["store"] for row in document["rows"]} == {f"file://{tmp_path}/copy"}
    assert cv2.imread(str(tmp_path / "plot.png")) is not None
    with (tmp_path / "trace.csv").open() as file:
        assert "process_cpu_cores" in next(csv.reader(file))
    assert "left out" in done.stderr
    assert "6.png" in done.stderr
    assert list((tmp_path / "copy").rglob("*")) == []


def test_a_dry_run_measures_nothing(images: Path, tmp_path: Path) -> None:
    done = essp("bench", "io", "--source", str(images), *SMALL, "--dry-run", "--store", str(tmp_path / "copy"))
    assert done.stdout == ""
    assert "4 configurations x 2 runs" in done.stderr
    for arguments, configurations in (
        (("io", *SMALL), 4),
        (("app", "--step-time", "1ms", "--batch", "3", "--threads", "1", "--prefetch", "0,1", "--runs", "2"), 2),
    ):
        planned = essp("bench", *arguments, "--source", str(images), "--dry-run", "--json").stdout
        recognised = json.loads(planned).pop("recognised")
        assert json.loads(planned) == {
            "source": str(images),
            "recognised": recognised,
            "samples": 7,
            "unit": "image",
            "configurations": configurations,
            "runs": 2,
        }
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--threads", "0"), ConfigError, "--threads: "),
        (("--threads", "1;2"), ConfigError, "--threads: "),
        (("--prefetch", "-1"), ConfigError, "--prefetch: "),
        (("--pipeline", "write"), ConfigError, "--pipeline: there is no 'write'"),
        (("--throttle", "floppy"), ConfigError, "throttle 'floppy'"),
        (("--batch", "64"), ConfigError, "7 images, fewer than a batch; give --batch 7, or --batches"),
        (("--plot", "/nowhere/x.png"), ConfigError, "--plot: /nowhere/x.png"),
        (("--plot", "x.jpg"), ConfigError, "--plot: x.jpg"),
        (("--store", "ftp://x/y"), EsspError, "is in no configured store"),
    ],
)
def test_wrong_arguments_say_what_to_write(
    images: Path, arguments: tuple[str, ...], error: type[EsspError], message: str
) -> None:
    with pytest.raises(error) as raised:
        essp("bench", "io", "--source", str(images), "--batch", "3", "--runs", "1", *arguments)
    assert message in str(raised.value)


@pytest.mark.parametrize(("option", "name"), [("--trace", "trace.csv"), ("--plot", "plot.png")])
def test_a_folder_in_place_of_a_file_is_found_before_anything_is_measured(
    images: Path, tmp_path: Path, option: str, name: str
) -> None:
    (tmp_path / name).mkdir()
    with refused(option, "refused"):
        essp("bench", "io", "--source", str(images), *SMALL, option, str(tmp_path / name))
    with refused(option, "refused"):
        essp("bench", "io", "--source", str(images), *SMALL, option, str(tmp_path / f"{'x' * 300}{name}"))


@pytest.mark.parametrize("beside", ["trace.png", "trace-files.csv"])
def test_what_a_trace_writes_beside_itself_is_looked_at_too(images: Path, tmp_path: Path, beside: str) -> None:
    (tmp_path / beside).mkdir()
    with pytest.raises(ConfigError, match=rf"--trace: .*/trace\.csv also writes .*/{beside}"):
        essp("bench", "io", "--source", str(images), *SMALL, "--trace", str(tmp_path / "trace.csv"))


@pytest.mark.usefixtures("sketched")
@pytest.mark.parametrize(("option", "command"), often(across(["--trace", "--plot"], ["io", "checkpoint", "app"]), 2))
def test_figures_outlive_a_file_that_cannot_be_written(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    name = "full.csv" if option == "--trace" else "full.png"
    (tmp_path / name).symlink_to("/dev/full")
    other = ("--plot", tmp_path / "plot.png") if option == "--trace" else ("--trace", tmp_path / "trace.csv")
    way = {
        "io": ("--source", images, *SMALL[:2], "--runs", 1, "--threads", 1, "--size", 16),
        "app": ("--source", images, *SMALL[:2], "--step-time", "1ms", "--runs", 1, "--threads", 1, "--prefetch", 0),
        "checkpoint": ("--steps", 1, "--every", 1, "--step-time", "1ms", "--size", "1KiB", "--modes", "direct"),
    }[command]
    arguments = ("bench", command, *way, "--json", option, tmp_path / name, *other)
    assert main_of(*map(str, arguments)) == 2
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["partial"], len(document["rows"])) == (False, 2 if command == "io" else 1)
    assert f"{name} cannot be written (No space left on device); name another file" in shown.err
    assert other[1].stat().st_size > 0


def test_figures_outlive_an_error_in_the_middle(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = Clock.begin

    def begun(clock: Clock, turn: int, kind: int) -> None:
        begin(clock, turn, kind)
        if (turn, kind) == (1, 0):
            raise Unavailable("the store does not answer")

    monkeypatch.setattr(Clock, "begin", begun)
    assert main_of("bench", "io", "--source", str(images), *SMALL, "--json") == 6
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["partial"], len(document["rows"])) == (True, 4)
    assert "essp: the store does not answer" in shown.err


@pytest.mark.parametrize("command", ["io", "app", "checkpoint"])
def test_two_pictures_in_one_file_are_refused_before_anything_is_measured(
    images: Path, tmp_path: Path, command: str
) -> None:
    source = () if command == "checkpoint" else ("--source", str(images))
    with refused("--plot", "conflict"):
        essp("bench", command, *source, "--trace", str(tmp_path / "io.csv"), "--plot", str(tmp_path / "io.png"))
    assert not list(tmp_path.iterdir())


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there are no files at .*nothing"):
        essp("bench", "io", "--source", str(tmp_path / "nothing"))
    with pytest.raises(NotFound, match=r"nothing\.csv"):
        essp("bench", "io", "--source", str(tmp_path / "nothing.csv"))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interruption_leaves_what_was_measured_and_nothing_else(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    class Interrupted(Event):
        """Set once so many configurations have begun."""

        asked = 0

    pressed = Interrupted()
    begin = Clock.begin

    def begun(clock: Clock, turn: int, kind: int) -> None:
        begin(clock, turn, kind)
        pressed.asked += 1
        if pressed.asked > after:
            pressed.set()

    @contextmanager
    def interruptible(message: str) -> Iterator[Event]:
        yield pressed

    monkeypatch.setattr(Clock, "begin", begun)
    monkeypatch.setattr(bench_options, "interruptible", interruptible)
    done = essp("bench", "io", "--source", str(images), *SMALL, "--json", "--store", str(tmp_path / "copy"))
    assert done.exit_code == 130
    if after:
        document = json.loads(done.stdout)
        assert (document["partial"], len(document["rows"])) == (True, after)
        assert "of fewer runs than were asked for" in done.stderr
    else:
        assert done.stdout == ""
        assert "interrupted before anything was measured" in done.stderr
    assert [path for path in tmp_path.rglob("*") if path != tmp_path / "copy"] == []


def test_lists_are_read_once_each() -> None:
    assert numbers("4, 1,4", "--threads") == (4, 1)
    assert words("full,read,full", "--pipeline", ("read", "full")) == ("full", "read")


def test_what_is_left_follows_from_the_last_round() -> None:
    now_s = 0.0
    clock = Clock(2, 3, lambda: now_s)
    clock.begin(0, 0)
    assert clock.left_s() is None
    now_s = 10.0
    clock.begin(0, 1)
    assert clock.left_s() == 10 + 2 * 20  # the second kind is taken for as long as the first
    now_s = 12.0
    clock.begin(1, 0)
    assert clock.left_s() == 10 + 2 + 12
    now_s = 18.0
    assert clock.left_s() == 4 + 2 + 12
    now_s = 40.0
    assert clock.left_s() == 0 + 2 + 12
    clock.begin(2, 1)
    assert clock.left_s() == 2
