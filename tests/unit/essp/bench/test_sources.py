"""Each kind of source gives its samples, names what is damaged, and is read through any store."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import essp
from essp.bench.places import Extent, Place, distinct, once_each
from essp.bench.sources import Clips, ClipTask, Loaded, Shape, Source, open_source
from essp_common.errors import ConfigError, EsspError, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectStore
from essp_common.objects.throttled import Device, Throttle, ThrottledStore
from essp_common.wiring import Stores
from tests.unit.essp.bench.conftest import CLASSES, DAMAGED

SHAPE = Shape(32, frames=4, stride=2)
NAMES = ("images", "images.csv", "catalog.parquet", "records")


def opened(root: Path, name: str, shape: Shape = SHAPE) -> Source:
    return open_source(f"file://{root}/{name}", Stores(("file:///",)), shape)


def unslowed(store: ObjectStore) -> ObjectStore:
    """Another store with the same objects, and no local paths."""
    return ThrottledStore(store, Device(Throttle(1e15)))


def loaded(source: Source) -> list[Loaded]:
    return [task.load() for task in source.tasks(np.arange(len(source)), 0)]


@pytest.mark.parametrize(
    ("name", "unit", "count", "shape"),
    [
        ("images", "image", 12, (32, 32, 3)),
        ("images.csv", "image", 12, (32, 32, 3)),
        ("catalog.parquet", "clip", 4, (4, 32, 32, 3)),
        ("records", "record", 40, (32, 32, 3)),
    ],
)
def test_all_samples_of_a_source_are_loaded(
    root: Path, name: str, unit: str, count: int, shape: tuple[int, ...]
) -> None:
    source = opened(root, name)
    assert (source.unit, len(source), source.classes) == (unit, count, CLASSES)
    found = loaded(source)
    damaged = [one for each in found for one in each.damaged]
    assert [one.name.endswith(DAMAGED) for one in damaged] == [True] * (unit == "image")
    samples = [sample for each in found for sample in each.samples]
    assert len(samples) + len(damaged) == count
    assert {sample.frames.shape for sample in samples} == {shape}
    assert sorted(sample.label for sample in samples)[:: len(samples) - 1] == [0, 1]
    assert sum(each.good for each in found) == len(samples)
    assert all(each.bytes > 0 for each in found)


@pytest.mark.parametrize("name", NAMES)
def test_a_source_is_the_same_through_another_store(root: Path, name: str) -> None:
    plain, other = opened(root, name), opened(root, name).through(unslowed)
    assert all(place.store.local_path(place.key) is None for place in other.objects())
    assert len(other.objects()) == len(plain.objects())
    for mine, its in zip(loaded(plain), loaded(other), strict=True):
        assert [one.label for one in mine.samples] == [one.label for one in its.samples]
        assert all(np.array_equal(a.frames, b.frames) for a, b in zip(mine.samples, its.samples, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_reading_alone_reads_the_bytes_of_the_extents(root: Path, name: str) -> None:
    source = opened(root, name)
    for task in source.tasks(np.arange(len(source)), 3):
        read = task.read()
        assert (read.bytes, read.count, read.samples) == (sum(len(e.read()) for e in task.extents()), task.size, ())


def test_clips_are_frame_exact_and_begin_anywhere_that_leaves_room(root: Path) -> None:
    source = opened(root, "catalog.parquet", SHAPE)
    starts = set()
    for seed in range(20):
        for task in source.tasks(np.arange(4), seed):
            assert isinstance(task, ClipTask)
            starts.add(task.start)
            if not seed:
                (sample,) = task.load().samples
                expected = essp.decode(task.row, task.start, frames=4, stride=2, size=(32, 32))
                assert np.array_equal(sample.frames, expected)
    assert starts <= set(range(18))
    assert len(starts) > 10


def test_a_clips_bytes_lie_between_the_keyframes_around_it(root: Path) -> None:
    source = opened(root, "catalog.parquet", Shape(64, frames=2, stride=1))
    assert isinstance(source, Clips)
    shares = {
        task.load().bytes / source.rows[0].size_bytes
        for seed in range(30)
        for task in source.tasks(np.zeros(1, int), seed)
    }
    assert max(shares) < 0.8
    long = opened(root, "catalog.parquet", Shape(64, frames=24, stride=1))
    assert long.tasks(np.zeros(1, int), 0)[0].load().bytes > 0.8 * source.rows[0].size_bytes


def test_records_of_a_piece_are_read_in_the_order_of_the_file(root: Path) -> None:
    source = opened(root, "records")
    order = np.random.default_rng(0).permutation(40)
    tasks = source.tasks(order, 0)
    assert sum(task.size for task in tasks) == 40
    values = [int(sample.frames[0, 0, 0]) for task in tasks for sample in task.load().samples]
    assert values == sorted(values) == list(range(40))


def test_a_list_may_name_images_beside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/list.csv").write_text("path\n../a.png\n")
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((8, 8, 3), np.uint8))
    (found,) = loaded(opened(tmp_path, "lists/list.csv"))
    assert (found.good, len(found.damaged)) == (1, 0)


def test_what_is_gone_is_left_out(root: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\nnowhere.jpg\n")
    source = opened(tmp_path, "list.csv")
    for found in (source.tasks(np.zeros(1, int), 0)[0].load(), source.tasks(np.zeros(1, int), 0)[0].read()):
        assert (found.good, len(found.damaged)) == (0, 1)
    assert source.classes == ()


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("absent", None, NotFound, r"no files at .*absent; give a folder of images \(\.bmp, .*, a \.csv file"),
        ("list.csv", "file,label\na.jpg,x\n", ConfigError, "lacks the column 'path'"),
        ("list.csv", "path,label\n", ConfigError, "has no images"),
        ("list.csv", "path,label\na.jpg,one, two\n", ConfigError, "line 2 has 3 fields, and there are 2 columns"),
        ("list.csv", "path\n\xff", ConfigError, "not a CSV file in UTF-8"),
        ("absent.csv", None, NotFound, "absent.csv"),
        ("absent.parquet", None, NotFound, "absent.parquet"),
    ],
)
def test_what_is_no_source_is_named(
    tmp_path: Path, name: str, content: str | None, error: type[EsspError], message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(error, match=message):
        opened(tmp_path, name)


def test_a_folder_of_other_things_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="holds no images and no records; give a folder of images"):
        opened(tmp_path, "")


def test_a_store_is_wrapped_once(tmp_path: Path) -> None:
    made: list[ObjectStore] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        made.append(store)
        return unslowed(store)

    store = DirectoryStore(str(tmp_path))
    wrapped = once_each(wrap)
    assert wrapped(store) is wrapped(store)
    assert made == [store]
    places = [Place(store, "a"), Place(store, "b"), Place(store, "a")]
    assert distinct(places) == places[:2]


def test_an_extent_is_part_of_an_object(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    place = Place(DirectoryStore(str(tmp_path)), "a")
    assert (Extent(place).read(), Extent(place, 3, 4).read()) == (b"0123456789", b"3456")
