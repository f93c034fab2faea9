"""A manifest of a fused model that this version cannot read: what is wrong with it, in words for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.sealed import sealed
from essp_common.errors import PermanentError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.wiring import Stores
from tests.harness.model_manifest import manifest_at


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    manifest_at(f"file://{tmp_path}", ClipSpec(), {"rgb": StreamSpec()}, {"rgb": 1.0})
    return tmp_path / layout.MODEL_MANIFEST


def refusal(manifest: Path) -> str:
    """What is said of a manifest that cannot be used: one line."""
    with pytest.raises(PermanentError) as caught:
        open_model(Stores(("file:///",)), f"file://{manifest.parent}")
    said = str(caught.value)
    assert "\n" not in said
    assert "model/manifest.json is not a fused model of this version: " in said
    return said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model | {"clips_per_video": "three"}, "clips_per_video: must be a whole number"),
        (lambda model: {name: value for name, value in model.items() if name != "members"}, "members: is required"),
        (lambda model: model | {"members": [{"trainer": "rgb"}]}, "members.0.stream: is required"),
        (lambda model: model | {"format": 3}, "format: must be 1 or 2, got 3"),
        (lambda model: model | {"format": 2}, "format 1 has a rule and no state, format 2 a state and no rule"),
    ],
)
def test_a_field_that_another_version_has_otherwise_is_named(
    manifest: Path, change: Callable[[dict[str, Any]], dict[str, Any]], said: str
) -> None:
    document = json.loads(manifest.read_text())
    del document["sha256"]
    manifest.write_bytes(sealed(Anything(**change(document))))
    assert said in refusal(manifest)


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"\xff", b'{"job": '])
def test_what_is_no_manifest_is_told_in_one_line(manifest: Path, data: bytes) -> None:
    manifest.write_bytes(data)
    refusal(manifest)
