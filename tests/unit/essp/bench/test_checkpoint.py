"""Ways to save: what is in the store is whole, nothing is left behind, and figures say what it costs."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from essp.bench.checkpoint import CheckpointBenchmark, CheckpointOptions, Medians, Trainee, random_files, sentences
from essp.bench.checkpoint_plot import picture
from essp.bench.places import remove
from essp.bench.saving import KEPT, MODES, TRAINER, Background, Burst, Direct, Files, Saver, room_for
from essp_common.artifacts import checkpoint
from essp_common.errors import ConfigError, StorageFull
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from tests.harness.command_line import essp

FILES: Files = {"model.safetensors": bytes(300), "optimizer.safetensors": bytes(600)}


class Filling(DirectoryStore):
    """Has room for so many writes."""

    def __init__(self, root: str, room: int) -> None:
        super().__init__(root)
        self._room = room

    def below(self, folder: str) -> Filling:
        return Filling(f"{self._root}/{folder}", self._room)

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if not self._room:
            raise StorageFull("no room")
        self._room -= 1
        return super().put(key, data, if_absent=if_absent)


@pytest.mark.parametrize("mode", ["direct", "background", "burst"])
def test_the_newest_checkpoints_are_whole_in_the_store(tmp_path: Path, mode: str) -> None:
    store = DirectoryStore(str(tmp_path / "slow"))
    saver: Saver
    if mode == "direct":
        saver = Direct(store)
    else:
        fast = str(tmp_path / "fast")
        saver = Background(store) if mode == "background" else Burst(store, fast, room_for(900))
    for step in (10, 20, 30):
        saver.save(step, FILES)
        if mode == "burst":
            saver.finish()  # otherwise the next one may take its place
    saver.finish()
    saver.abandon()
    assert checkpoint.steps(store, TRAINER) == [20, 30]
    assert KEPT == 2
    latest = checkpoint.read_latest(store, TRAINER)
    assert latest is not None
    assert latest.step == 30
    assert checkpoint.load_files(store, latest) == FILES


def test_a_buffer_without_room_passes_checkpoints_on(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "slow"))
    saver = Burst(store, str(tmp_path / "fast"), 1000)
    saver.save(10, FILES)
    assert checkpoint.steps(store, TRAINER) == [10]
    assert saver.passed_by == 1
    saver.abandon()


def test_removing_leaves_no_folder(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    Direct(store.below("mine")).save(1, FILES)
    store.put("other", b"stays")
    (tmp_path / "mine" / "made").mkdir()  # a write that failed
    remove(store, "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def benchmark(folder: Path, store: DirectoryStore | None = None, **options: int) -> CheckpointBenchmark:
    chosen = CheckpointOptions(steps=4, every=2, runs=2, buffer_bytes=options.get("buffer_bytes", 10**6))
    trainee = Trainee("made up", lambda: None, random_files(1000))
    slow = store or DirectoryStore(str(folder / "slow"))
    (folder / "fast").mkdir(exist_ok=True)
    return CheckpointBenchmark(slow, folder / "fast", trainee, chosen, {})


def left(folder: Path) -> list[Path]:
    return [path for name in ("slow", "fast") for path in (folder / name).rglob("*")]


def test_a_benchmark_leaves_nothing_and_has_all_ways(tmp_path: Path) -> None:
    made = benchmark(tmp_path)
    told: list[tuple[int, int, int]] = []
    made.run(lambda: False, lambda *at: told.append(at))
    results = made.results()
    assert [row.labels["checkpoints"] for row in results.rows] == list(MODES)
    assert results.facts["checkpoint_bytes"] == 1000
    assert not results.partial
    assert told[0] == (0, 0, 0)
    assert told[-1] == (1, 4, 4)
    assert left(tmp_path) == []
    assert picture(results).startswith(b"\x89PNG")
    assert "essp-bench-copy_0" not in {thread.name for thread in threading.enumerate()}


def test_an_interrupted_benchmark_leaves_nothing_and_says_what_there_is(tmp_path: Path) -> None:
    made = benchmark(tmp_path)
    at: list[tuple[int, int, int]] = []
    made.run(lambda: at[-1:] == [(0, 4, 2)], lambda *now: at.append(now))
    results = made.results()
    assert [row.labels["checkpoints"] for row in results.rows] == ["none", "raw", "direct", "background"]
    assert results.partial
    assert left(tmp_path) == []


@pytest.mark.parametrize("room", [0, 1, 2, 5])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    with pytest.raises(StorageFull, match="no room"):
        benchmark(tmp_path, Filling(str(tmp_path / "slow"), room)).run(lambda: False, lambda *_: None)
    assert left(tmp_path) == []


def test_random_checkpoints_have_their_size_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    files = random_files(1000)
    monkeypatch.setattr(os, "urandom", None)  # what takes time is done
    first, second = files(), files()
    assert sum(map(len, first.values())) == 1000
    assert first.keys() == second.keys() == {"model.tensors", "optimizer.tensors"}
    assert all(first[name] != second[name] for name in first)


ALL = CheckpointOptions()


def medians(training_s: float, held_s: float = 0.0, drained_s: float = 0.0) -> Medians:
    return Medians(training_s, held_s, drained_s, 10**8)


@pytest.mark.parametrize(
    ("direct", "said"),
    [
        (medians(100.1, 0.02), "the accelerator is the limiting factor"),
        (medians(125.0, 5.0), "the store is the limiting factor of direct checkpoints"),
        (medians(250.0, 30.0), "No buffer hides that for long"),
    ],
)
def test_sentences_say_what_binds(direct: Medians, said: str) -> None:
    found = sentences({"none": medians(100.0), "direct": direct}, CheckpointOptions())
    assert said in found[-1]


def test_sentences_compare_the_burst_buffer_with_direct_checkpoints() -> None:
    ways = {"none": medians(100.0), "direct": medians(130.0, 6.0), "burst": medians(104.0, 0.8, 5.0)}
    found = sentences({mode: ways[mode] for mode in MODES if mode in ways}, CheckpointOptions())
    assert found[0].startswith("direct: checkpoints of 95.4 MiB add 30.00 s to 100.00 s (30 %).")
    assert "the store has everything 5.0 s later" in found[1]
    assert "1.2x as fast" in found[2]


def test_sentences_say_how_far_a_checkpoint_is_from_the_bound() -> None:
    found = sentences({"none": medians(100.0), "raw": medians(110.0, 2.0), "direct": medians(125.0, 5.0)}, ALL)
    assert "the same bytes alone at 50 MB/s; a direct checkpoint, which is read back, takes 2.5x as long" in found[1]


@pytest.mark.usefixtures("sketched")
def test_a_benchmark_from_the_command_line(tmp_path: Path) -> None:
    options = "--steps 4 --every 2 --size 64KiB --step-time 1ms --runs 1 --throttle 50MB/s,1ms --trace-every 0.05"
    folders = ["--store", str(tmp_path / "slow"), "--buffer", str(tmp_path / "fast")]
    files = ["--trace", str(tmp_path / "trace.csv"), "--plot", str(tmp_path / "plot.png"), "--json"]
    for _ in range(2):
        document = json.loads(essp("bench", "checkpoint", *options.split(), *folders, *files).stdout)
        assert [row["checkpoints"] for row in document["rows"]] == list(MODES)
        assert document["facts"]["checkpoint_bytes"] == 2**16
    assert left(tmp_path) == []
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "manifest.json" in (tmp_path / "trace-files.csv").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--size much", "--size: 'much'"),
        ("--size 1B", "--size: must be between"),
        ("--buffer-size x", "--buffer-size: 'x'"),
        ("--modes all", "there is no 'all'"),
        ("--every 200", "there are only 100 steps"),
        ("--throttle 8ms", "is not a bandwidth"),
        ("--model vgg", "there is no 'vgg'"),
        ("--model alexnet --size 1MiB", "leave one of them out"),
        ("--store /proc/nowhere", "belongs to the kernel"),
        ("--buffer /proc/nowhere", "belongs to the kernel"),
        ("--trace x.txt", "ends with .csv"),
    ],
)
def test_wrong_arguments_are_named(options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        essp("bench", "checkpoint", *options.split())


def test_a_buffer_without_room_is_told(tmp_path: Path) -> None:
    made = benchmark(tmp_path, buffer_bytes=100)
    made.run(lambda: False, lambda *_: None)
    assert "no room for 2 checkpoints" in made.results().sentences[-1]
