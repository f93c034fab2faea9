"""Parts of job files, as `essp job set --file` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from essp.job_file import read_part
from essp_common.errors import ConfigError


def test_weights_are_meant_from_the_folder_of_the_file(tmp_path: Path) -> None:
    part = tmp_path / "part.yaml"
    part.write_text("trainers: {one: {stream: rgb, weights: nets/a.pt}, two: {stream: rgb}}\nepochs: 3\n")
    expected = {"one": {"stream": "rgb", "weights": (tmp_path / "nets/a.pt").as_uri()}, "two": {"stream": "rgb"}}
    assert read_part(part) == {"trainers": expected, "epochs": 3}


@pytest.mark.parametrize(
    "weights", ["s3://models/a.pt", "package:efficientnet_lite0", "imagenet", "trainer:rgb", "", None, 3]
)
def test_what_is_no_path_stays(tmp_path: Path, weights: Any) -> None:
    part = tmp_path / "part.yaml"
    part.write_text(f"trainers: {{one: {{weights: {'null' if weights is None else repr(weights)}}}}}\n")
    assert read_part(part) == {"trainers": {"one": {"weights": weights}}}


@pytest.mark.parametrize("text", ["trainers: 3", "trainers: {one: [1]}", "trainers: null"])
def test_nonsense_is_left_to_those_who_check_it(tmp_path: Path, text: str) -> None:
    part = tmp_path / "part.yaml"
    part.write_text(text)
    assert read_part(part).keys() == {"trainers"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- 1", "is not a mapping of the fields to change"),
        (b"\xff\xfe\xff", "not a text file"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_part_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    part = tmp_path / "part.yaml"
    if content is not None:
        part.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_part(part)
