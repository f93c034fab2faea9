"""Starts one rank of a trainer as a process quickly, by forking a server that has already loaded torch.

Modules of ESSP are imported after the environment is set, because they read failpoints on import.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

_PRELOADED = ["torch", "torch.distributed", "essp_common.learning.torchvision_compat", "pyarrow.parquet", "typer"]


def start(environment: dict[str, str], log: Path) -> ForkServerProcess:
    """Start a rank of trainer `one` of job `tiny`, which writes to `log`."""
    from tests.harness.leaks import lasting  # not at the top: ranks import this module

    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with lasting():
        forkserver.ensure_running()
    process = context.Process(target=_run, args=(environment, str(log)), daemon=True)
    process.start()
    return process


def _run(environment: dict[str, str], log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    sys.argv = ["trainer", "--job", "tiny", "--trainer", "one"]
    from essp_trainer.main import as_process

    as_process()
