"""Videos to decode, and the child process that does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from essp_engine.decoding.sandbox import Sandbox, SandboxOptions
from essp_engine.decoding.settings import DecodingSettings
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.decode_units import FRAMES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    write_video(folder / "a.mp4", numbered(FRAMES), Encoding(bframes=2))
    write_video(folder / "b.avi", numbered(FRAMES), Encoding(codec="mpeg4"))
    (folder / "text.mp4").write_text("no video at all " * 100)
    return folder


@pytest.fixture
def options(folder: Path) -> SandboxOptions:
    return DecodingSettings(stores=(f"file://{folder}",)).sandbox()


@pytest.fixture
def sandbox(options: SandboxOptions) -> Iterator[Sandbox]:
    with closing(Sandbox(options)) as sandbox:
        yield sandbox
