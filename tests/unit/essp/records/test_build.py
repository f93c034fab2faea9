"""Records from what people have: every layout gives its images with their labels; what is damaged is named."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tarfile
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from numpy.typing import NDArray

import essp
from essp.records import build as build_module
from essp.records import images
from essp.records.build import BuildOptions, Built, Progress, build
from essp.records.items import Item, Source
from essp.records.sources import SourceOptions, open_source
from essp_common.errors import ConfigError, EsspError, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores
from tests.harness.command_line import essp as essp_command
from tests.harness.refused import Refusal, refused

STORES = Stores(("file:///",))
KEPT = BuildOptions()
NAMES = {f"{label}/{number}.png": (label, number) for label in ("cat", "dog") for number in range(3)}
"""Path -> its class, and the grey of its pixels."""


def picture(number: int) -> bytes:
    done, data = cv2.imencode(".png", np.full((6, 8, 3), 40 * number, np.uint8))
    assert done
    return data.tobytes()


def folder(path: Path) -> Path:
    for name, (_, number) in NAMES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(picture(number))
    (path / "notes.txt").write_text("not an image")
    return path


def csv_file(path: Path) -> Path:
    folder(path / "images")
    with (path / "list.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows([f"images/{name}", label] for name, (label, _) in NAMES.items())
    return path / "list.csv"


def csv_file_of_windows(path: Path) -> Path:
    text = csv_file(path).read_text().replace("/", "\\").replace("path,label", "file,class")
    (path / "list.csv").write_text(text)
    return path / "list.csv"


def csv_file_elsewhere(path: Path) -> Path:
    lists = path / "lists"
    lists.mkdir()
    text = csv_file(path).read_text().replace("images/", "../images/")
    (lists / "list.csv").write_text(text)
    return lists / "list.csv"


def zip_file(path: Path) -> Path:
    with zipfile.ZipFile(path / "images.zip", "w") as archive:
        for name, (_, number) in NAMES.items():
            archive.writestr(name, picture(number))
    return path / "images.zip"


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def tar_file(path: Path) -> Path:
    return tar_of(path / "images.tar", {name: picture(number) for name, (_, number) in NAMES.items()})


def webdataset(path: Path) -> Path:
    files: dict[str, bytes] = {}
    for place, (label, number) in enumerate(NAMES.values()):
        files |= {f"{place:06}.png": picture(number), f"{place:06}.cls": label.encode()}
    return tar_of(path / "shard.tar.gz", files)


def made(source: Path, out: Path, options: BuildOptions = KEPT, within: str = "") -> Built:
    with open_source(source.as_uri(), STORES, SourceOptions(within)) as found:
        return build(found, DataSet(DirectoryStore.from_url(out.as_uri())), options)


def shown(out: Path) -> list[tuple[str, int]]:
    """Class and grey of each record."""
    with essp.Records(out, size=(6, 8)) as loader:
        return sorted(
            (name, round(float(frames.double().mean()) / 40))
            for batch in loader
            for name, frames in zip(batch.meta["class_name"], batch.frames, strict=True)
        )


@pytest.mark.parametrize(
    "lay_out", [folder, csv_file, csv_file_of_windows, csv_file_elsewhere, zip_file, tar_file, webdataset]
)
@pytest.mark.parametrize("encode", ["keep", "raw", "jpeg"])
def test_images_come_with_their_labels_whatever_the_layout(lay_out, encode, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    built = made(lay_out(tmp_path), tmp_path / "out", BuildOptions(encode))
    assert shown(tmp_path / "out") == sorted(NAMES.values())
    assert built.per_class == {"cat": 3, "dog": 3}
    assert not built.problems


def test_cifar_s_own_archive(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 3, 32, 32), np.uint8)
    records = b"".join(bytes([number % 2]) + image.tobytes() for number, image in enumerate(pixels))
    files = {"batches.meta.txt": b"big plane\r\ncar\n\n", "data_batch_1.bin": records, "test_batch.bin": records}
    archive = tar_of(tmp_path / "cifar.tar.gz", {f"cifar-10-batches-bin/{name}": data for name, data in files.items()})
    assert made(archive, tmp_path / "out").classes == ("big plane", "car")
    with essp.Records(tmp_path / "out", batch_size=4) as loader:
        [batch] = loader
    order = batch.meta["record"]
    assert (batch.frames[:, 0].numpy() == pixels[order].transpose(0, 2, 3, 1)).all()
    assert batch.labels.tolist() == [number % 2 for number in order]
    files["data_batch_1.bin"] = records[:-1]
    tar_of(tmp_path / "short.tar", files)
    with pytest.raises(ConfigError, match=r"data_batch_1.bin is damaged"):
        made(tmp_path / "short.tar", tmp_path / "out")


def test_the_archive_of_cifar_100_gives_its_fine_labels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 3, 32, 32), np.uint8)
    records = b"".join(bytes([9, number]) + image.tobytes() for number, image in enumerate(pixels))
    files = {"coarse_label_names.txt": b"all\n", "fine_label_names.txt": b"apple\nbaby\nbear\n", "test.bin": b"x"}
    archive = tar_of(
        tmp_path / "cifar.tar.gz", {f"cifar-100-binary/{n}": d for n, d in {**files, "train.bin": records}.items()}
    )
    assert made(archive, tmp_path / "out").per_class == {"apple": 1, "baby": 1, "bear": 1}
    with essp.Records(tmp_path / "out", batch_size=3) as loader:
        [batch] = loader
    assert (batch.frames[:, 0].numpy() == pixels[batch.meta["record"]].transpose(0, 2, 3, 1)).all()


@pytest.mark.parametrize(
    ("name", "files"),
    [("cifar-10", ("data_batch_1", "batches.meta", "test_batch")), ("cifar-100", ("train", "test", "meta"))],
)
def test_pickles_are_not_loaded(name: str, files: tuple[str, ...], tmp_path: Path) -> None:
    hostile = b"cos\nsystem\n(S'touch " + str(tmp_path / "harm").encode() + b"'\ntR."
    archive = tar_of(tmp_path / f"{name}-python.tar.gz", {f"{name}-py/{one}": hostile for one in files})
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    for source in (archive, tmp_path / f"{name}-py"):
        with pytest.raises(ConfigError, match=f"reading a pickle runs what it says; use {name}-binary.tar.gz"):
            made(source, tmp_path / "out")
    assert not (tmp_path / "harm").exists()


def test_what_cannot_be_decoded_is_named_and_left_out(tmp_path: Path) -> None:
    source = folder(tmp_path / "images")
    (source / "cat" / "1.png").write_bytes(picture(1)[:40])
    (source / "dog" / "empty.jpg").touch()
    built = made(source, tmp_path / "out")
    assert sorted(built.problems) == ["cat/1.png", "dog/empty.jpg"]
    assert built.problems["dog/empty.jpg"] == "the file is empty"
    assert built.records == 5
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("cat/0.png", picture(0))
        archive.writestr("cat/1.png", picture(1))
    data = bytearray((tmp_path / "bad.zip").read_bytes())
    data[data.index(picture(0)) + 60] ^= 255
    (tmp_path / "bad.zip").write_bytes(data)
    assert list(made(tmp_path / "bad.zip", tmp_path / "zip").problems) == ["cat/0.png"]


def test_an_unexpected_error_costs_the_image_that_it_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decoded(data: bytes) -> NDArray[np.uint8]:
        if data == picture(2):
            raise KeyError("codec")
        return images.decoded(data)

    def unreadable() -> bytes:
        raise RecursionError("too deep")

    monkeypatch.setattr(build_module, "decoded", decoded)
    with open_source(folder(tmp_path / "images").as_uri(), STORES) as source:
        first, *others = source.items
        source = replace(source, items=(replace(first, read=unreadable), *others))
        built = build(source, DataSet(DirectoryStore(str(tmp_path / "out"))), BuildOptions("raw"))
    assert built.problems == {
        "cat/0.png": "RecursionError: too deep",
        "cat/2.png": "KeyError: 'codec'",
        "dog/2.png": "KeyError: 'codec'",
    }
    assert built.records == 3
    assert caplog.text.count("Traceback (most recent call last)") == 3


def test_a_slow_source_shows_progress_after_a_few_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fast ones, tasks have many."""
    now_s = 0.0
    read = 0
    seen: list[int] = []

    def slowly() -> bytes:
        nonlocal now_s, read
        now_s, read = now_s + 0.06, read + 1
        return picture(1)

    monkeypatch.setattr(build_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    source = Source("slow", tuple(Item(f"{number}.png", "a", partial(slowly)) for number in range(200)))
    out = DataSet(DirectoryStore(str(tmp_path / "out")))
    build(source, out, BuildOptions("raw", workers=1), lambda _: seen.append(read))
    assert seen[0] <= 2 * 4, "two for each task that may wait"


def test_if_none_can_be_used_that_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(ConfigError, match=r"all 1 images are unusable; the first one, a.png"):
        made(tmp_path, tmp_path / "out")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.txt").touch()
    with pytest.raises(ConfigError, match=r"holds no images \(1 .txt\)"):
        made(tmp_path / "b", tmp_path / "out")
    with pytest.raises(NotFound, match=r"there are no files at .*/c; give a folder"):
        made(tmp_path / "c", tmp_path / "out")
    (tmp_path / "broken.zip").write_text("no archive")
    with pytest.raises(ConfigError, match="is not an archive that can be read"):
        made(tmp_path / "broken.zip", tmp_path / "out")
    (tmp_path / "list.csv").write_text("picture,label\n")
    with pytest.raises(ConfigError, match="lacks the column 'path'; it needs path and label, and has: picture, label"):
        made(tmp_path / "list.csv", tmp_path / "out")


@pytest.mark.parametrize("name", ["list.jsonl", "list.xlsx", "list.txt", "list.parquet", "list.json"])
def test_lists_of_other_kinds_are_refused_with_the_one_that_is_read(tmp_path: Path, name: str) -> None:
    list_ = tmp_path / name
    list_.write_text('[{"path": "a.png", "label": "cat"}]')
    if name.endswith(".parquet"):
        parquet.write_table(pa.table({"path": ["a.png"], "label": ["cat"]}), list_)
    with pytest.raises(ConfigError, match=rf"{name}.*a CSV file with the columns path and label"):
        made(list_, tmp_path / "out")


def test_folders_of_splits_are_told_apart_in_a_list_of_windows(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label\ntrain\\cat\\0.png,cat\ntest\\cat\\1.png,cat\n")
    with refused("--within", "missing"):
        made(tmp_path / "list.csv", tmp_path / "out")


@pytest.mark.parametrize("text", [b"path,label\n\xff\xfe.png,a\n", b'path,label\n"a.png,a\n', b"", b"\x00\x01"])
def test_a_list_that_is_no_csv_is_said_to_be_none(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(text)
    with pytest.raises(ConfigError, match=r"list.csv (is not a CSV file|lacks the column)"):
        made(tmp_path / "list.csv", tmp_path / "out")


def test_a_compressed_archive_that_is_damaged_is_said_to_be(tmp_path: Path) -> None:
    whole = webdataset(tmp_path).read_bytes()
    for place in range(12, len(whole), max(1, len(whole) // 40)):
        (tmp_path / "bad.tar.gz").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        out = tmp_path / f"out{place}"
        try:
            made(tmp_path / "bad.tar.gz", out)
        except EsspError:
            assert not (out / "versions").exists()


def test_training_and_test_images_are_not_mixed(tmp_path: Path) -> None:
    for split in ("train", "test"):
        folder(tmp_path / "both" / split)
    with refused("--within", "missing"):
        made(tmp_path / "both", tmp_path / "out")
    assert made(tmp_path / "both", tmp_path / "out", within="train").records == len(NAMES)
    with refused("--within", "unknown"):
        made(tmp_path / "both", tmp_path / "out", within="trian")


@pytest.mark.parametrize("name", ["trainval", "dev", "Validate"])
def test_splits_are_told_by_the_names_that_catalogs_know(tmp_path: Path, name: str) -> None:
    for split in (name, "test"):
        folder(tmp_path / "both" / split)
    with refused("--within", "missing"):
        made(tmp_path / "both", tmp_path / "out")


@pytest.mark.parametrize("column", ["split", "subset"])
def test_a_list_of_training_and_test_images_is_refused(tmp_path: Path, column: str) -> None:
    source = folder(tmp_path / "images")
    (source / "list.csv").write_text(f"path,label,{column}\ncat/0.png,cat,val\ndog/0.png,dog,test\n")
    with pytest.raises(ConfigError, match=f"its column {column} has 'test' and 'validation'; write a file for each"):
        made(source / "list.csv", tmp_path / "out")
    (source / "list.csv").write_text(f"path;label;{column}\ncat/0.png;train;val\ndog/0.png;test;validation\n")
    assert made(source / "list.csv", tmp_path / "out").records == 2


def test_of_images_with_classes_those_without_are_left_out(tmp_path: Path) -> None:
    source = folder(tmp_path / "images")
    (source / "beside.png").write_bytes(picture(1))
    assert made(source, tmp_path / "out").problems == {"beside.png": "others have a class, and this image has none"}
    (source / "list.tsv").write_text("path\tlabel\ncat/0.png\tcat\ndog/0.png\t\n")
    assert list(made(source / "list.tsv", tmp_path / "listed").problems) == ["dog/0.png"]
    (source / "list.tsv").write_text("path\tlabel\ncat/0.png\t\ndog/0.png\t\n")
    assert made(source / "list.tsv", tmp_path / "without").records == 2


def test_images_whose_names_no_store_lists_are_named(tmp_path: Path) -> None:
    source = folder(tmp_path / "images")
    Path(os.fsdecode(os.fsencode(source / "cat") + b"/y\xe4.png")).write_bytes(picture(1))
    assert list(made(source, tmp_path / "out").problems) == ["cat/y\\xe4.png"]


@pytest.mark.parametrize("archive", [False, True])
def test_what_systems_put_beside_images_is_none(tmp_path: Path, archive: bool) -> None:
    source = folder(tmp_path / "images")
    beside = ["cat/._0.png", "__MACOSX/cat/._0.png", "@eaDir/0.png", "$RECYCLE.BIN/cat/0.png"]
    for name in beside:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(picture(1))
    if archive:
        with zipfile.ZipFile(tmp_path / "images.zip", "w") as packed:
            for name in [*NAMES, *beside]:
                packed.write(source / name, name)
        source = tmp_path / "images.zip"
    built = made(source, tmp_path / "out")
    assert (built.records, built.problems) == (len(NAMES), {})


def test_images_are_scaled_and_appended(tmp_path: Path) -> None:
    source = folder(tmp_path / "images")
    told: list[Progress] = []
    data_set = DataSet(DirectoryStore.from_url((tmp_path / "out").as_uri()))
    with open_source(source.as_uri(), STORES) as found:
        build(found, data_set, BuildOptions("raw", (4, 4)), told.append)
    assert told[0].total == len(NAMES)
    assert RecordReader(data_set).shape == (4, 4, 3)
    assert made(source, tmp_path / "out", BuildOptions("raw", (4, 4), append=True)).version == 2
    assert len(RecordReader(data_set)) == 2 * len(NAMES)
    with refused("--size", "conflict"):
        made(source, tmp_path / "other", BuildOptions("keep", (4, 4)))


@pytest.mark.parametrize(
    ("options", "side"), [((), 224), (("--size", "4", "--encode", "jpeg"), 4), (("--size", "4", "--encode", "raw"), 0)]
)
def test_a_build_says_how_to_train(tmp_path: Path, options: tuple[str, ...], side: int) -> None:
    out = str(tmp_path / "set")
    done = essp_command("records", "build", str(folder(tmp_path / "images")), "--out", out, *options)
    said = re.search(r"train on it with essp\.(Records\(.*\))", done.output)
    assert said
    assert said[1].endswith(f", size={side})" if side else f"{out!r})")
    with eval(said[1], {"Records": essp.Records}) as loader:  # noqa: S307  of our own
        assert sum(map(len, loader)) == 6


def test_files_are_as_large_as_one_says(tmp_path: Path) -> None:
    source, noise = tmp_path / "images" / "cat", np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    source.mkdir(parents=True)
    for number in range(5):
        cv2.imwrite(str(source / f"{number}.bmp"), noise)
    build_into = ("records", "build", str(source.parent), "--encode", "raw", "--out")
    for name, options, files in (("set", (), 1), ("small", ("--file-size", "1MiB"), 3)):
        essp_command(*build_into, str(tmp_path / name), *options)
        sizes = [path.stat().st_size for path in (tmp_path / name / "records").glob("*.records")]
        assert len(sizes) == files
        assert max(sizes) <= (2**20 if options else 2**28)
    for wrong, code in (("large", "type"), ("1KiB", "range"), ("5GiB", "range")):
        with refused("--file-size", code):
            essp_command(*build_into, str(tmp_path / "none"), "--file-size", wrong)


def test_the_commands_build_show_and_verify(tmp_path: Path) -> None:
    source, out = str(folder(tmp_path / "images")), str(tmp_path / "set")
    assert "6 images, 2 labels" in essp_command("records", "build", source, "--out", out, "--dry-run").output
    planned = json.loads(essp_command("records", "build", source, "--out", out, "--dry-run", "--json").stdout)
    assert planned.keys() == {"source", "recognised", "records", "labels", "problems"}
    assert (planned["source"], planned["records"], planned["problems"]) == (source, 6, {})
    assert planned["labels"] == ["cat", "dog"]
    assert not (tmp_path / "set").exists()
    done = essp_command("records", "build", source, "--out", out, "--json")
    assert json.loads(done.stdout)["records"] == 6
    facts = json.loads(essp_command("records", "show", out, "--json").stdout)
    assert (facts["version"], facts["records"], facts["classes"]) == (1, 6, {"cat": 3, "dog": 3})
    assert "6 records in 1 file" in essp_command("records", "show", out).stdout
    done = essp_command("records", "verify", out)
    assert (done.exit_code, done.stdout) == (0, "version 1: 6 records are whole\n")
    [names] = (tmp_path / "set" / "records").glob("*.names")
    assert sorted(json.loads(names.read_text())) == sorted(NAMES)
    [file] = (tmp_path / "set" / "records").glob("*.records")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    done = essp_command("records", "verify", out)
    assert done.exit_code == 1
    assert "record 5: its bytes are damaged" in done.stdout
    assert "1 of 1 files is damaged" in done.stderr


def test_a_file_that_a_list_names_in_several_ways_counts_once_and_the_others_are_told(tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "\u00e9.png").write_bytes(picture(1))
    ways = [
        "pets/\u00e9.png",
        "./pets/\u00e9.png",
        "pets\\\u00e9.png",
        "pets//e\u0301.png",
        str(tmp_path / "pets" / "\u00e9.png"),
    ]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{way},cat\n" for way in ways))
    built = made(tmp_path / "list.csv", tmp_path / "out")
    assert built.per_class == {"cat": 1}
    told = {f"line {line}": f"{way} is the file of line 2; it counts once" for line, way in enumerate(ways[1:], 3)}
    assert built.problems == told


def test_rows_of_a_csv_file_that_do_not_fit_are_named_and_left_out(tmp_path: Path) -> None:
    for name in ("1.png", "2.png"):
        (tmp_path / name).write_bytes(picture(1))
    text = "Path, label\n1.png, cat \n2.png,dog, grey\n,cat\n1.png,dog\n1.png,cat\n"
    (tmp_path / "list.csv").write_text(text)
    built = made(tmp_path / "list.csv", tmp_path / "out")
    assert built.per_class == {"cat": 1}
    assert built.problems == {
        "line 3": "line 3 has 3 fields, and there are 2 columns; put quotes around a text with a comma in it",
        "line 4": "it names no file",
        "line 5": "1.png is the file of line 2; it is listed as 'cat', too",
        "line 6": "1.png is the file of line 2; it counts once",
    }
    (tmp_path / "list.csv").write_text("path,label\n,cat\n")
    with pytest.raises(ConfigError, match=r"holds no images \(nothing\); line 2: it names no file; give"):
        made(tmp_path / "list.csv", tmp_path / "none")
    (tmp_path / "list.csv").write_text("path,label,label\n1.png,cat,dog\n")
    with pytest.raises(ConfigError, match="column 'label' is there twice"):
        made(tmp_path / "list.csv", tmp_path / "none")
    (tmp_path / "list.csv").write_text("path,label,split\n1.png,cat,train\n2.png,dog,test\n")
    with pytest.raises(ConfigError, match="its column split has 'test' and 'train'; write a file for each"):
        made(tmp_path / "list.csv", tmp_path / "none")


@pytest.mark.parametrize("label", ["a\nb", "a\x00b", "\x1b[31m", "\udce9"])
def test_a_class_that_nobody_can_read_is_refused(label: str, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar", {f"{label}/1.png": picture(1), "cat/2.png": picture(1)})
    if "\x00" in label:  # where the names of tar end
        (tmp_path / "1.png").write_bytes(picture(1))
        archive = tmp_path / "list.csv"
        archive.write_text(f"path,label\n1.png,{label}\n")
    with pytest.raises(ConfigError, match="has unreadable characters; rename it"):
        made(archive, tmp_path / "out")


def test_an_image_without_a_class_among_others_with_one_is_named(tmp_path: Path) -> None:
    files = {"x/1.png": picture(1), "x/1.cls": b"cat", "x/2.png": picture(1), "x/3.png": picture(1), "x/3.cls": b"\xe9"}
    built = made(tar_of(tmp_path / "a.tar", {**files, "x/4.png": picture(1), "x/4.cls": b" "}), tmp_path / "out")
    assert built.per_class == {"cat": 1}
    assert set(built.problems) == {"x/2.png", "x/3.cls", "x/3.png", "x/4.png"}
    assert built.problems["x/2.png"] == "others have a .cls file, and no file with a class lies next to it"


def test_an_archive_that_ends_early_or_is_damaged_inside_is_refused(tmp_path: Path) -> None:
    files = {f"{number}.png": picture(number) for number in range(3)}
    whole = tar_of(tmp_path / "whole.tar", files).read_bytes()
    for change in (whole[:2048], whole[:1030] + b"\xff" + whole[1031:], whole[:1024] + whole[1536:]):
        (tmp_path / "bad.tar").write_bytes(change)
        with pytest.raises(ConfigError, match=r"bad\.tar is not an archive that can be read: byte (1024|2048): it"):
            made(tmp_path / "bad.tar", tmp_path / "out")


def test_a_zip_archive_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    data = zip_file(tmp_path).read_bytes()
    for at in range(data.rindex(b"PK\x01\x02"), len(data)):
        (tmp_path / "bad.zip").write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            with open_source((tmp_path / "bad.zip").as_uri(), STORES) as found:
                assert [item.read() for item in found.items]
        except EsspError:
            continue


@pytest.mark.parametrize("names", [("Train", "test"), ("set/train", "set/Test"), ("a/b/val", "a/b/train")])
def test_splits_are_not_mixed_wherever_their_folders_lie(names: Refusal, tmp_path: Path) -> None:
    files = {f"{name}/cat/1.png": picture(1) for name in names}
    archive = tar_of(tmp_path / "a.tar", files)
    with refused("--within", "missing"):
        made(archive, tmp_path / "out")
    assert made(archive, tmp_path / "out", within=names[0]).per_class == {"cat": 1}
    classes = {"a/train/1.png": picture(1), "a/test/2.png": picture(1)}
    assert made(tar_of(tmp_path / "b.tar", classes), tmp_path / "classes").classes == ("test", "train")


def test_files_of_cifar_that_say_less_than_they_should_are_refused(tmp_path: Path) -> None:
    record = bytes(3073)
    for files, said in (
        ({"batches.meta.txt": b"car\ncar\n", "data_batch_1.bin": record}, "batches.meta.txt has a class twice"),
        ({"batches.meta.txt": b"caf\xe9\ncar\n", "data_batch_1.bin": record}, "batches.meta.txt is not UTF-8 text"),
        ({"batches.meta.txt": b"a\ncar\n", "data_batch_1.bin": record, "data_batch_2.bin": b""}, "2.bin is damaged"),
    ):
        with pytest.raises(ConfigError, match=f"CIFAR: .*{said}"):
            made(tar_of(tmp_path / "c.tar", files), tmp_path / "out")
