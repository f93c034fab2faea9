"""Jobs on records before they begin: what is refused in which words, and which version a job keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from essp_common.artifacts import layout
from essp_common.errors import ConfigError
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import Preflight, preflight
from tests.harness.record_sets import make_records, png, records_job
from tests.harness.refused import refused

STORES = Stores(("file:///",))
LABELS = [0, 1] * 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_records(tmp_path / "train", LABELS, png)
    return tmp_path / "train"


def check(folder: Path, more: dict[str, Any] | None = None, fresh: bool = False) -> Preflight:
    return preflight(records_job(folder, folder.parent / "out", more), STORES, fresh)


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        (
            {"streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 10}}}},
            "streams.flow.feature",
            "conflict",
        ),
        ({"streams": {"rgb": {"params": {"frames": 3}}}}, "streams.rgb.params.frames", "conflict"),
        (
            {"clip": {"resize": {"mode": "short_side", "height": 20}}},
            "clip.resize.mode",
            "conflict",
        ),
        ({"data": {}, "sampling": {}}, "data.catalog", "missing"),
    ],
)
def test_what_records_cannot_give_is_refused(folder: Path, change: dict[str, Any], field: str, code: str) -> None:
    with refused(field, code):
        check(folder, change)


def test_records_without_labels_are_refused_or_told(tmp_path: Path) -> None:
    make_records(tmp_path / "none", [-1] * 4)
    with refused("data.records", "empty"):
        check(tmp_path / "none")
    make_records(tmp_path / "some", [*LABELS, -1])
    assert "1 of 13 records has no label (-1): they are used neither to train" in check(tmp_path / "some").warnings[0]


def test_records_that_leave_nothing_to_validate_on_say_so(tmp_path: Path) -> None:
    make_records(tmp_path / "train", [0, 1])
    with refused("data.records_validation", "missing"):
        check(tmp_path / "train")


def test_a_window_of_records_has_work_for_several_decoders(folder: Path) -> None:
    assert check(folder, {"sampling": {"window": 512}}).budget.unit_clips == 32


def test_advice_speaks_of_records(folder: Path) -> None:
    [untested] = check(folder).warnings
    assert untested.startswith("data.records_test is not given, so the model is not measured on unseen records")


def test_a_job_keeps_the_version_that_it_began_with(folder: Path) -> None:
    began = check(folder)
    assert began.spec.data.versions == {"train": 1}
    output = STORES.under(began.spec.output)
    output.put(layout.SPEC, began.spec.model_dump_json().encode())
    make_records(folder, LABELS)
    assert check(folder).spec.data.versions == {"train": 1}
    assert check(folder, fresh=True).spec.data.versions == {"train": 2}
    with pytest.raises(ConfigError, match=r"differs in data\.versions\.train"):
        check(folder, {"data": {"records": folder.as_uri(), "versions": {"train": 2}}})
