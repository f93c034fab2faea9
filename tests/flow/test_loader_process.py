"""`essp.Loader` whose job is in a process of its own, as for a GPU. Here batches go to a CPU."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import essp
from essp.api.loader import Loader
from essp.catalog.build import BuildOptions, build
from essp.loops import clips_process
from tests.harness import launcher
from tests.harness.loops import loader, taken
from tests.harness.waiting import LONGEST_S, runs, until
from tests.lanes import often

pytestmark = [pytest.mark.processes, pytest.mark.lane("promises")]


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loader, "_leaves_interpreter", lambda self: True)


def test_it_is_for_loops_on_a_gpu_that_need_nothing_else(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose kernels are launched by this process. Transforms, and loops that share clips, need the job in it."""
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert loader(catalog, device="cuda")._leaves_interpreter()
    assert not loader(catalog)._leaves_interpreter()
    assert not loader(catalog, device="cuda", loops=2)._leaves_interpreter()
    assert not loader(catalog, device="cuda", transform=lambda frames, random: frames)._leaves_interpreter()


def test_batches_are_the_same(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the colours of their videos until they are sent; and computed features of these."""
    pixels = essp.Clip(frames=4, stride=2, size=40, pixels="yuv420")
    for options in ({}, {"feature": "flow", "params": {"length": 3}, "drop_last": True}):
        with loader(catalog, clip=pixels, **options) as clips:
            shown = list(clips)
        with monkeypatch.context() as here, loader(catalog, clip=pixels, **options) as clips:
            here.setattr(Loader, "_leaves_interpreter", lambda self: False)
            for one, other in zip(shown, clips, strict=True):
                assert torch.equal(one.frames, other.frames)
                assert torch.equal(one.labels, other.labels)
                assert one.meta == other.meta


def test_the_clips_of_a_state_are_the_same(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of batches that are smaller than a page, too, which is as much as can be mapped."""
    options: dict[str, Any] = {"clip": essp.Clip(frames=1, size=32, pixels="gray"), "batch_size": 2}
    with loader(catalog, **options) as clips:
        clips.load_state_dict(clips.state_dict() | {"epoch": 1, "clip": 4})
        shown = taken(clips) + taken(clips)
    monkeypatch.setattr(Loader, "_leaves_interpreter", lambda self: False)
    with loader(catalog, **options) as clips:
        clips.set_epoch(1)
        assert shown == taken(clips)[4:] + taken(clips)
    assert all(pixels for *_, pixels in shown)


def test_errors_of_data_and_warnings_are_those_of_the_loop(
    own_set: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    damaged, catalog = own_set
    (damaged / "train" / "left" / "0.mp4").unlink()
    with loader(catalog, clips_per_epoch=24) as clips:
        assert len(taken(clips)) == 24
    assert "train/left/0.mp4" in caplog.text
    with (
        loader(catalog, clips_per_epoch=24, dead_ratio=0) as clips,
        pytest.raises(essp.EsspError, match=r"train/left/0\.mp4"),
    ):
        list(clips)


def test_another_catalog_is_not_shown_as_if_it_were_this_one(own_set: tuple[Path, Path]) -> None:
    folder, catalog = own_set
    with loader(catalog) as clips:
        (folder / "train" / "left" / "0.mp4").unlink()
        build(f"file://{folder}", f"file://{catalog}", ("file:///",), BuildOptions("folders"))
        with pytest.raises(essp.EsspError, match="the catalog has changed since this loader was made"):
            next(iter(clips))
        catalog.unlink()
        with pytest.raises(essp.EsspError, match=r"catalog\.parquet"):
            next(iter(clips))


def test_it_begins_with_any_epoch_and_needs_no_torch(catalog: Path) -> None:
    """Beyond those that were asked for, too. Torch takes longer to load than all the rest together."""
    with loader(catalog, epochs=1) as clips:
        clips.set_epoch(9)
        iteration = iter(clips)
        first = next(iteration)
        [running] = clips_process._open
        assert "libtorch" not in Path(f"/proc/{running._child.process.pid}/maps").read_text(encoding="utf-8")
        assert {epoch for epoch, *_ in taken([first, *iteration])} == {9}


def test_a_process_that_dies_is_an_error_and_another_one_goes_on(catalog: Path) -> None:
    with loader(catalog, clips_per_epoch=400) as clips:
        iteration = iter(clips)
        next(iteration)
        state = clips.state_dict()
        [running] = clips_process._open
        os.kill(running._child.process.pid, signal.SIGKILL)
        with pytest.raises(essp.EsspError, match="clips of this loop was killed by signal 9"):
            list(iteration)
        clips.load_state_dict(state)
        assert next(iter(clips)).meta["index"][0] == 4


def test_a_process_that_cannot_start_is_an_error_of_the_loop(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("essp_common.runtime.child_process.subprocess.Popen", popen)
    with loader(catalog) as clips, pytest.raises(essp.EsspError, match="cannot be started: Resource temporarily"):
        next(iter(clips))
    monkeypatch.undo()
    monkeypatch.setattr(Loader, "_leaves_interpreter", lambda self: True)
    monkeypatch.setattr(clips_process, "_MODULE", "essp.loops.no_such_module")
    with loader(catalog) as clips, pytest.raises(essp.EsspError, match="has ended with status 1"):
        next(iter(clips))


_LOOP = """
import os, signal, sys, essp
from essp.api.loader import Loader
from essp.loops import clips_process

Loader._leaves_interpreter = lambda self: True
loader = essp.Loader(
    sys.argv[1], clip=essp.Clip(4, 2, 40), batch_size=2,
    sampling=essp.Sampling(clips_per_epoch=1000), limits=essp.Limits(decoders=1),
)
batches = iter(loader)
next(batches)
[running] = clips_process._open
print(os.getpid(), running._child.process.pid, flush=True)
if sys.argv[2] == "raises":
    raise ZeroDivisionError
if sys.argv[2] in ("forks", "closes"):
    if os.fork() == 0:
        signal.pause()
    if sys.argv[2] == "closes":
        loader.close()
        if running._child.process.returncode:
            print("it had to be killed", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", often(["raises", "forks", "closes"], 1))
def test_nothing_is_left_of_it_however_the_loop_ends(catalog: Path, tmp_path: Path, how: str) -> None:
    """A fork that lives on holds the connection, too."""
    script = tmp_path / "loop.py"
    script.write_text(_LOOP)
    loop = subprocess.Popen(
        [*launcher.python(), str(script), str(catalog), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        start_new_session=True,
        text=True,
    )
    assert loop.stdout is not None
    with loop:
        group, child = map(int, loop.stdout.readline().split())
        loop.wait(LONGEST_S)
        until(lambda: not runs(child))
        if how in ("forks", "closes"):
            os.killpg(group, signal.SIGKILL)
        assert loop.stdout.read() == ""
    assert not list(tmp_path.glob("essp-loader-*"))
