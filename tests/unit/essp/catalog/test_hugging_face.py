"""Data sets as Hugging Face keeps them: VideoFolders with metadata, and Parquet or Arrow with the videos inside."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import essp
from essp.catalog import video_folder
from essp.catalog.build import BuildOptions, build
from essp.catalog.csv_source import File
from essp.catalog.found import Found
from essp.catalog.hugging_face import read_tables
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Stores
from essp_engine.decoding.probing import ProbeOptions
from essp_engine.video.synthetic import Encoding, numbered, read_number, write_video
from tests.harness.hub import hub
from tests.harness.listings import errors, labelled, listing, make, write
from tests.harness.refused import refused

_KIND = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_FEATURES = {
    "video": {"_type": "Video"},
    "label": {"names": ["kick", "punch"], "_type": "ClassLabel"},
    "caption": {"dtype": "string", "_type": "Value"},
}
_SCHEMA = pa.schema(
    {"video": _KIND, "label": pa.int64(), "caption": pa.string()},
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Three videos of 4, 5 and 6 frames."""
    folder = tmp_path_factory.mktemp("videos")
    return [
        write_video(folder / f"{count}.mp4", numbered(count, 64, 48), Encoding()).read_bytes() for count in (4, 5, 6)
    ]


def _table(videos: list[bytes]) -> Any:
    rows = [
        {"video": {"bytes": data, "path": f"{number}.mp4"}, "label": number % 2, "caption": f"video {number}"}
        for number, data in enumerate(videos)
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _built(root: Path) -> Catalog:
    options = BuildOptions(probe=ProbeOptions(workers=1))
    return build(f"file://{root}", f"file://{root}/out/catalog.parquet", [f"file://{root}"], options).catalog


def _contents(root: Path) -> dict[str, bytes]:
    """The bytes of each listed video."""
    found = {}
    for entry in listing(root).entries:
        assert entry.error is None, entry
        store, key = Stores([f"file://{root}"]).resolve(entry.uri, video=True)
        info = store.head(key)
        assert (info.size_bytes, info.etag) == (entry.size_bytes, entry.etag)
        with store.open(key) as file:
            found[entry.id] = file.read()
        assert store.get(key, 3, 5) == found[entry.id][3:8]
    return found


# --- Parquet and Arrow ---


def test_videos_in_a_table_are_decoded_where_they_lie(tmp_path: Path, videos: list[bytes]) -> None:
    pq.write_table(_table(videos), tmp_path / "train-00000-of-00001.parquet", compression="none")
    catalog = _built(tmp_path)
    assert [(row.class_name, row.split, row.frame_count, row.error) for row in catalog.rows] == [
        ("kick", "train", 4, None),
        ("punch", "train", 5, None),
        ("kick", "train", 6, None),
    ]
    assert catalog.rows[1].meta == {"caption": "video 1"}
    assert [read_number(frame) for frame in essp.decode(catalog.rows[2], 2, frames=4)] == [2, 3, 4, 5]


def test_videos_in_a_table_on_the_hub_are_decoded_from_there(
    tmp_path: Path, videos: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub" / "data").mkdir(parents=True)
    pq.write_table(_table(videos), tmp_path / "hub" / "data" / "train-0.parquet", compression="snappy")
    with hub(tmp_path / "hub") as address:
        roots = [f"hf://datasets/owner/name?endpoint={address}", f"file://{tmp_path}"]
        options = BuildOptions(probe=ProbeOptions(workers=1))
        catalog = build("hf://datasets/owner/name", f"file://{tmp_path}/c.parquet", roots, options).catalog
        monkeypatch.setenv("ESSP_STORES", json.dumps(roots))
        assert [row.uri.partition("/train-0")[0] for row in catalog.rows] == ["hf://datasets/owner/name/data"] * 3
        assert read_number(essp.decode(catalog.rows[1], 3, frames=1)[0]) == 3


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4"])
def test_any_parquet_gives_the_bytes_of_each_value(tmp_path: Path, compression: str) -> None:
    random = np.random.default_rng(0)
    values: list[bytes | None] = [random.bytes(size) for size in (9, 2_000, 300, 9, 5_000, 12) * 3]
    values[3] = values[4]  # found once in a dictionary
    for number, (dictionary, version, groups) in enumerate(itertools.product((True, False), ("1.0", "2.0"), (5, 99))):
        rows = [{"bytes": value, "path": f"{place}.mp4"} for place, value in enumerate(values)]
        encoding = {} if dictionary or version == "1.0" else {"video.bytes": "DELTA_LENGTH_BYTE_ARRAY"}
        pq.write_table(
            pa.table({"video": pa.array(rows, _KIND), "n": range(len(rows))}),
            tmp_path / f"{number}.parquet",
            compression=compression,
            use_dictionary=dictionary,
            data_page_version=version,
            column_encoding=encoding or None,
            row_group_size=groups,
        )
    found = _contents(tmp_path)
    assert len(found) == 8 * len(values)
    assert all(data == values[int(name.split("/")[1])] for name, data in found.items())


@pytest.mark.parametrize("kind", ["stream", "file", "mapped"])
def test_arrow_gives_the_bytes_of_each_value(tmp_path: Path, kind: str) -> None:
    values = [bytes([place]) * (place + 1) for place in range(10)]
    table = pa.table({"n": range(10), "mp4": pa.array(values, pa.large_binary())})
    make_writer = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with pa.OSFile(str(tmp_path / "data-00000-of-00001.arrow"), "wb") as sink, make_writer(sink, table.schema) as out:
        out.write_table(table, max_chunksize=4)
    assert list(_contents(tmp_path).values()) == values


def test_a_value_with_a_path_alone_names_a_file(tmp_path: Path, videos: list[bytes]) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.mp4").write_bytes(videos[0])
    rows = [
        {"bytes": None, "path": "clips/a.mp4"},
        {"bytes": None, "path": str(tmp_path / "clips" / "gone.mp4")},
        {"bytes": None, "path": None},
        None,
    ]
    pq.write_table(pa.table({"video": pa.array(rows, _KIND)}), tmp_path / "train.parquet")
    found = listing(tmp_path, "train.parquet")
    assert [entry.uri for entry in found.entries if entry.error is None] == [f"file://{tmp_path}/clips/a.mp4"]
    assert sorted(error.partition(":")[0] for error in errors(found).values()) == ["missing"] * 3


def test_listing_a_table_reads_headers_and_lengths_alone(tmp_path: Path) -> None:
    """10 GB of videos must not be read to list them."""
    values = [b"\0" * 1_000_000 for _ in range(8)]
    rows = [{"bytes": value, "path": None} for value in values]
    table = pa.table({"video": pa.array(rows, _KIND)})
    pq.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False, write_statistics=False)

    class Counting(DirectoryStore):
        read = 0

        def open(self, key: str) -> Any:
            file = super().open(key)
            plain = file.read

            class Counted:
                def __getattr__(self, name: str) -> Any:
                    return getattr(file, name)

                def read(self, size: int = -1) -> bytes:
                    data = plain(size)
                    Counting.read += len(data)
                    return data

            return Counted()

    store = Counting(str(tmp_path))
    assert len(list(read_tables(Found(f"file://{tmp_path}", store, 1, "a.parquet")))) == 8
    assert 0 < Counting.read < 300_000


def test_a_damaged_table_is_refused(tmp_path: Path, videos: list[bytes]) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(_table(videos), path, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:40] = b"\xff" * 36
    path.write_bytes(data)
    with refused("", "unreadable"):
        listing(tmp_path)


def test_a_catalog_beside_its_tables_is_not_one_of_them(tmp_path: Path) -> None:
    pq.write_table(_table([b"1", b"2"]), tmp_path / "train.parquet")
    before = labelled(listing(tmp_path))
    for name in ("first.parquet", "z.parquet"):
        write_catalog(DirectoryStore(str(tmp_path)), name, Catalog(()))
    assert labelled(listing(tmp_path)) == before
    assert len(before) == 2


# --- VideoFolder ---


def test_metadata_in_each_split_folder_has_labels_and_captions(tmp_path: Path) -> None:
    make(tmp_path, "train/a.mp4", "train/sub/b.mp4", "test/c.mp4")
    write(
        tmp_path / "train" / "metadata.jsonl",
        '{"file_name": "a.mp4", "label": "kick", "caption": "one", "box": [1, 2]}\n'
        '{"file_name": "sub/b.mp4", "label": "punch", "caption": null}\n',
    )
    write(tmp_path / "test" / "metadata.jsonl", '{"file_name": "c.mp4", "label": "kick"}\n')
    found = listing(tmp_path)
    assert found.kind == "videofolder"
    assert labelled(found) == {
        "train/a.mp4": ("kick", "train"),
        "train/sub/b.mp4": ("punch", "train"),
        "test/c.mp4": ("kick", "test"),
    }
    assert {entry.id: entry.meta for entry in found.entries}["train/a.mp4"] == {"caption": "one", "box": [1, 2]}


def test_each_metadata_file_is_compared_with_the_videos_of_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a file for each of very many folders."""
    compared = 0

    def counted(*given: Any) -> File:
        nonlocal compared
        compared += 1
        return File(*given)

    monkeypatch.setattr(video_folder, "File", counted)
    for number in range(9):
        make(tmp_path, f"{number}/a.mp4", f"{number}/deep/b.mp4")
        write(tmp_path / str(number) / "metadata.csv", "file_name,label\na.mp4,kick\ndeep/b.mp4,punch\n")
    assert labelled(listing(tmp_path)) == {
        f"{number}/{name}": (label, "train")
        for number in range(9)
        for name, label in (("a.mp4", "kick"), ("deep/b.mp4", "punch"))
    }
    assert compared == 18


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_one_metadata_file_describes_the_folders_below_it(tmp_path: Path, suffix: str) -> None:
    make(tmp_path, "data/train/a.mp4", "data/validation/b.mp4", "data/test/gone/c.mp4")
    rows = [{"file_name": "train/a.mp4", "text": "x"}, {"file_name": "validation/b.mp4", "text": "y"}]
    path = tmp_path / "data" / f"metadata.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif suffix == "csv":
        path.write_text("file_name,text\ntrain/a.mp4,x\nvalidation/b.mp4,y\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    found = listing(tmp_path)
    assert labelled(found) == {"data/train/a.mp4": ("", "train"), "data/validation/b.mp4": ("", "validation")}
    assert errors(found) == {"data/test/gone/c.mp4": "unlisted: no list names it"}


def test_class_folders_are_classes_where_the_metadata_has_no_label(tmp_path: Path) -> None:
    make(tmp_path, "train/kick/a.mp4", "train/punch/b.mp4", "test/kick/c.mp4")
    write(tmp_path / "train" / "metadata.csv", "file_name,text\nkick/a.mp4,x\npunch/b.mp4,y\n")
    assert labelled(listing(tmp_path)) == {
        "train/kick/a.mp4": ("kick", "train"),
        "train/punch/b.mp4": ("punch", "train"),
        "test/kick/c.mp4": ("kick", "test"),
    }


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_metadata_that_cannot_be_read_does_not_make_splits_classes(tmp_path: Path, suffix: str) -> None:
    make(tmp_path, "train/a.mp4", "test/b.mp4")
    (tmp_path / "train" / f"metadata.{suffix}").write_bytes(b'"file_name\xff\n{')
    with pytest.raises(essp.ConfigError, match="train/metadata"):
        listing(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", '{"file_name": "a.mp4", "file_name": "b.mp4"}'])
def test_json_lines_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path / "list.jsonl", text)
    with pytest.raises(essp.ConfigError, match="line 1"):
        listing(tmp_path, "list.jsonl")


@pytest.mark.parametrize("column", ["file_name", "filename", "filepath", "file_path", "video_path", "clip"])
def test_usual_columns_name_the_files(tmp_path: Path, column: str) -> None:
    make(tmp_path, "a.mp4")
    write(tmp_path / "list.csv", f"{column},label\na.mp4,kick\n")
    write(tmp_path / "list.jsonl", json.dumps({column: "a.mp4", "label": "kick"}))
    for name in ("list.csv", "list.jsonl"):
        assert labelled(listing(tmp_path, name)) == {"a.mp4": ("kick", "train")}
