"""A disk that others use: random reads and writes of 4 KiB on one file, by several threads of a process of its own.

As FIO in the paper of Check-QZP (1 GiB, 4 KiB, random), except that the system's memory is passed by (`O_DIRECT`) where
the file system can do that, with fewer jobs, and at the lowest priority: so it loads the disk, and of the cores takes
only what nobody else wants. The file is removed at the end.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BLOCK = 4096


@contextmanager
def loaded(folder: Path, size_bytes: int = 2**30, jobs: int = 16) -> Iterator[Any]:
    """Keep the disk of this folder busy; gives a counter of the reads and writes so far (`value`)."""
    context = multiprocessing.get_context("spawn")
    path, done, ready = folder / "load", context.Value("q", 0), context.Event()
    process = context.Process(target=_load, args=(path, size_bytes, jobs, done, ready), daemon=True)
    process.start()
    try:
        while not ready.wait(0.2):
            if not process.is_alive():
                raise RuntimeError(f"{path}: the disk could not be loaded; its error stands above")
        yield done
    finally:
        process.terminate()
        process.join()
        path.unlink(missing_ok=True)


def _load(path: Path, size_bytes: int, jobs: int, done: Any, ready: Any) -> None:
    os.nice(19)
    descriptor = _opened(path)
    os.posix_fallocate(descriptor, 0, size_bytes)
    ready.set()
    for seed in range(jobs):
        threading.Thread(target=_job, args=(descriptor, size_bytes // _BLOCK, seed, done), daemon=True).start()
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()  # where it was killed, the load ends, too
    path.unlink(missing_ok=True)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:  # as tmpfs
        return os.open(path, flags | os.O_DSYNC, 0o600)


def _job(descriptor: int, blocks: int, seed: int, done: Any) -> None:
    draw = random.Random(seed)
    block = mmap.mmap(-1, _BLOCK)  # begins at a page, as O_DIRECT needs it
    block.write(draw.randbytes(_BLOCK))
    while True:
        place = _BLOCK * draw.randrange(blocks)
        if draw.random() < 0.5:
            os.pwrite(descriptor, block, place)
        else:
            os.preadv(descriptor, [block], place)
        done.value += 1  # not locked: it is about how many
