"""The sandbox: units in, clips or reasons out, whatever the videos do to the process that decodes them."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from essp_common.errors import EsspError, Unavailable
from essp_common.pb.v1.messages_pb2 import (
    Seed,
)
from essp_common.runtime.shared_slots import SharedMemory
from essp_common.wiring import open_store
from essp_engine.decoding.sandbox import Sandbox, SandboxOptions, _ChildLost
from essp_engine.decoding.settings import DecodingSettings
from essp_engine.video import codec
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.decode_units import FRAMES, kinds, numbers, unit

pytestmark = pytest.mark.processes


@pytest.mark.usefixtures("started_children")
def test_nothing_that_lies_where_it_is_started_is_run(
    options: SandboxOptions, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "av", "essp_decoder"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not a module of the decoder')")
    monkeypatch.chdir(tmp_path)
    with closing(Sandbox(options)) as sandbox:
        assert numbers(sandbox.decode(unit(folder, "a.mp4", 7))[0])[0] == 7


@pytest.mark.parametrize("clip_codec", ["raw", "jpeg", "zstd"])
def test_clips_come_out_as_cache_values(sandbox: Sandbox, folder: Path, clip_codec: str) -> None:
    for name in ("a.mp4", "b.avi"):
        outcomes = sandbox.decode(unit(folder, name, 30, 0, 7, 9, clip_codec=clip_codec))
        assert [numbers(outcome)[0] for outcome in outcomes] == [30, 0, 7, 9]
        assert numbers(outcomes[2]) == [7, 8, 9, 10, 11]
        assert {codec.header(outcome).codec for outcome in outcomes if not isinstance(outcome, EsspError)} == {
            clip_codec
        }


def test_clips_stay_as_they_are_while_others_are_decoded(sandbox: Sandbox, folder: Path) -> None:
    first = sandbox.decode(unit(folder, "a.mp4", 3))[0]
    assert not isinstance(first, EsspError)
    frames = codec.decode(first)
    before = frames.copy()
    del first
    for frame in range(12, 20):
        sandbox.decode(unit(folder, "a.mp4", frame))
    np.testing.assert_array_equal(frames, before)


def test_memory_is_used_again() -> None:
    memory = SharedMemory()
    try:
        taken = [memory.take(1 << 20) for _ in range(8)]
        views = [memory.view(slot, 1 << 20) for slot in taken]
        parts = [np.frombuffer(view[:100], np.uint8) for view in views]
        del views
        other = memory.take(1 << 20)
        assert other not in taken  # those are still in use, through `parts`
        parts.clear()
        assert {memory.take(1 << 20) for _ in range(8)} == set(taken)
    finally:
        memory.close()


def test_bad_files_say_what_is_wrong(sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    changed = unit(folder, "a.mp4", 0)
    changed.video.size_bytes += 1
    foreign = unit(folder, "a.mp4", 0)
    foreign.video.uri = f"file://{tmp_path}/a.mp4"
    pointless = unit(folder, "a.mp4", 0)
    pointless.seeds[0].frame_count = 0
    incomplete = unit(folder, "a.mp4", 0)
    incomplete.seeds[0].offsets.extend([0, 2])
    incomplete.seeds[0].later.add(first_frame=9, offsets=[0])
    units = [unit(folder, "text.mp4", 0, 5), unit(folder, "none.mp4", 0), changed, foreign, pointless, incomplete]
    found = [kinds(sandbox.decode(each)) for each in units]
    assert found == [["not_video"] * 2, ["vanished"], ["changed"], ["vanished"], ["error"], ["error"]]
    assert numbers(sandbox.decode(unit(folder, "a.mp4", 1))[0])[0] == 1


def test_a_file_that_changes_while_open_is_not_read_on(sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    path = folder / "c.mp4"
    write_video(path, numbered(FRAMES), Encoding())
    work = unit(folder, "a.mp4", 0)
    work.video.uri, work.video.size_bytes = f"file://{path}", path.stat().st_size
    assert kinds(sandbox.decode(work)) == ["clip"]
    path.write_bytes(path.read_bytes() + b"\0")
    assert kinds(sandbox.decode(work)) == ["changed"]
    path.unlink()
    assert kinds(sandbox.decode(work)) == ["vanished"]


def test_one_bad_seed_leaves_the_others_alone(sandbox: Sandbox, folder: Path) -> None:
    work = unit(folder, "a.mp4", 2, 38, 20)
    work.seeds[1].last_frame = FRAMES + 10
    outcomes = sandbox.decode(work)
    assert kinds(outcomes) == ["clip", "truncated", "clip"]
    assert numbers(outcomes[2])[0] == 20


def test_a_killed_child_costs_nothing_but_time(sandbox: Sandbox, folder: Path) -> None:
    sandbox.start()
    child = sandbox.pid
    assert child is not None
    os.kill(child, signal.SIGSTOP)  # it will not answer before it dies
    killer = threading.Timer(0.1, os.kill, (child, signal.SIGKILL))
    killer.start()
    outcomes = sandbox.decode(unit(folder, "a.mp4", 4, 8))
    killer.join()
    assert [numbers(outcome)[0] for outcome in outcomes] == [4, 8]
    assert sandbox.pid not in (None, child)


class Poisoned(Sandbox):
    """Kills its child when it is asked for a clip that begins at frame 13."""

    def _ask(self, request: bytes) -> dict[str, object]:
        self.start()
        if Seed(first_frame=13).SerializeToString() in request:
            os.kill(self.pid or 0, signal.SIGKILL)
        return super()._ask(request)


def test_only_the_seed_that_crashes_the_child_is_lost(options: SandboxOptions, folder: Path) -> None:
    with closing(Poisoned(options)) as sandbox:
        outcomes = sandbox.decode(unit(folder, "a.mp4", 2, 13, 20))
    assert kinds(outcomes) == ["clip", "crashed", "clip"]


class Garbled(Sandbox):
    """Sends no request for a clip that begins at frame 13."""

    def _ask(self, request: bytes) -> dict[str, object]:
        return super()._ask(b"?" if Seed(first_frame=13).SerializeToString() in request else request)


def test_a_child_that_fails_says_why(options: SandboxOptions, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Garbled(options)) as sandbox:
        outcomes = sandbox.decode(unit(folder, "a.mp4", 2, 13, 20))
    assert kinds(outcomes) == ["clip", "crashed", "clip"]
    assert str(outcomes[1]).startswith("the decoder failed: struct.error: unpack")
    assert "Traceback (most recent call last)" in caplog.text


def test_too_long_is_too_long(options: SandboxOptions, folder: Path) -> None:
    with closing(Sandbox(replace(options, timeout_s=1e-4))) as sandbox:
        sandbox.start()
        assert sandbox.pid is not None
        os.kill(sandbox.pid, signal.SIGSTOP)  # else it may answer before anybody waits
        assert kinds(sandbox.decode(unit(folder, "a.mp4", 2))) == ["timeout"]


class Hanging(Sandbox):
    """Its child never answers, which takes as long as it may by a clock of its own."""

    now_s = 0.0

    def _ask(self, request: bytes) -> dict[str, object]:
        self.now_s += self._options.timeout_s
        raise _ChildLost("took longer", "timeout")

    def monotonic(self) -> float:
        return self.now_s


def test_a_video_that_hangs_at_each_seed_is_given_up(
    options: SandboxOptions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seeds alone get the time of four units together, and not each of them its own."""
    with closing(Hanging(options)) as sandbox:
        monkeypatch.setattr("essp_engine.decoding.sandbox.time", sandbox)
        outcomes = sandbox.decode(unit(folder, "a.mp4", *range(8)))
        assert sandbox.now_s == (1 + 4) * options.timeout_s
    assert kinds(outcomes) == ["timeout"] * 8
    assert [str(outcome) for outcome in outcomes[3:5]] == [
        "the decoder took longer",
        "the decoder had no time to try it alone: the 4 before it in its message took 4 times 120 s",
    ]


def test_children_are_replaced_and_leave_nothing_behind(options: SandboxOptions, folder: Path) -> None:
    pids = []
    with closing(Sandbox(replace(options, units=2))) as sandbox:
        for _ in range(4):
            sandbox.start()
            pids.append(sandbox.pid)
            assert kinds(sandbox.decode(unit(folder, "a.mp4", 2))) == ["clip"]
    assert len(set(pids)) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


def test_more_memory_than_allowed_is_refused(options: SandboxOptions, folder: Path) -> None:
    with closing(Sandbox(replace(options, clip_bytes=1000))) as sandbox:
        assert kinds(sandbox.decode(unit(folder, "a.mp4", 2))) == ["limit"]


@pytest.mark.usefixtures("started_children")
def test_a_child_that_cannot_start_is_not_blamed_on_the_video(
    options: SandboxOptions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with (
        closing(Sandbox(options)) as sandbox,
        pytest.raises(Unavailable, match="has ended with status 1 before it was ready"),
    ):
        sandbox.decode(unit(folder, "a.mp4", 2))


def test_one_that_is_not_ready_in_time_is_not_said_to_have_been_killed(
    options: SandboxOptions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*_: object) -> bytes:
        raise TimeoutError

    with closing(Sandbox(options)) as sandbox:
        with monkeypatch.context() as slow:
            slow.setattr("essp_common.runtime.child_process.Channel.receive", hangs)
            with pytest.raises(Unavailable, match="was not ready within 60 s"):
                sandbox.decode(unit(folder, "a.mp4", 2))
        assert kinds(sandbox.decode(unit(folder, "a.mp4", 2))) == ["clip"]


def test_nor_is_one_for_which_the_machine_has_no_room(
    options: SandboxOptions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no memory for clips either."""

    def popen(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with closing(Sandbox(options)) as sandbox:
        with monkeypatch.context() as full:
            full.setattr("essp_common.runtime.child_process.subprocess.Popen", popen)
            for _ in range(3):
                with pytest.raises(Unavailable, match="cannot be started: Resource temporarily unavailable"):
                    sandbox.decode(unit(folder, "a.mp4", 2))
        size = sandbox._memory.size
        assert numbers(sandbox.decode(unit(folder, "a.mp4", 2))[0])[0] == 2
        assert sandbox._memory.size == size


@pytest.mark.integration
def test_videos_in_an_object_store_are_read_there(s3_url: str, folder: Path) -> None:
    store = open_store(s3_url)
    info = store.put_file("videos/a.mp4", str(folder / "a.mp4"))
    work = unit(folder, "a.mp4", 3, 30)
    work.video.uri, work.video.etag = store.uri("videos/a.mp4"), info.etag
    with closing(Sandbox(DecodingSettings(stores=(s3_url,)).sandbox())) as sandbox:
        assert [numbers(outcome)[0] for outcome in sandbox.decode(work)] == [3, 30]
        store.put("videos/a.mp4", b"another")
        assert kinds(sandbox.decode(work)) == ["changed"] * 2
        store.delete("videos/a.mp4")
        assert kinds(sandbox.decode(work)) == ["vanished"] * 2
