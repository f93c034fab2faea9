"""The example of Hogwild: two processes train one network on one loader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from tests.flow.conftest import RunExample

pytestmark = pytest.mark.lane("promises")


def test_the_example_of_hogwild_learns(tmp_path: Path, example: RunExample) -> None:
    """Dark images and bright ones. The weights that the processes have changed are those that are tested."""
    rng = np.random.default_rng(0)
    with Writer(DataSet(DirectoryStore.from_url((tmp_path / "records").as_uri())), ("dark", "bright")) as writer:
        for number in range(160):
            label = number % 2
            writer.add(Record.of_image(rng.integers(120 * label, 120 * label + 120, (32, 32, 3), np.uint8), label))
    options = ("--epochs", "4", "--batch-size", "8", "--rate", "0.02")
    assert example("hogwild.py", str(tmp_path / "records"), *options) == ["100.0% of 160 training images"]
