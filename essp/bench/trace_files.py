"""The files of a trace: `NAME.csv` second by second, `NAME.png` as a picture, `NAME-files.csv` by file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from essp.bench.accesses import Accesses, write_files_csv
from essp.bench.trace import StoreCounters, Trace, write_csv
from essp.folders import written
from essp_common.errors import ConfigError


@contextmanager
def traced(
    path: Path | None, interval_s: float, folders: list[str], accesses: Accesses | None = None
) -> Iterator[Trace | None]:
    """A trace of this block, for `write_trace`; None without a path.

    `path`: of the CSV file. `folders`: the folders whose disks are watched. `accesses`: provides the counters of object
    stores. Raises `ConfigError` before the block begins if the path is not a CSV file or cannot be written.
    """
    if path is None:
        yield None
        return
    check_trace(path)
    with Trace(interval_s, folders, accesses.totals if accesses else StoreCounters) as trace:
        yield trace


def check_trace(path: Path, plot: Path | None = None) -> None:
    """Raises `ConfigError` if a trace cannot be written to `path`, or if its picture would overwrite `plot`."""
    check_path(path, "--trace", ".csv")
    picture = _picture(path)
    for beside in (picture, _by_file(path)):
        try:
            check_path(beside, "--trace", beside.suffix)
        except ConfigError as error:
            raise ConfigError(f"{path} also writes {error.problem}", field="--trace", code=error.code) from error
    if plot is not None and os.path.abspath(picture) == os.path.abspath(plot):
        raise ConfigError(
            f"{plot}: --trace {path} draws its picture there; give one of them another name",
            field="--plot",
            code="conflict",
        )


def check_path(path: Path, option: str, suffix: str) -> None:
    """Raises `ConfigError` if such a file cannot be written to `path`. Called before anything is measured."""
    if path.suffix.lower() != suffix:
        raise ConfigError(f"{path}: give a name that ends with {suffix}", field=option)
    if not os.path.isdir(path.parent):
        raise ConfigError(f"{path}: there is no folder {path.parent}; make it first", field=option, code="not_found")
    try:
        usable = not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError:  # the name is not valid for a file
        usable = False
    if not usable:
        raise ConfigError(f"{path}: cannot be written; give another name", field=option, code="refused")


def write_trace(trace: Trace, accesses: Accesses | None, path: Path) -> None:
    """Write the files of a finished trace. Raises `ConfigError` if one cannot be written."""
    from essp.bench.trace_plot import picture  # needs an extra

    with written(path):
        write_csv(trace.samples, path)
    with written(_picture(path)):
        _picture(path).write_bytes(picture(trace.samples, trace.marks))
    if accesses is not None:
        with written(_by_file(path)):
            write_files_csv([*accesses.files(), accesses.total()], _by_file(path))


def _picture(path: Path) -> Path:
    """The path of the picture that belongs to this CSV file."""
    return path.with_suffix(".png")


def _by_file(path: Path) -> Path:
    """The path of the file with the accesses to each file."""
    return path.with_name(f"{path.stem}-files.csv")
