"""A process that has loaded what every installation has, and forks a child for each `essp` command that is asked for.

    {"arguments": [...], "folder": "...", "environment": {...}, "stdout": "path", "stderr": "path"}  ->  exit status

With `"code": "..."`, the child runs that in place of the command.

One request a line on stdin, one answer a line on stdout. A child differs from a fresh `python -m essp` only in
the modules that are there already: required dependencies, and modules of ESSP that need no more than those. No library
of an extra is among them, which is checked before the first request; so a child can be told to find one missing. With
the argument `torch`, torch is there as well, which takes longer to load than all the rest, and is what most lack last.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

from tests.harness.waiting import LONGEST_S

REQUIRED = (
    "essp.cli.main",
    "essp_common.catalog.file",
    "essp_engine.features.registry",
    "essp_common.job.spec",
    "essp_common.pb.v1.messages_pb2",
    "essp_common.runtime.process",
    "essp_common.wiring",
    "essp_engine.preflight.preflight",
    "pyarrow.parquet",
    "simplejpeg",
    "typer._adapters",
    "yaml",
    "zstandard",
)


WITH_TORCH = frozenset({"torch", "pynvml"})
"""What torch brings."""


def preload(more: tuple[str, ...] = ()) -> None:
    """Load what needs no extra, and these. Raises `RuntimeError` if that brings a library of an extra."""
    for name in (*REQUIRED, *more):
        import_module(name)
    from essp_common.distribution import EXTRAS

    if loaded := sorted((EXTRAS.keys() & sys.modules.keys()) - (WITH_TORCH if more else set())):
        raise RuntimeError(f"loaded without being asked for: {', '.join(loaded)}")


def become(request: dict[str, object]) -> None:
    """Turn this child into the command: its streams, folder, environment and, as Python starts up, `sitecustomize`."""
    for number, (path, flags) in enumerate(
        (
            (os.devnull, os.O_RDONLY),
            (str(request["stdout"]), os.O_WRONLY | os.O_CREAT),
            (str(request["stderr"]), os.O_WRONLY | os.O_CREAT),
        )
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    environment, arguments = request["environment"], request["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    sys.argv = ["essp", *arguments]
    spec = spec_from_file_location("sitecustomize", os.path.join(str(request["folder"]), "sitecustomize.py"))
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))


def serve() -> None:
    """Answer requests until stdin ends. A child returns from here, to leave as Python does."""
    gc.disable()
    preload(tuple(sys.argv[1:]))
    gc.freeze()  # a child that leaves need not look at all that again
    gc.enable()
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            signal.alarm(int(LONGEST_S))
            request = json.loads(line)
            become(request)
            if "code" in request:
                exec(request["code"], {"__name__": "__main__"})
            else:
                runpy.run_module("essp", run_name="__main__", alter_sys=True)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
