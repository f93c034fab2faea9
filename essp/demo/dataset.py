"""The labelled video set of the demonstration: real encoded files that require both appearance and motion.

Classes are pairs (texture x motion): `coins-left`, `grass-up`, ... Knowing only the texture leaves a choice of four
motions, and knowing only the motion leaves a choice of three textures: at best 1/4 and 1/3 correct.

    directory/{train,validation,test}/<class>/<take>.{mp4,mov,mkv,avi}

Files differ in codec, container, size, frame rate, length, GOP and B-frames, in the same way for every class. They are
a function of `seed` alone, byte for byte. Each file appears complete or not at all, and existing files are kept, so an
interrupted call can be repeated to continue. A directory that contains another set is rejected.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from essp.demo.photographs import TEXTURES
from essp.demo.scene import MOTIONS, Scene, render
from essp_common.errors import ConfigError, Conflict, EsspError
from essp_common.runtime.children import deaf_to_interrupts
from essp_common.runtime.cores import cpu_count
from essp_engine.video.synthetic import Encoding, write_video

CLASSES = tuple(f"{texture}-{motion}" for texture in TEXTURES for motion in MOTIONS)
MANIFEST = "dataset.json"

_VERSION = 1
_SHARES = {"train": 4, "validation": 1, "test": 1}  # out of 6
_PARTIAL = ".partial"  # folder of unfinished files
_BATCH = 6  # videos per task of a process


@dataclass(frozen=True, slots=True)
class _Format:
    suffix: str
    width: int
    height: int
    encoding: Encoding


_RATE = {"b": "1500k"}  # with the encoder's default, the videos are barely recognisable
_FORMATS = (
    _Format("mp4", 176, 144, Encoding("h264", fps=25, gop=12)),
    _Format("avi", 160, 120, Encoding("mpeg4", fps=25, gop=12, options=_RATE)),
    _Format("mkv", 192, 144, Encoding("h264", fps=30, gop=250, bframes=2)),
    _Format("mp4", 128, 160, Encoding("h264", fps=24, gop=30, bframes=2, open_gop=True)),
    _Format("avi", 192, 128, Encoding("mpeg4", fps=30, gop=18, options=_RATE)),
    _Format("mov", 160, 128, Encoding("h264", fps=15, gop=48, bframes=1)),
)


@dataclass(frozen=True, slots=True)
class _Video:
    path: Path
    texture: str
    motion: str
    split: str
    take: int


def make_dataset(
    directory: str | Path,
    videos_per_class: int = 30,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make the set in `directory` with one process per core, and return that directory.

    Of every six videos of a class, four are for training and one each for validation and test. `progress` is called
    with the number of videos that exist and the total. Raises `ConfigError` if the directory contains another set, and
    `Conflict` while another process makes it.
    """
    root = Path(directory)
    with _alone(root):
        _claim(root, {"version": _VERSION, "videos_per_class": videos_per_class, "seed": seed})
        _complete(root, list(_videos(root, videos_per_class)), seed, progress or (lambda done, total: None))
    return root


def _complete(root: Path, videos: list[_Video], seed: int, report: Callable[[int, int], None]) -> None:
    """Make the missing videos."""
    missing = [video for video in videos if not video.path.exists()]
    done = len(videos) - len(missing)
    report(done, len(videos))
    if not missing:
        return
    batches = [missing[i : i + _BATCH] for i in range(0, len(missing), _BATCH)]
    # Spawned rather than forked, because the caller may have threads.
    with ProcessPoolExecutor(min(len(batches), cpu_count()), mp_context=get_context("spawn")) as pool:
        with deaf_to_interrupts():  # the processes finish their current work
            making = [pool.submit(_make, root, batch, seed) for batch in batches]
        try:
            for made in as_completed(making):
                done += made.result()
                report(done, len(videos))
        except BrokenProcessPool as error:
            raise EsspError(
                f"a process that makes the videos in {root} was killed; see that there is memory for {cpu_count()} "
                "of them, then repeat the command: it continues where it stopped"
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _remove_partial(root, videos)


def _remove_partial(root: Path, videos: Iterable[_Video]) -> None:
    """Remove unfinished files, also those of an interrupted call, and their folder if it is then empty."""
    for video in videos:
        _partial(root, video).unlink(missing_ok=True)
    with suppress(OSError):
        (root / _PARTIAL).rmdir()


def _partial(root: Path, video: _Video) -> Path:
    """The path at which a video is written before it gets its final name."""
    return root / _PARTIAL / f"{video.texture}-{video.motion}-{video.path.name}"


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Create the folder if necessary, and lock it for this process.

    Raises `Conflict` if another process has the lock, and `ConfigError` if the folder cannot be created. The lock ends
    with its process. If a folder cannot be locked, as on some file servers, other processes are not kept out.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = os.open(root, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(
            f"{root} cannot be made ({error.strerror}); choose another directory", code="refused"
        ) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(folder)
        raise Conflict(f"another process is making the videos in {root}; wait for it, or choose another") from error
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(folder)


def _videos(root: Path, videos_per_class: int) -> Iterator[_Video]:
    splits = [split for split, share in _SHARES.items() for _ in range(share)]
    for take in range(videos_per_class):
        split = splits[take % len(splits)]
        for texture in TEXTURES:
            for motion in MOTIONS:
                # The format also changes with every round of the splits, so that each split has all formats.
                suffix = _format(take).suffix
                yield _Video(
                    root / split / f"{texture}-{motion}" / f"{take:04d}.{suffix}", texture, motion, split, take
                )


def _format(take: int) -> _Format:
    return _FORMATS[(take + take // len(_FORMATS)) % len(_FORMATS)]


def _claim(root: Path, manifest: dict[str, int]) -> None:
    path = root / MANIFEST
    if os.path.exists(path):  # `Path.exists` raises for a path that is not valid
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}); remove {root} or choose another directory", code="unreadable"
            ) from error
        if found != manifest:
            raise ConfigError(
                f"{root} holds another video set ({found}); remove it or choose another directory", code="taken"
            )
        return
    try:
        if any(root.iterdir()):
            raise ConfigError(
                f"{root} is not empty and holds no video set of this program; choose another directory", code="taken"
            )
        # Written under another name first, so that an interruption cannot leave half a manifest.
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(manifest), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{root} cannot be made ({error.strerror}); choose another directory", code="refused"
        ) from error


def _make(root: Path, videos: list[_Video], seed: int) -> int:
    for video in videos:
        video.path.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(root, video)
        partial.parent.mkdir(exist_ok=True)
        _write(partial, video, seed)
        # The video gets its name last, so that every file with a final name is complete.
        partial.replace(video.path)
    return len(videos)


def _write(path: Path, video: _Video, seed: int) -> None:
    form = _format(video.take)
    scene = Scene(video.texture, video.motion, video.split, video.take, form.width, form.height)
    write_video(path, render(scene, seed), form.encoding)
