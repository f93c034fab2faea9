"""Files that commands are told to write: named where that fails, and none that is empty is left."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from essp.folders import check_file, written
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore
from tests.harness.catalog_rows import row
from tests.harness.command_line import main_of


def fill(path: Path) -> None:
    """Begin to write a file on a disk that is full."""
    with written(path), path.open("w"):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("there", [False, True])
def test_a_file_that_cannot_be_written_is_named_and_not_left_empty(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "job.yaml"
    if there:
        path.touch()
    with pytest.raises(ConfigError, match=r"job\.yaml cannot be written \(No space left on device\); name another"):
        fill(path)
    assert path.exists() == there


def test_what_is_no_file_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="/dev/full cannot be written"), written(Path("/dev/full")):
        Path("/dev/full").write_text("a")
    assert Path("/dev/full").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("records build {0}/images --out {0}/letter", "--out: {0}/letter is a file; give a folder"),
        ("bench io --source {0}/images --batch 1 --store {0}/letter", "--store: {0}/letter is a file; give a folder"),
        ("bench checkpoint --size 1KiB --store {0}/letter", "--store: {0}/letter is a file; give a folder"),
        (
            "catalog build {0}/videos --out {0}/images",
            "--out: file://{0}/images is a folder; name a file in it, such as",
        ),
        (
            "catalog check {0}/c.parquet --page {0}/images",
            "--page: file://{0}/images is a folder; name a file in it, such as file://{0}/images/check.html",
        ),
        ("catalog check {0}/c.parquet --page {0}/c.parquet", "--page: {0}/c.parquet: the page is HTML; name it"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_found_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, words: str
) -> None:
    (tmp_path / "letter").write_text("dear")
    for folder in ("images/a", "videos/a"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "images/a/1.png").write_bytes(b"no image")
    (tmp_path / "videos/a/1.mp4").write_bytes(b"no video")
    write_catalog(DirectoryStore(str(tmp_path)), "c.parquet", Catalog((row("a/1"),)))
    before = sorted(tmp_path.rglob("*"))
    assert main_of(*command.format(tmp_path).split()) == 2
    assert words.format(tmp_path) in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_trial_neither_writes_over_a_file_nor_removes_it(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    store.put("c.parquet.part-000000", b"as split has named it")
    check_file("--out", store, "c.parquet", "catalog.parquet", ".part-000000")
    assert store.get("c.parquet.part-000000") == b"as split has named it"
    check_file("--out", store, "d.parquet", "catalog.parquet")
    assert [info.key for info in store.list()] == ["c.parquet.part-000000"]
