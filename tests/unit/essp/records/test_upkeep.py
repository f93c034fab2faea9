"""`essp records delete` and `clean`: a new version without what is named, and no file that no version names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from essp_common.errors import ConfigError, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from tests.harness.command_line import essp
from tests.harness.refused import refused

LABELS = (0, 1, -1)


@pytest.fixture
def data_set(tmp_path: Path) -> DataSet:
    """30 records in several files; of each three one cat, one dog, one without a label."""
    found = DataSet(DirectoryStore.from_url(tmp_path.as_uri()))
    with Writer(found, ("cat", "dog"), file_bytes=1000) as writer:
        for number in range(30):
            writer.add(Record(b"x" * 50, LABELS[number % 3]))
    return found


def keys(data_set: DataSet) -> list[int]:
    keys: list[int] = RecordReader(data_set).table["key"].tolist()
    return keys


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ("--keys 4", [4]),
        ("--keys 4 --keys 20-29", [4, *range(20, 30)]),
        ("--label cat", range(0, 30, 3)),
        ("--label (none) --label dog", [key for key in range(30) if key % 3]),
        ("--label cat --keys 0-9", [0, 3, 6, 9]),
        ("--keys 0-29", range(30)),
    ],
)
def test_records_are_deleted_by_keys_and_labels(
    options: str, gone: list[int], data_set: DataSet, tmp_path: Path
) -> None:
    line = ["records", "delete", str(tmp_path), *options.split()]
    assert essp(*line, "--dry-run").stdout == f"would delete {len(gone)} record{'s' * (len(gone) > 1)} of 30\n"
    assert data_set.versions() == [1]
    done = essp(*line, "--yes", "--json")
    assert json.loads(done.stdout) == {"deleted": len(gone), "left": 30 - len(gone), "version": 2}
    assert keys(data_set) == [key for key in range(30) if key not in gone]
    assert len(RecordReader(data_set, 1)) == 30
    with pytest.raises(NotFound, match=r"version 2 of .* has no such record"):
        essp(*line, "--yes")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "which records? give --keys, --label, or both"),
        ("--keys 30", "30 is not among 0 to 29"),
        ("--keys 9-3", "write a key or a range"),
        ("--keys -3", "write a key or a range"),
        ("--keys x", "write a key or a range"),
        ("--label bird", "there is no such class; the 2 are: cat, dog"),
        ("--label cat", "cannot ask for confirmation without a terminal; add --yes"),
    ],
)
def test_what_there_is_not_cannot_be_deleted(options: str, said: str, data_set: DataSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        essp("records", "delete", str(tmp_path), *options.split())
    assert data_set.versions() == [1]


def test_records_that_cannot_be_read_are_deleted_by_their_keys(data_set: DataSet, tmp_path: Path) -> None:
    first = data_set.version()[1].files[0]
    (tmp_path / first.key).write_bytes(b"")
    assert essp("records", "delete", str(tmp_path), "--keys", f"0-{first.records - 1}", "--yes").exit_code == 0
    assert data_set.version()[1].records == 30 - first.records


def test_what_a_killed_build_left_is_removed(data_set: DataSet, tmp_path: Path) -> None:
    named = set((tmp_path / "records").iterdir())
    writer = Writer(data_set, (), append=True, file_bytes=1)
    for _ in range(3):
        writer.add(Record(b"x", 0))
    assert len(set((tmp_path / "records").iterdir()) - named) == 2
    done = essp("records", "clean", str(tmp_path), "--yes")
    assert done.stdout == "there is nothing to remove\n"
    assert "2 files of builds that wrote something in the last 24 hours stay" in done.stderr
    done = essp("records", "clean", str(tmp_path), "--older-than", "0", "--dry-run")
    assert done.stdout.startswith("would remove 2 files, ")
    with refused("--yes", "missing"):
        essp("records", "clean", str(tmp_path), "--older-than", "0")
    assert len(list((tmp_path / "records").iterdir())) == len(named) + 2
    done = essp("records", "clean", str(tmp_path), "--older-than", "0", "--yes", "--json")
    assert (len(json.loads(done.stdout)["files"]), done.exit_code) == (2, 0)
    assert set((tmp_path / "records").iterdir()) == named
