"""A small image folder, a catalog, and records, as benchmarks read them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import cv2
import numpy as np
import pytest

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import Encoding, numbered, write_video

CLASSES = ("one", "two")
DAMAGED = "two/3.jpg"


@pytest.fixture(scope="package")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`images/` of 2 classes with 6 images each, one of them damaged; `images.csv`; `catalog.parquet` of 4 videos;
    `records/` with 40 raw ones."""
    root = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    lines = ["path,label"]
    for name in CLASSES:
        (root / "images" / name).mkdir(parents=True)
        (root / "videos" / name).mkdir(parents=True)
        for number in range(6):
            path = root / "images" / name / f"{number}.jpg"
            cv2.imwrite(str(path), rng.integers(0, 256, (24, 40, 3), np.uint8))
            lines.append(f"images/{name}/{number}.jpg,{name}")
        for number in range(2):
            write_video(root / "videos" / name / f"{number}.mp4", numbered(24, 64, 48), Encoding(gop=6))
    (root / "images" / DAMAGED).write_bytes(b"no image")
    (root / "images" / "notes.txt").write_text("not an image")
    (root / "images.csv").write_text("\n".join(lines), encoding="utf-8")
    store = DirectoryStore(str(root))
    rows = [_row(store, f"videos/{name}/{number}.mp4", name) for name in CLASSES for number in range(2)]
    write_catalog(store, "catalog.parquet", Catalog(rows))
    with Writer(DataSet(DirectoryStore(str(root / "records"))), CLASSES) as writer:
        for number in range(40):
            writer.add(Record.of_image(np.full((16, 16, 3), number, np.uint8), number % 2))
    return root


def _row(store: DirectoryStore, key: str, name: str) -> VideoRow:
    info = store.head(key)
    facts = probe(str(store.local_path(key)))
    found = {field.name: getattr(facts, field.name) for field in fields(facts)}
    return VideoRow(
        key, store.uri(key), name, "train", info.size_bytes, info.etag, last_frame=facts.frame_count - 1, **found
    )
