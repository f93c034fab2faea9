"""Data sets of numbered records that several tests only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp.records.images import jpeg
from essp_common.records.chunk import Record
from tests.unit.essp.api.numbered_records import RECORDS, build, image


@pytest.fixture(scope="package")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw images of one size."""
    return build(tmp_path_factory.mktemp("raw"), [Record.of_image(image(i), i % 2) for i in range(RECORDS)])


@pytest.fixture(scope="package")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files and raw images of several sizes."""
    records = [
        Record(jpeg(image(i, 8 + i % 3), 95), i % 2) if i % 2 else Record.of_image(image(i, 5 + i % 4), i % 2)
        for i in range(RECORDS)
    ]
    return build(tmp_path_factory.mktemp("mixed"), records)
