"""`essp.stream`: every frame of every video, in order, decoded once, whatever the windows and however many decoders."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import essp
from essp.api import streaming
from essp.api.streaming import _as_ranges, _Lanes, _Windows
from essp.catalog.build import BuildOptions, build
from essp_common.errors import Unavailable
from essp_common.runtime.metrics import FRAMES
from essp_engine.decoding.sandbox import Sandbox
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness import launcher
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.processes

CASES = {
    "gops.mp4": (61, Encoding(gop=8, bframes=2)),
    "one-keyframe.mp4": (50, Encoding(gop=250)),
    "short.mp4": (3, Encoding()),
    "mpeg4.avi": (40, Encoding(codec="mpeg4", bframes=2, gop=10)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stream")
    for name, (count, encoding) in CASES.items():
        write_video(root / name, numbered(count, 64, 48), encoding)
    return root


@pytest.fixture(scope="module")
def rows(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[essp.VideoRow]:
    path = tmp_path_factory.mktemp("catalog") / "catalog.parquet"
    build(f"file://{folder}", f"file://{path}", ("file:///",), BuildOptions("folders"))
    found = {row.id: row for row in essp.open_catalog(path).rows}
    return [found[name] for name in CASES]


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, NDArray[np.uint8]]:
    """All frames, by PyAV alone."""
    frames: dict[str, NDArray[np.uint8]] = {}
    for name in CASES:
        with av.open(str(folder / name)) as container:
            frames[name] = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    return frames


def check(windows: list[essp.Window], plain: dict[str, NDArray[np.uint8]], frames: int, stride: int, step: int) -> None:
    """Each window has the right frames, and the windows of each video are all there, in order."""
    assert list(dict.fromkeys(Path(window.video).name for window in windows)) == list(CASES)
    for name, whole in plain.items():
        mine = [window for window in windows if Path(window.video).name == name]
        assert [window.first_frame for window in mine] == list(range(0, mine[-1].first_frame + 1, step))
        for window in mine:
            wanted = np.minimum(window.first_frame + stride * np.arange(frames), len(whole) - 1)
            assert np.array_equal(window.frames, whole[wanted])
        reach = mine[-1].first_frame + (frames - 1) * stride
        assert reach >= len(whole) - 1 or mine[-1].first_frame + step >= len(whole)


def test_contents_are_streamed_as_files_are(folder: Path, plain: dict[str, NDArray[np.uint8]]) -> None:
    """Without a trace: the folder that they are copied to is removed."""
    name = "gops.mp4"
    data = (folder / name).read_bytes()
    with (folder / name).open("rb") as file:
        windows = essp.stream([data, b"no video", memoryview(data), file, folder / name], frames=61, decoders=1)
        found = list(windows)
    assert [window.video for window in found] == ["bytes 0", "bytes 2", str(folder / name), str(folder / name)]
    assert all(np.array_equal(window.frames, plain[name]) for window in found)
    assert {video: type(error) for video, error in windows.errors.items()} == {"bytes 1": essp.BadVideo}
    assert not list(Path(tempfile.gettempdir()).glob("essp-stream-*"))


@pytest.mark.parametrize(
    ("frames", "stride", "step", "decoders", "memory"),
    [
        (16, 1, None, 2, "512MiB"),  # whole groups of pictures, two children at a time
        (8, 2, 5, 2, "256KiB"),  # windows overlap; five frames a unit, so one child decodes a video
        (4, 3, 30, 1, "96KiB"),  # frames are left out
    ],
)
def test_windows_are_those_of_a_plain_decode(
    rows: list[essp.VideoRow], plain: dict[str, NDArray[np.uint8]], frames: int, stride: int, step: int | None,
    decoders: int, memory: str,
) -> None:  # fmt: skip
    before = FRAMES.labels("decoded")._value.get()
    options: dict[str, Any] = {"frames": frames, "stride": stride, "step": step, "decoders": decoders, "memory": memory}
    stream = essp.stream(rows, **options)
    check(list(stream), plain, frames, stride, step or frames * stride)
    assert stream.errors == {}
    decoded = FRAMES.labels("decoded")._value.get() - before
    assert decoded <= sum(map(len, plain.values())), "no frame is decoded twice"


def test_files_need_no_catalog_and_errors_are_named(
    folder: Path, plain: dict[str, NDArray[np.uint8]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text, cut = tmp_path / "text.mp4", tmp_path / "cut.mp4"
    text.write_text("no video")
    cut.write_bytes((folder / "gops.mp4").read_bytes()[:-4000])
    missing = str(tmp_path / "missing.mp4")
    names = [str(folder / name) for name in CASES]
    stream = essp.stream([text, *names[:2], missing, cut, *names[2:]], short_side=24, decoders=2)
    shown = Counter(video for video, _, _ in stream)
    assert set(shown) == set(names)
    assert set(stream.errors) == {str(text), missing, str(cut)}
    assert {type(error) for error in stream.errors.values()} == {essp.BadVideo}
    assert "missing.mp4 cannot be read" in caplog.text
    first = next(iter(essp.stream(names[0], short_side=24)))
    assert first.frames.shape == (16, 24, 32, 3)


def test_files_are_read_from_a_folder_that_is_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with essp.stream(folder / "gops.mp4", decoders=1) as windows:
        assert next(windows).first_frame == 0


_SCRIPT = """
import sys, essp
print("begins")
for video, first_frame, frames in essp.stream(sys.argv[1:], decoders=1):
    print(first_frame)
    raise ZeroDivisionError
"""


@pytest.mark.processes
@pytest.mark.usefixtures("started_children")
def test_a_script_needs_no_guard_and_may_fail(folder: Path, tmp_path: Path) -> None:
    """No child process runs it again. Its processes end with the interpreter, and nothing is said but the error."""
    (script := tmp_path / "script.py").write_text(_SCRIPT)
    command = [*launcher.python(), str(script), *[str(folder / "gops.mp4")] * 3]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "begins\n0\n")
    assert done.stderr.startswith("Traceback")
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("\nZeroDivisionError\n")


def test_a_video_that_changed_ends_with_an_error_and_the_rest_goes_on(rows: list[essp.VideoRow]) -> None:
    changed = replace(rows[0], id="changed", size_bytes=1)
    short = replace(rows[3], id="short of frames", frame_count=90, last_frame=89)
    stream = essp.stream([changed, short, rows[1]], decoders=1)
    shown = Counter(video for video, _, _ in stream)
    assert shown["one-keyframe.mp4"] == 4
    assert shown["changed"] == 0
    assert {name: error.kind for name, error in stream.errors.items()} == {
        "changed": "changed",
        "short of frames": "truncated",
    }


def test_a_row_given_twice_and_videos_of_one_name_are_read_each_for_itself(rows: list[essp.VideoRow]) -> None:
    """The second of a row gave no window, and one whose namesake cannot be read was left out."""
    namesakes = [replace(rows[0], id="one", size_bytes=1), replace(rows[1], id="one")]
    stream = essp.stream([rows[2], rows[2], *namesakes], decoders=1)
    assert [(video, first_frame) for video, first_frame, _ in stream] == [
        *[("short.mp4", 0)] * 2,
        *[("one", first_frame) for first_frame in (0, 16, 32, 48)],
    ]
    assert {name: type(error) for name, error in stream.errors.items()} == {"one": essp.BadVideo}


def test_more_memory_asks_no_child_for_more_than_it_may_answer(
    rows: list[essp.VideoRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESSP_DECODER_CLIP_BYTES", "1MiB")
    stream = essp.stream(rows[:2], size=(200, 200), decoders=1)  # 100 KiB a frame
    assert Counter(video for video, _, _ in stream) == {"gops.mp4": 4, "one-keyframe.mp4": 4}
    assert stream.errors == {}


def test_a_machine_that_has_no_files_left_ends_a_stream(
    rows: list[essp.VideoRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for threads that had ended."""

    def refused(_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(streaming, "Sandbox", refused)
    stream = essp.stream(rows, decoders=2)
    assert list(stream) == []
    assert set(stream.errors) == set(CASES)
    assert all("Too many open files" in str(error) for error in stream.errors.values())


def test_a_stream_that_is_left_takes_its_processes_along(rows: list[essp.VideoRow]) -> None:
    """The check for leaks sees them otherwise."""
    with essp.stream(rows, frames=4, decoders=2) as stream:
        assert next(stream).first_frame == 0
    assert list(stream) == []
    for _ in essp.stream(rows, frames=4, decoders=1):
        break


def test_a_second_interrupt_leaves_no_process_of_a_stream(
    rows: list[essp.VideoRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It met the end that the first one had begun. The check for leaks sees what has stayed."""
    end = _Lanes._end

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end(*arguments)

    monkeypatch.setattr(_Lanes, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt), essp.stream(rows, frames=4, decoders=2) as stream:
        next(stream)


def test_an_interrupt_ends_a_stream_that_waits_for_a_store(
    rows: list[essp.VideoRow], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, and not when the store is to be asked again."""

    def away(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise Unavailable("the store is away", retry_after_s=2 * LONGEST_S)

    monkeypatch.setattr(Sandbox, "decode", away)
    monkeypatch.setattr(streaming, "LONGEST_WAIT_S", 2 * LONGEST_S)
    with pytest.raises(KeyboardInterrupt):
        next(essp.stream(rows, decoders=2))
    assert "the store is away; trying again for up to 600 s" in caplog.text


def test_what_nobody_expected_is_named_with_its_traceback(
    rows: list[essp.VideoRow], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streaming, "frames_of", lambda outcome: outcome["frames"])
    stream = essp.stream(rows[:1], decoders=1)
    assert list(stream) == []
    assert "TypeError" in str(stream.errors[rows[0].id])
    assert "Traceback" in caplog.text


def test_a_stream_that_begins_half_way_leaves_nothing(
    rows: list[essp.VideoRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "essp-stream-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(essp.stream(rows, frames=4, decoders=2))


def test_a_fork_cannot_go_on_with_a_stream(rows: list[essp.VideoRow]) -> None:
    """It waited for threads that it does not have."""
    with essp.stream(rows[0], frames=4, decoders=1) as stream:
        next(stream)
        ours, theirs = os.pipe()
        if not (child := os.fork()):
            with suppress(essp.ConfigError):
                next(stream)
                os._exit(1)
            stream.close()
            os.write(theirs, b"refused")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(theirs)
        assert os.read(ours, 9) == b"refused"
        os.close(ours)
        assert next(stream).first_frame == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frames": 0}, "^frames: "),
        ({"step": 0}, "^step: "),
        ({"decoders": -1}, "^decoders: "),
        ({"memory": "much"}, "memory: 'much' is not a size"),
        ({"memory": "1KiB"}, "^memory: "),
        ({"short_side": 10, "size": (1, 1)}, "short_side or size"),
    ],
)
def test_wrong_arguments_are_named(rows: list[essp.VideoRow], options: dict[str, Any], words: str) -> None:
    with pytest.raises(essp.ConfigError, match=words):
        list(essp.stream(rows, **options))


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 20), st.integers(1, 60))
def test_windows_cover_a_video(frames: int, stride: int, step: int, length: int) -> None:
    span = (frames - 1) * stride + 1
    starts = _Windows(frames, stride, step, False).starts(length)
    assert starts[0] == 0
    assert starts[-1] < length
    assert starts[-1] + span >= length or starts[-1] + step >= length, "nothing is left at the end"
    assert len(starts) == 1 or starts[-2] + span < length, "and no window is in vain"
    whole = _Windows(frames, stride, step, True).starts(length)
    assert list(whole) == [start for start in range(0, length, step) if start + span <= length]


@given(st.sets(st.integers(0, 200), max_size=40))
def test_numbers_are_divided_into_even_runs(numbers: set[int]) -> None:
    frames = sorted(numbers)
    assert [frame for run in _as_ranges(frames) for frame in run] == frames
    assert [_as_ranges(range(3, 40, step)) for step in (1, 5)] == [[range(3, 40)], [range(3, 39, 5)]]
