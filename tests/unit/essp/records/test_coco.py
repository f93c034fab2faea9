"""Boxes of COCO become records; what the annotations say wrongly is named, and costs no more than that."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import essp
from essp.records.build import BuildOptions, Built, build
from essp.records.coco import _reading
from essp.records.sources import SourceOptions, open_source
from essp_common.errors import ConfigError, EsspError
from essp_common.objects.directory import DirectoryStore
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores
from tests.harness.command_line import essp as essp_command
from tests.harness.refused import refused

STORES = Stores(("file:///",))
RAW = BuildOptions("raw")
BOXES = SourceOptions()
SIZE = (12, 16)
PIXELS = {
    f"{number:012}.png": np.random.default_rng(number).integers(0, 256, (*SIZE, 3), np.uint8) for number in (1, 2)
}
Content = dict[str, list[Any]]


def content() -> Content:
    return {
        "images": [
            {"id": number, "file_name": name, "height": SIZE[0], "width": SIZE[1]}
            for number, name in enumerate(PIXELS, 1)
        ],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "zebra"}, {"id": 90, "name": "cat"}],
        "annotations": [
            annotation(10, 1, 7, [2, 3, 5, 4]),
            annotation(11, 1, 90, [0.5, 0.5, 9.25, 8.0]),
            annotation(12, 2, 7, [10, 6, 100, 100]),
        ],
    }


def annotation(key: int, image: int, category: int, bbox: Any, **more: Any) -> dict[str, Any]:
    return {"id": key, "image_id": image, "category_id": category, "bbox": bbox, "segmentation": [[1, 2, 3]], **more}


def laid_out(path: Path, changed: Content) -> Path:
    """As COCO has them: `annotations/instances_small.json` and `small/`."""
    (path / "annotations").mkdir(parents=True)
    (path / "small").mkdir()
    for name, pixels in PIXELS.items():
        cv2.imwrite(str(path / "small" / name), pixels[..., ::-1])
    file = path / "annotations" / "instances_small.json"
    file.write_text(json.dumps(changed))
    return file


def made(file: Path, out: Path, options: BuildOptions = RAW, source: SourceOptions = BOXES) -> Built:
    with open_source(file.as_uri(), STORES, source) as found:
        return build(found, DataSet(DirectoryStore.from_url(out.as_uri())), options)


def shown(out: Path) -> list[tuple[str, NDArray[np.uint8]]]:
    """Category and pixels of each record, in the order of the file."""
    reader = RecordReader(DataSet(DirectoryStore.from_url(out.as_uri())))
    found = []
    for places, buffers in reader.read(np.arange(len(reader))):
        for place, data in zip(places.tolist(), buffers, strict=True):
            entry = reader.table[place]
            shape = (int(entry["height"]), int(entry["width"]), int(entry["channels"]))
            found.append((reader.classes[entry["label"]], np.frombuffer(data, np.uint8).reshape(shape)))
    return found


def test_each_box_is_a_record(tmp_path: Path) -> None:
    built = made(laid_out(tmp_path, content()), tmp_path / "out")
    first, second = PIXELS.values()
    wanted = [("dog", first[3:7, 2:7]), ("cat", first[0:9, 0:10]), ("dog", second[6:12, 10:16])]
    for (label, pixels), (name, cut) in zip(shown(tmp_path / "out"), wanted, strict=True):
        assert label == name
        assert np.array_equal(pixels, cut)
    assert built.classes == ("zebra", "dog", "cat")
    assert built.per_class == {"dog": 2, "cat": 1}
    assert not built.problems


def test_or_each_image_with_the_category_of_its_largest_object(tmp_path: Path) -> None:
    changed = content()
    changed["images"].append({"id": 3, "file_name": "nothing_on_it.png"})
    file = laid_out(tmp_path, changed)
    made(file, tmp_path / "out", source=SourceOptions(whole=True))
    for (label, pixels), name, image in zip(shown(tmp_path / "out"), ("cat", "dog"), PIXELS.values(), strict=True):
        assert label == name
        assert np.array_equal(pixels, image)
    kept = made(file, tmp_path / "kept", BuildOptions(), SourceOptions(whole=True))
    assert kept.bytes == sum(path.stat().st_size for path in (tmp_path / "small").iterdir())


def test_a_box_is_stored_as_jpeg_unless_numbers_are_asked_for(tmp_path: Path) -> None:
    file = laid_out(tmp_path, content())
    made(file, tmp_path / "out", BuildOptions(size=(8, 8)))
    with essp.Records(tmp_path / "out", size=8) as loader:
        [batch] = loader
    assert batch.frames.shape == (3, 1, 8, 8, 3)
    with refused("--encode", "conflict"):
        made(file, tmp_path / "kept", BuildOptions("keep"))


def test_a_file_is_read_once_for_all_of_its_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = laid_out(tmp_path, content())
    read: list[str] = []
    get = DirectoryStore.get

    def counting(store: DirectoryStore, key: str, start: int = 0, length: int | None = None) -> bytes:
        read.append(key)
        return get(store, key, start, length)

    monkeypatch.setattr(DirectoryStore, "get", counting)
    made(file, tmp_path / "out")
    assert [key for key in read if key.endswith(".png")] == list(PIXELS)


WRONG: dict[str, tuple[dict[str, Any] | list[int], str]] = {
    "box 20": (annotation(20, 1, 7, [3, 3, 0, 5]), "has no area"),
    "box 21": (annotation(21, 1, 7, [3, 3, 5, -1]), "has no area"),
    "box 22": (annotation(22, 1, 7, [400, 3, 5, 5]), "outside of its image of 12x16"),
    "box 23": (annotation(23, 9, 7, [3, 3, 5, 5]), "there is no image 9"),
    "box 24": (annotation(24, 1, 8, [3, 3, 5, 5]), "there is no category 8"),
    "box 25": (annotation(25, 1, 7, [3, 3, 5]), "is not a box"),
    "box 26": (annotation(26, 1, 7, [3, 3, 1e300, 5]), "is not a box"),
    "box 31": (annotation(31, 1, 7, [0.1, 0.1, 0.5, 0.9]), "is smaller than a pixel; coordinates are pixels"),
    "box 30": (annotation(30, 1, 7, [True, 3, 3, 5]), "is not a box"),
    "box 27": (annotation(27, 1, 7, [float("nan"), 3, 3, 5]), "is not a box"),
    "box 28": (annotation(28, [1], 7, [3, 3, 3, 5]), "is not a whole number"),  # type: ignore[arg-type]
    "box 29": ({"id": 29, "image_id": 1, "category_id": 7}, "lacks 'bbox'"),
    "annotations[15]": ([1, 2], "is not an object"),
}


def test_what_is_wrong_is_named_and_left_out(tmp_path: Path) -> None:
    changed = content()
    changed["annotations"] += [entry for entry, _ in WRONG.values()]
    changed["annotations"] += [annotation(40, 1, 7, [1, 1, 9, 9], iscrowd=1), annotation(41, 5, 7, [1, 1, 9, 9])]
    changed["images"] += [
        {"id": 5, "file_name": "absent.png"},
        {"id": 5, "file_name": "again.png"},
        {"id": 6},
        {"id": 7, "file_name": "../annotations/instances_small.json"},
        {"id": 8, "file_name": next(iter(PIXELS)), "height": 99, "width": 99},
    ]
    changed["annotations"] += [annotation(42, 7, 7, [1, 1, 9, 9]), annotation(43, 8, 7, [1, 1, 9, 9])]
    file = laid_out(tmp_path, changed)
    built = made(file, tmp_path / "out")
    assert built.records == 3
    expected = {name: why for name, (_, why) in WRONG.items()} | {
        "images[3]": "the id 5 is already used by absent.png",
        "images[4]": "lacks 'file_name'",
        "absent.png box 41": "there is no file",
        "../annotations/instances_small.json box 42": "",
        "000000000001.png box 43": "its image has 12x16 pixels",
    }
    assert built.problems.keys() == expected.keys()
    for name, why in expected.items():
        assert why in built.problems[name]
    said = essp_command("records", "build", str(file), "--out", str(tmp_path / "x"), "--dry-run")
    assert "boxes in 5 images; 1 box of crowds left out; 6 boxes, 3 labels, 15 left out" in said.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.pop("categories"), "lacks the list 'categories'"),
        (lambda found: found.update(images={}), "lacks the list 'images'"),
        (lambda found: found.update(annotations=[]), "has no box that can be used"),
        (lambda found: found["categories"].append({"id": 7, "name": "cow"}), r"categories\[3\].* comes twice"),
        (lambda found: found["categories"].append({"id": "7"}), r"categories\[3\] has no id and name"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_is_refused(
    change: Callable[[Content], object], said: str, tmp_path: Path
) -> None:
    changed = content()
    change(changed)
    with pytest.raises(ConfigError, match=said):
        made(laid_out(tmp_path, changed), tmp_path / "out")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"7", b"{", b"\xff\xfe{", b"[" * 100_000, b'{"images": ' + b"1" * 5000 + b"}"]
)
def test_what_is_no_json_of_coco_is_said_to_be_none(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "instances.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"instances.json (is not a JSON file|lacks the list)"):
        made(tmp_path / "instances.json", tmp_path / "out")


def test_images_are_looked_for_where_coco_has_them_and_where_one_says(tmp_path: Path) -> None:
    file = laid_out(tmp_path / "a", content())
    archive = tmp_path / "small.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for name in PIXELS:
            opened.write(tmp_path / "a" / "small" / name, f"small/{name}")
    (tmp_path / "a" / "small").rename(tmp_path / "elsewhere")
    with refused("--images", "not_found"):
        made(file, tmp_path / "out")
    for place in (tmp_path / "elsewhere", archive):
        out = tmp_path / f"of_{place.name}"
        assert made(file, out, source=SourceOptions(images=place.as_uri())).records == 3
    with zipfile.ZipFile(archive, "w") as opened:
        opened.write(tmp_path / "elsewhere" / next(iter(PIXELS)), next(iter(PIXELS)))
    left_out = made(file, tmp_path / "less", source=SourceOptions(images=archive.as_uri())).problems
    assert list(left_out.values()) == ["the archive of images has no such file"]
    (tmp_path / "images").mkdir()
    with refused("--images", "conflict"):
        made(tmp_path / "images", tmp_path / "none", source=SourceOptions(whole=True))


def test_beside_the_root_of_a_bucket_no_other_bucket_is_looked_into(tmp_path: Path) -> None:
    asked: list[str] = []

    class Asked(Stores):
        def under(self, uri: str, videos: bool = False) -> DirectoryStore:
            asked.append(uri)
            return DirectoryStore(str(tmp_path))

    with refused("--images", "not_found"):
        _reading("s3://bucket/instances_small.json", Asked(()), "", ["1.png"], ExitStack())
    assert asked == ["s3://bucket/small", "s3://bucket"]


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(("id", "bbox", "name")), inner),
    max_leaves=5,
)
entries = st.dictionaries(
    st.sampled_from(("id", "file_name", "name", "image_id", "category_id", "bbox", "iscrowd", "height", "width")),
    odd | st.integers(1, 3) | st.lists(st.integers(-20, 20), min_size=4, max_size=4),
)


@given(st.fixed_dictionaries({name: st.lists(odd | entries, max_size=4) for name in content()}))
def test_whatever_the_lists_hold_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, lists: Content
) -> None:
    changed = {name: [*entries, *lists[name]] for name, entries in content().items()}
    folder = tmp_path_factory.mktemp("odd")
    try:
        assert made(laid_out(folder, changed), folder / "out").records >= 1
    except EsspError:
        assert not (folder / "out" / "versions").exists()


@pytest.mark.parametrize("name", ["\ud800", "a\x00b", "a\nb", " "])
def test_names_that_nobody_can_read_are_none(name: str, tmp_path: Path) -> None:
    changed = content()
    changed["images"][0]["file_name"] = name
    built = made(laid_out(tmp_path / "a", changed), tmp_path / "out")
    assert built.problems["images[0]"].endswith("is not a text")
    changed = content()
    changed["categories"][0]["name"] = name
    with pytest.raises(ConfigError, match=r"categories\[0\] has no id and name: .* is not a text"):
        made(laid_out(tmp_path / "b", changed), tmp_path / "none")


@pytest.mark.parametrize("crowd", ["x", "0", 2, 0.5, [], {}])
def test_what_is_no_mark_of_a_crowd_is_named(crowd: object, tmp_path: Path) -> None:
    changed = content()
    changed["annotations"][0]["iscrowd"] = crowd
    assert "and not 0 or 1" in made(laid_out(tmp_path, changed), tmp_path / "out").problems["box 10"]


def test_a_name_that_is_there_twice_in_an_entry_is_refused(tmp_path: Path) -> None:
    file = laid_out(tmp_path, content())
    file.write_text(file.read_text().replace('"image_id": 1,', '"image_id": 2, "image_id": 1,'))
    with pytest.raises(ConfigError, match="is not a JSON file: 'image_id' is there twice in one object"):
        made(file, tmp_path / "out")


def test_of_several_images_of_a_name_in_an_archive_none_is_guessed(tmp_path: Path) -> None:
    first, second = PIXELS
    changed = content()
    changed["images"][0]["file_name"] = f"val/{first}"
    file, archive = laid_out(tmp_path, changed), tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.write(tmp_path / "small" / first, f"data/val/{first}")
        opened.write(tmp_path / "small" / second, f"data/train/{first}")
        for folder in ("train", "val"):
            opened.write(tmp_path / "small" / second, f"data/{folder}/{second}")
    built = made(file, tmp_path / "out", source=SourceOptions(images=archive.as_uri()))
    pixels = next(iter(PIXELS.values()))
    assert [np.array_equal(cut, pixels[3:7, 2:7]) for _, cut in shown(tmp_path / "out")] == [True, False]
    assert list(built.problems) == [f"{second} box 12"]
    assert "has several files of this name: data/train/" in built.problems[f"{second} box 12"]
