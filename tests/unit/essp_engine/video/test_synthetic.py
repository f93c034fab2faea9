"""Videos made for tests and the demo: making them changes nothing but the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from essp_engine.video.synthetic import Encoding, numbered, write_video


@pytest.mark.parametrize("codec", ["av1", "h264"])
def test_an_encoder_leaves_the_scheduling_of_this_process_as_it_was(tmp_path: Path, codec: str) -> None:
    """SVT-AV1 makes the thread real-time; later children would inherit that and starve everything else."""
    before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    write_video(tmp_path / "a.mkv", numbered(3, 64, 48), Encoding(codec=codec))
    assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == before
