"""`essp.Records`: each record once an epoch, in one order however it is read; saved, resumed and shared as a loader."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import essp
from essp.api.arguments import Frames
from essp.records.images import jpeg
from essp.records.pieces import Pieces, growth
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer

RECORDS, SIDE = 50, 4
RECORD_BYTES = SIDE * SIDE * 3


def image(number: int, side: int = SIDE) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All pixels are its number."""
    return np.full((side, side, 3), number, np.uint8)


def build(path: Path, records: Sequence[Record], append: bool = False) -> Path:
    data_set = DataSet(DirectoryStore.from_url(path.as_uri()))
    with Writer(data_set, ("a", "b"), file_bytes=900, append=append) as writer:
        for record in records:
            writer.add(record)
    return path


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw images of one size."""
    return build(tmp_path_factory.mktemp("raw"), [Record.of_image(image(i), i % 2) for i in range(RECORDS)])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files and raw images of several sizes."""
    records = [
        Record(jpeg(image(i, 8 + i % 3), 95), i % 2) if i % 2 else Record.of_image(image(i, 5 + i % 4), i % 2)
        for i in range(RECORDS)
    ]
    return build(tmp_path_factory.mktemp("mixed"), records)


def taken(batches: Iterator[essp.Batch] | essp.Records) -> list[int]:
    """The records that come, in order; each is checked against what was written."""
    found: list[int] = []
    for batch in batches:
        numbers = batch.meta["record"]
        assert batch.frames.shape[1:] == (1, SIDE, SIDE, 3)
        assert batch.labels.tolist() == [number % 2 for number in numbers]
        assert batch.meta["class_name"] == ["ab"[number % 2] for number in numbers]
        means = batch.frames.double().mean(dim=(1, 2, 3, 4))
        assert torch.allclose(means, torch.tensor(numbers, dtype=torch.double), atol=2.5)  # JPEG
        found += numbers
    return found


ODD = (-1, 2**70, 2.5, True)
MEMORIES = ["1GiB", RECORD_BYTES * 14, 1]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", ["raw", "mixed"])
def test_each_record_comes_once_an_epoch_in_an_order_of_the_seed(
    kind: str, memory: Any, request: pytest.FixtureRequest
) -> None:
    """However much memory there is."""
    path = request.getfixturevalue(kind)
    with essp.Records(path, batch_size=8, size=SIDE, memory=memory) as loader:
        epochs = [taken(loader) for _ in range(3)]
        assert len(loader) == 7
    assert all(sorted(epoch) == list(range(RECORDS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    with essp.Records(path, batch_size=11, size=SIDE) as loader:
        assert [taken(loader) for _ in range(3)] == epochs
    with essp.Records(path, batch_size=8, size=SIDE, seed=1) as loader:
        assert taken(loader) != epochs[0]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", ["raw", "mixed"])
def test_a_loop_goes_on_where_it_stopped(kind: str, memory: Any, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    options: dict[str, Any] = {"batch_size": 8, "size": SIDE, "memory": memory}
    with essp.Records(path, **options) as loader:
        whole = taken(loader) + taken(loader)
    for batches in (0, 3, 7, 9):
        shown: list[int] = []
        with essp.Records(path, **options) as loader:
            while batches:
                for batch in loader:
                    shown += taken(iter([batch]))
                    batches -= 1
                    if not batches:
                        break
                state = loader.state_dict()
            state = loader.state_dict()
        with essp.Records(path, **options) as again:
            again.load_state_dict(state)
            while again.epoch < 2:
                shown += taken(again)
        assert shown == whole


@pytest.mark.parametrize("kind", ["raw", "mixed"])
def test_ranks_share_an_epoch_and_a_state_goes_to_another_number_of_them(
    kind: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    with essp.Records(path, batch_size=6, size=SIDE) as alone:
        whole = taken(alone)
    shares, states = [], []
    for rank in range(2):
        with essp.Records(path, batch_size=3, size=SIDE, rank=rank, world_size=2) as share:
            shares.append(taken(share))
            share.set_epoch(0)
            next(iter(share))
            states.append(share.state_dict())
    assert sorted(shares[0] + shares[1]) == list(range(RECORDS))
    assert [one for pair in zip(*shares, strict=True) for one in pair] == whole
    assert states[0] == states[1]
    with essp.Records(path, batch_size=6, size=SIDE) as alone:
        alone.load_state_dict(states[0])
        assert taken(alone) == whole[6:]


@given(
    before=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    after=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    steps=st.integers(0, RECORDS),
    drop_last=st.booleans(),
)
def test_a_state_goes_to_any_number_of_ranks_and_any_size_of_batches(
    raw: Path, before: tuple[int, int], after: tuple[int, int], steps: int, drop_last: bool
) -> None:
    """Which show the rest of the epoch, but for less than a step of theirs."""
    shown: list[int] = []
    ranks, batch_size = before
    options: dict[str, Any] = {"drop_last": drop_last}
    for rank in range(ranks):
        with essp.Records(raw, batch_size=batch_size, rank=rank, world_size=ranks, **options) as loader:
            batches, state = iter(loader), loader.state_dict()
            for batch in itertools.islice(batches, min(steps, len(loader))):
                shown += taken(iter([batch]))
                state = loader.state_dict()
    ranks, batch_size = after
    assume(state["epoch"] or state["clip"] % ranks == 0)
    for rank in range(ranks):
        with essp.Records(raw, batch_size=batch_size, rank=rank, world_size=ranks, **options) as loader:
            loader.load_state_dict(state)
            shown += taken(loader) if loader.epoch == 0 else []
    assert len(set(shown)) == len(shown)
    left = RECORDS - len(shown)
    assert left < (before[0] if state["epoch"] else ranks * batch_size if drop_last else ranks)


def test_records_stay_on_a_disk(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a data set that fits into no memory: each epoch after the first is read from the disk."""
    with essp.Records(raw, batch_size=8) as loader:
        epochs = [taken(loader) for _ in range(2)]
    ranks = [
        essp.Records(raw, batch_size=8, memory=1, disk="1MiB", disk_folder=tmp_path, rank=rank, world_size=2)
        for rank in range(2)
    ]
    first = [taken(loader) for loader in ranks]
    for name in ("get", "open"):
        monkeypatch.setattr(DirectoryStore, name, lambda *_: pytest.fail("the store was asked"))
    for epoch, shares in zip(epochs, (first, [taken(loader) for loader in ranks]), strict=True):
        assert [one for pair in zip(*shares, strict=True) for one in pair] == epoch
    for loader in ranks:
        loader.close()


def test_a_loop_sees_what_reading_costs_it(raw: Path) -> None:
    with essp.Records(raw, batch_size=8, memory=RECORD_BYTES * 16) as loader:
        for _ in range(2):
            taken(loader)
    reading = loader.reading
    assert reading["pieces"] >= 2 * RECORDS // 8
    assert reading["records"] >= 2 * RECORDS
    assert reading["store_bytes"] == reading["records"] * RECORD_BYTES
    assert min(reading[name] for name in ("read_s", "first_s", "stalled_s", "loop_s")) > 0
    assert reading["disk_bytes"] == 0


@given(loop_s=st.floats(0, 10), read_s=st.floats(0, 10), records=st.integers(1, 10**6))
def test_a_piece_grows_as_far_as_it_is_read_in_time_and_at_least_twofold(
    loop_s: float, read_s: float, records: int
) -> None:
    larger = growth(loop_s, read_s) * records
    assert 2 * records <= larger <= 16 * records
    assert larger == 2 * records or larger * read_s <= records * loop_s * (1 + 1e-9)


def test_ranks_have_as_many_records_each(raw: Path) -> None:
    shares = [taken(essp.Records(raw, rank=rank, world_size=3)) for rank in range(3)]
    assert [len(share) for share in shares] == [RECORDS // 3] * 3
    assert len({*shares[0], *shares[1], *shares[2]}) == RECORDS // 3 * 3


def test_with_replacement_samples_are_drawn_anew(raw: Path) -> None:
    with essp.Records(raw, replacement=True, sample_size=10) as loader:
        drawn = taken(loader)
    assert len(drawn) == RECORDS
    assert len(set(drawn)) < RECORDS
    assert all(len(set(drawn[i : i + 10])) == 10 for i in range(0, RECORDS, 10))
    with essp.Records(raw, replacement=True) as loader:
        assert sorted(taken(loader)) == list(range(RECORDS)), "a sample of all"


def begin_another(loader: essp.Records) -> None:
    next(iter(loader))


def go_back(loader: essp.Records) -> None:
    loader.load_state_dict({**loader.state_dict(), "clip": 0})


@pytest.mark.parametrize(
    ("meanwhile", "first"),
    [
        (lambda loader: loader.close(), (0, 8)),
        (begin_another, (1, 8)),
        (go_back, (0, 0)),
        (lambda loader: loader.set_epoch(5), (5, 0)),
        (lambda loader: loader.set_epoch(0), (0, 0)),
    ],
)
def test_an_iteration_is_over_once_the_loader_is_elsewhere(
    raw: Path, meanwhile: Callable[[essp.Records], None], first: tuple[int, int]
) -> None:
    """And leaves the place of the loader as it is. It waited for ever, or the state was that of neither place."""
    with essp.Records(raw, batch_size=8) as loader:
        batches = iter(loader)
        next(batches)
        meanwhile(loader)
        with pytest.raises(ConfigError, match="this iteration is over"):
            next(batches)
        assert next(batches, None) is None
        state = loader.state_dict()
        assert (state["epoch"], state["clip"]) == first


def test_who_waits_for_records_hears_of_the_end(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that had begun to wait was never woken."""
    reading, go_on = Event(), Event()
    read = Pieces._read

    def late(*arguments: Any) -> Any:
        if arguments[2]:  # not the first piece of the epoch
            reading.set()
            go_on.wait(60)
        return read(*arguments)

    monkeypatch.setattr(Pieces, "_read", late)
    with essp.Records(raw, batch_size=8) as loader, ThreadPoolExecutor(2) as pool:
        batches = iter(loader)
        next(batches)
        assert reading.wait(60)
        waiting = pool.submit(next, batches)
        closing = pool.submit(loader.close)
        with pytest.raises(ConfigError, match="this iteration is over"):
            waiting.result(60)
        go_on.set()
        closing.result(60)


def test_who_waits_for_images_hears_of_the_end(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It got the error of a pool of threads that is no more."""
    making, go_on = Event(), Event()
    shutdown = ThreadPoolExecutor.shutdown

    def late(image: Frames, random: np.random.Generator) -> Frames:
        making.set()
        go_on.wait(60)
        return image

    def and_go_on(pool: ThreadPoolExecutor, wait: bool = True, **options: Any) -> None:
        shutdown(pool, False, **options)
        go_on.set()
        shutdown(pool, wait)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", and_go_on)
    with essp.Records(raw, batch_size=8, transform=late) as loader, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(next, iter(loader))
        assert making.wait(60)
        closing = pool.submit(loader.close)
        with pytest.raises(ConfigError, match="this iteration is over"):
            waiting.result(60)
        closing.result(60)


@pytest.mark.processes
def test_a_fork_begins_an_iteration_of_its_own(raw: Path) -> None:
    with essp.Records(raw, batch_size=8) as loader:
        batches = iter(loader)
        shown = taken(iter([next(batches)]))
        ours, theirs = os.pipe()
        if not (child := os.fork()):
            found = b"nothing"
            try:
                next(batches)
            except ConfigError:
                found = b"over, then %d" % len(taken(loader))
            os.write(theirs, found)
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(ours, 99) == b"over, then 50"
        os.close(ours)
        os.close(theirs)
        assert sorted(shown + taken(batches)) == list(range(RECORDS))


def test_a_transform_cannot_change_the_record(raw: Path) -> None:
    """Which later epochs show again."""

    def darken(frames: Any, generator: np.random.Generator) -> Any:
        frames[:] = 0
        return frames

    with essp.Records(raw, batch_size=8, transform=darken) as loader, pytest.raises(ValueError, match="read-only"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda frames, generator: None, r"transform: it gave array\(None"),
        (lambda frames, generator: 1.5, r"transform: it gave array\(1.5\)"),
        (lambda frames, generator: frames[:, generator.integers(3) :], "the clips of a batch differ"),
        (lambda frames, generator: frames / 2 if generator.integers(2) else frames, "float64 .* and uint8"),
    ],
)
def test_what_a_transform_may_not_give_is_named(raw: Path, transform: Any, message: str) -> None:
    with essp.Records(raw, transform=transform) as loader, pytest.raises(ConfigError, match=message):
        next(iter(loader))


def test_a_transform_may_give_a_tensor_or_any_byte_order(raw: Path) -> None:
    transforms: list[Any] = [
        lambda frames, generator: torch.from_numpy(frames.astype(np.float32)),
        lambda frames, generator: frames.astype(">f4"),
    ]
    for transform in transforms:
        with essp.Records(raw, batch_size=8, transform=transform) as loader:
            assert sorted(taken(loader)) == list(range(RECORDS))


def test_a_transform_sees_each_record_with_its_own_random_numbers(raw: Path) -> None:
    def noisy(frames: Any, generator: np.random.Generator) -> Any:
        return frames.astype(np.float32) + generator.random(dtype=np.float32)

    seen = []
    for size in (8, 50):
        with essp.Records(raw, batch_size=size, transform=noisy) as loader:
            epoch = torch.cat([batch.frames for batch in loader])
            assert epoch.dtype == torch.float32
            seen.append(epoch)
    assert torch.equal(seen[0], seen[1])


def test_the_last_batch_may_be_left_out(raw: Path) -> None:
    with essp.Records(raw, batch_size=8, drop_last=True) as loader:
        assert [len(batch) for batch in loader] == [8] * 6
        assert len(loader) == 6
        assert loader.epoch == 1


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_state_at_the_end_of_an_epoch_goes_on_with_the_next_one(raw: Path, world_size: int) -> None:
    """Also where the last clips are too few for a batch, and are left out."""
    options: dict[str, Any] = {"batch_size": 8, "drop_last": True, "rank": 0, "world_size": world_size}
    with essp.Records(raw, **options) as loader:
        loader.load_state_dict(loader.state_dict() | {"clip": RECORDS})
        assert loader.epoch == 1
        with pytest.raises(ConfigError, match="there is no clip"):
            loader.load_state_dict(loader.state_dict() | {"clip": RECORDS + world_size})


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("others", [1, 3, 4])
def test_a_state_at_the_end_of_an_epoch_goes_to_any_number_of_ranks(raw: Path, ranks: int, others: int) -> None:
    """Which have more records an epoch, or fewer."""
    with essp.Records(raw, batch_size=8, rank=0, world_size=ranks) as loader:
        for _ in loader:
            state = loader.state_dict()
    with essp.Records(raw, batch_size=8, rank=others - 1, world_size=others) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).meta["epoch"] == [1] * 8
        loader.load_state_dict(state | {"epoch": 0, "clip": RECORDS})  # as earlier releases say it
        assert loader.epoch == 1


def test_a_folder_of_the_home_folder_is_there(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with essp.Records(raw, memory=1, disk="1MiB", disk_folder="~/kept") as loader:
        taken(loader)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.processes
def test_a_data_loader_of_torch_takes_it(raw: Path) -> None:
    with essp.Records(raw, batch_size=8) as loader:
        assert len(taken(iter(DataLoader(loader, batch_size=None)))) == RECORDS
        again = pickle.loads(pickle.dumps(loader.map(len)))  # noqa: S301  our own
        assert sum(again) == RECORDS
        again.close()
        assert copy.deepcopy(loader).state_dict() == loader.state_dict()
        with pytest.raises(ConfigError, match="num_workers=0"):
            next(iter(DataLoader(loader, batch_size=None, num_workers=1)))


def damage(path: Path, numbers: Sequence[int]) -> None:
    """Change a byte of each of these records."""
    store = DirectoryStore.from_url(path.as_uri())
    reader = RecordReader(DataSet(store))
    for number in numbers:
        [file] = [file for file in reader.version.files if file.first_key <= number < file.first_key + file.records]
        data = bytearray(store.get(file.key))
        data[int(reader.table["offset"][number]) + 1] ^= 255
        store.put(file.key, bytes(data))


@pytest.mark.parametrize("memory", MEMORIES)
def test_damaged_records_are_left_out_named_and_counted(
    tmp_path: Path, memory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = build(tmp_path, [Record.of_image(image(i), i % 2) for i in range(RECORDS)])
    damage(path, [3, 40])
    with essp.Records(path, batch_size=8, memory=memory) as loader:
        for _ in range(2):
            assert sorted(taken(loader)) == [i for i in range(RECORDS) if i not in (3, 40)]
        assert sorted(name.partition(" in ")[0] for name in loader.damaged) == ["record 3", "record 40"]
    assert len([one for one in caplog.messages if "left out" in one]) == 2
    shares = [taken(essp.Records(path, batch_size=8, rank=rank, world_size=2, memory=memory)) for rank in range(2)]
    assert [len(share) for share in shares] == [25, 25], "ranks take as many steps each"
    assert set(shares[0] + shares[1]) <= set(range(RECORDS)) - {3, 40}


@pytest.mark.parametrize("memory", MEMORIES)
def test_without_one_of_its_files_a_set_comes_in_the_same_order(tmp_path: Path, memory: Any) -> None:
    """It had another order then, which a state of the whole set was taken for, and ranks had different ones."""
    path = build(tmp_path, [Record.of_image(image(i), i % 2) for i in range(RECORDS)])
    options: dict[str, Any] = {"batch_size": 4, "memory": memory}
    with essp.Records(path, **options) as loader:
        epochs = [taken(loader) for _ in range(2)]
        loader.set_epoch(1)
        next(iter(loader))
        state = loader.state_dict()
    with essp.Records(path, rank=0, world_size=2, **options) as loader:
        share = taken(loader)
    file = DataSet(DirectoryStore.from_url(path.as_uri())).version()[1].files[1]
    (path / file.key).unlink()
    gone = range(file.first_key, file.first_key + file.records)
    with essp.Records(path, **options) as loader:
        assert list(loader.damaged) == [file.key]
        assert [taken(loader) for _ in range(2)] == [[one for one in epoch if one not in gone] for epoch in epochs]
        loader.load_state_dict(state)
        assert taken(loader) == [one for one in epochs[1][4:] if one not in gone]
    with essp.Records(path, rank=0, world_size=2, **options) as loader:
        pairs = list(zip(taken(loader), share, strict=True))
    assert all(shown == written for shown, written in pairs if written not in gone)
    assert not {shown for shown, _ in pairs} & set(gone)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", ["raw", "files"])
def test_ranks_take_as_many_steps_where_nothing_of_a_batch_can_be_read(tmp_path: Path, kind: str, memory: Any) -> None:
    """They ended, or had fewer batches."""
    shares: list[list[int]] = []
    options: dict[str, Any] = {"batch_size": 2, "size": SIDE, "memory": memory, "world_size": 2}
    for bad in (range(0), [0, 1, 2, 7, 8, 9, 10, 11, 22, 23, 24]):
        broken = {shares[0][place] for place in bad}
        path = tmp_path / str(len(shares))
        if kind == "raw":
            build(path, [Record.of_image(image(i), i % 2) for i in range(RECORDS)])
            damage(path, sorted(broken))
        else:
            build(path, [Record(b"no image" if i in broken else jpeg(image(i, 8), 95), i % 2) for i in range(RECORDS)])
        with essp.Records(path, rank=0, **options) as loader:
            batches = list(loader)
            assert len(batches) == len(loader) == 13
            state = loader.state_dict() | {"epoch": 0, "clip": 2 * 22}
            shares.append(taken(iter(batches)))
    assert set(shares[1]) == set(shares[0]) - broken
    with essp.Records(path, rank=0, **options) as loader:
        loader.load_state_dict(state)
        with pytest.raises(PermanentError, match="rank 0 can decode nothing of epoch 0 from clip 44 on"):
            list(loader)


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_image_that_cannot_be_decoded_is_left_out(tmp_path: Path, drop_last: bool) -> None:
    """And the others of its batch are not."""
    records = [Record(jpeg(image(i, 8), 95) if i != 5 else b"no image", i % 2) for i in range(12)]
    path = build(tmp_path, records)
    with essp.Records(path, batch_size=4, size=SIDE, drop_last=drop_last) as loader:
        assert sorted(taken(loader)) == [i for i in range(12) if i != 5]
        assert list(loader.damaged.values()) == ["it is no image, or a damaged one"]


def test_nothing_but_damage_is_an_error(tmp_path: Path) -> None:
    path = build(tmp_path, [Record(b"no image", 0) for _ in range(4)])
    with essp.Records(path, size=SIDE) as loader, pytest.raises(PermanentError, match="no record of"):
        list(loader)


def test_an_error_of_the_store_is_one_of_the_loop(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with essp.Records(raw) as loader:

        def fails(*_: object) -> None:
            raise OSError("the disk is gone")

        monkeypatch.setattr(RecordReader, "read_into", fails)
        with pytest.raises(OSError, match="the disk is gone"):
            list(loader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: value}, f"{name}: {value!r} is no whole number") for name in ("batch_size", "seed") for value in ODD),
        ({"batch_size": 60, "drop_last": True}, "drop_last: an epoch has 50 clips, which are no whole batch of 60"),
        *(({"size": value}, f"size: {value!r} is no whole number") for value in (0, -4, 2**40, True)),
        ({"size": (4, 0)}, "size: 0 is no whole number from 1 to 32767"),
        ({"size": (4, 4, 3)}, r"size: \(4, 4, 3\) is neither a side nor a height and a width"),
        ({"replacement": True, "sample_size": 0}, "sample_size: 0 is no whole number from 1 on"),
        ({"replacement": True, "sample_size": -5}, "sample_size: -5 is no whole number from 1 on"),
        ({"sample_size": 5}, "sample_size: only has a meaning with replacement=True"),
        ({"memory": "much"}, "memory: 'much' is not a size"),
        ({"disk": "much"}, "disk: 'much' is not a size"),
        ({"disk": 0}, "disk=0: give bytes"),
        ({"disk_folder": "/tmp"}, "disk_folder: only has a meaning with disk"),
        ({"disk": "1MiB", "disk_folder": "/proc/here"}, "/proc/here: records cannot be kept there"),
        ({"rank": 1, "world_size": 51}, "has 50 records, too few for 51 ranks"),
        ({"device": "moon"}, "device: 'moon' is none"),
    ],
)
def test_wrong_arguments_are_named(raw: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        essp.Records(raw, **options)


def test_several_sizes_need_one_to_scale_to(mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="size: the images have several sizes"):
        essp.Records(mixed)
    with pytest.raises(NotFound, match="holds no records; make them with `essp records build`"):
        essp.Records(tmp_path)


def test_a_state_has_whole_numbers(raw: Path) -> None:
    loader = essp.Records(raw)
    good = loader.state_dict()
    for name in good:
        for value in (1.5, 8.0, "1", None, b"1", float("nan")):
            with pytest.raises(ConfigError, match="is no state of a loader"):
                loader.load_state_dict({**good, name: value})  # type: ignore[dict-item]
    loader.load_state_dict({name: torch.tensor(value) for name, value in good.items()})  # type: ignore[misc]
    assert loader.state_dict() == good


def test_the_state_of_other_records_is_refused(raw: Path, mixed: Path) -> None:
    state = essp.Records(raw).state_dict()
    for other in (essp.Records(mixed, size=SIDE), essp.Records(raw, seed=1), essp.Records(raw, replacement=True)):
        with pytest.raises(ConfigError, match="it is of other clips"):
            other.load_state_dict(state)


def test_pictures_are_scaled_until_they_cover(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    done, data = cv2.imencode(".png", wide)
    assert done
    path = build(tmp_path, [Record(data.tobytes(), 0)])
    with essp.Records(path, size=(20, 20)) as loader:
        [batch] = loader
    assert batch.frames.shape == (1, 1, 20, 20, 3)
    assert batch.frames[0, 0, :, 2:-2].min() > 180, "the centre is what stays"
