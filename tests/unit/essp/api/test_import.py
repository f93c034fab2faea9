"""`import essp` loads no library, and has what it says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import essp
from essp_common.distribution import version


@pytest.mark.processes
def test_importing_it_loads_no_library() -> None:
    """Counted in modules: they are the same on every machine, and time is not."""
    code = "import sys; before = set(sys.modules); import essp; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    assert loaded == ["essp", "essp_engine", "essp_engine.learning", "essp_engine.learning.torchvision_import"]


@pytest.mark.processes
def test_decoding_loads_no_torch_and_no_client_library() -> None:
    code = "import sys, essp; essp.decode; essp.features; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "kafka", "redis", "boto3", "cv2"} & set(done.stdout.split())


def test_every_name_is_there_and_says_what_it_is() -> None:
    assert [name for name in dir(essp) if not name.startswith("__")] == sorted(essp.__all__)
    for name in essp.__all__:
        assert getattr(essp, name).__doc__


def test_types_and_homes_name_the_same() -> None:
    """What a type checker sees is what an import gives."""
    tree = ast.parse(Path(str(essp.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        str(node.module): tuple(a.name for a in node.names) for node in block.body if isinstance(node, ast.ImportFrom)
    }
    assert typed.pop("essp") == essp._MODULES
    assert typed == essp._HOMES
    assert sorted(name for names in typed.values() for name in names) == sorted(essp.__all__)


ELSEWHERE = """
import importlib, os, signal, socket, sys
for library in "numpy pyarrow.parquet pydantic_settings av cv2 typer rich.console multiprocessing tempfile".split():
    importlib.import_module(library)
for module in "fcntl grp pwd resource termios".split():
    sys.modules[module] = None
for module, names in {
    os: "fork getuid killpg memfd_create nice pipe2 posix_fadvise posix_fallocate pread preadv register_at_fork "
        "sched_getaffinity sched_getscheduler sched_setscheduler setsid statvfs sysconf waitid O_CLOEXEC O_DIRECTORY",
    signal: "SIGCHLD SIGHUP SIGKILL SIGUSR1 pthread_sigmask setitimer sigwait ITIMER_REAL ITIMER_PROF",
    socket: "AF_UNIX",
}.items():
    for name in names.split():
        delattr(module, name)
"""
"""What Python has not on Windows, and in part not on macOS; libraries find it before."""
EVERYWHERE = ("Catalog", "VideoRow", "BadVideo", "EsspError", "open_catalog", "decode", "features", "compute_feature")
ON_LINUX = ("predict", "stream", "Segment", "Window")


@pytest.mark.processes
def test_elsewhere_than_on_linux_it_says_what_needs_linux() -> None:
    code = f"""{ELSEWHERE}
import essp
for name in {EVERYWHERE}:
    getattr(essp, name)
essp.features()
for name in {ON_LINUX}:
    try:
        getattr(essp, name)
    except essp.ConfigError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.partition(" (")[0] for line in said] == [f"essp.{name} needs Linux" for name in ON_LINUX]


@pytest.mark.lane("promises")
@pytest.mark.processes
@pytest.mark.parametrize("command", ["run", "catalog"])
def test_elsewhere_than_on_linux_a_command_says_that_it_needs_linux(command: str) -> None:
    arguments = {"run": ["job.yaml"], "catalog": ["show", "c.parquet"]}[command]
    code = f"{ELSEWHERE}\nsys.argv = ['essp', {command!r}, *{arguments}]\nfrom essp.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"essp {command} needs Linux" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_says_its_version() -> None:
    assert essp.__version__ == version()
    assert "__version__" in dir(essp)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'decoder'"):
        _ = essp.decoder
