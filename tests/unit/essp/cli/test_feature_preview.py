"""Every feature can be looked at, as a picture and as a video of the frames it was made of."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest

from essp.cli.feature_preview import Preview, write_preview
from essp_common.errors import BadVideo, ConfigError
from essp_engine.features import registry
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import write_video
from tests.harness.command_line import essp, main_of
from tests.harness.refused import refused
from tests.harness.scenes import STILL, moving, with_object

HEIGHT, WIDTH = 64, 96


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clip = with_object(moving(STILL, (1.0, 0.0), 20, size=(HEIGHT, WIDTH)), (10, 10), (2, 1), 20)
    return write_video(tmp_path_factory.mktemp("previews") / "scene.mp4", clip)


def preview(feature: str) -> Preview:
    return Preview(feature, {}, start=0, frames=3, short_side=HEIGHT)


@pytest.mark.parametrize("feature", registry.names())
def test_picture_shows_the_feature_below_its_frames(feature: str, video: Path, tmp_path: Path) -> None:
    caption = write_preview(video, tmp_path / "out.png", preview(feature))
    assert bool(caption) == (feature not in ("rgb", "frame_stack"))
    picture = cv2.imread(str(tmp_path / "out.png"))
    assert picture is not None
    assert picture.shape[0] == 2 * HEIGHT + 2
    assert (picture.shape[1] + 2) % (WIDTH + 2) == 0
    below = picture[HEIGHT + 2 :, :WIDTH]
    assert below.std() > 1, "something is to be seen"


@pytest.mark.parametrize("feature", ["flow", "hog", "trajectories"])
def test_video_shows_as_many_frames_as_were_asked_for(feature: str, video: Path, tmp_path: Path) -> None:
    write_preview(video, tmp_path / "out.mp4", preview(feature))
    facts = probe(str(tmp_path / "out.mp4"))
    assert (facts.frame_count, facts.width) == (3, WIDTH)


def test_other_kinds_of_file_are_refused(video: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a preview is a"):
        write_preview(video, tmp_path / "out.gif", preview("flow"))


def test_a_preview_does_not_replace_its_video(video: Path) -> None:
    before = video.read_bytes()
    with refused("--out", "conflict"):
        essp("extractor", "preview", str(video), "--out", str(video.parent / "." / video.name))
    assert video.read_bytes() == before


def test_frames_that_have_no_room_in_memory_are_a_message(video: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(video.parent / "large.png")
    assert main_of("extractor", "preview", str(video), "--out", out, "--short-side", "99999999") == 1
    assert "there is not enough memory" in capsys.readouterr().err


def test_a_file_that_is_no_video_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("not a video")
    with pytest.raises(BadVideo, match=r"text\.mp4: not a video file"):
        write_preview(tmp_path / "text.mp4", tmp_path / "out.png", preview("flow"))


def test_a_parameter_that_is_no_value_is_named(video: Path) -> None:
    with pytest.raises(ConfigError, match=r"--param length: not valid YAML"):
        essp("extractor", "preview", str(video), "--param", "length=[")
