"""Series of pictures: only those that can be a video are one."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from essp_common.errors import BadVideo, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.frames import FrameFolders, Series
from tests.harness.refused import refused

RATES = ["0", "0.0000", "0.0009", "10001", "4294967295", "9" * 400]


@pytest.mark.parametrize("rate", RATES)
def test_a_rate_that_no_video_has_is_refused(tmp_path: Path, rate: str) -> None:
    with refused("fps", "range"):
        Series.of_pattern(f"run/img_*.jpg@{rate}")
    with refused("fps", "range"):
        Series.of_picture("run/img_1.jpg", float(rate))
    (tmp_path / "img_1.jpg").write_bytes(b"x")
    folders = FrameFolders(DirectoryStore.from_url(tmp_path.as_uri()))
    assert folders.head("img_*.jpg@25").size_bytes > 1
    with pytest.raises(NotFound, match="not a series"):
        folders.head(f"img_*.jpg@{rate}")


@pytest.mark.parametrize("rate", ["0.001", "29.97", "10000"])
def test_the_key_of_a_series_names_it(rate: str) -> None:
    series = Series.of_pattern(f"run/img_%05d.JPG@{rate}")
    assert series is not None
    assert Series.of_key(series.key) == series
    assert series.key == f"run/img_*.jpg@{rate}"


@pytest.mark.parametrize("sides", [(70_000, 1), (1, 2**32 - 1)])
def test_a_picture_that_is_too_large_for_a_video_is_said(tmp_path: Path, sides: tuple[int, int]) -> None:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", *sides)
    (tmp_path / "a_1.png").write_bytes(head + b"\0\0\0\0IEND\xaeB`\x82")
    with (
        FrameFolders(DirectoryStore.from_url(tmp_path.as_uri())).open("a_*.png@25") as file,
        pytest.raises(BadVideo, match=f"{sides[0]}x{sides[1]} pixels") as caught,
    ):
        file.read(8)
    assert caught.value.kind == "limit"
