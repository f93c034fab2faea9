"""What all test workers of a run share, since it takes seconds to load: an S3 server, and processes that fork others.

The controller of pytest-xdist starts both before its workers, and passes their addresses in the environment. The S3
server starts while the tests are loaded; the preloaded processes import their modules at the first request
(`launcher.py`). The workers themselves are forked from one of them, which has loaded the tests. Without workers
(`pytest PATH`), a test process starts what it needs.
"""

from __future__ import annotations

import os
import shlex
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest
from execnet.xspec import XSpec

from essp.servers.servers import free_port
from tests.harness import launcher
from tests.harness.moto_server import MotoServer
from tests.harness.waiting import until

S3_PORT = "ESSP_TEST_S3_PORT"
"""The environment variable with the port of the S3 server that all workers use."""


class Shared:
    """The plugin of the controller."""

    def __init__(self) -> None:
        self._resources = ExitStack()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[XSpec]) -> None:
        """Before the first worker is started."""
        folder = Path(self._resources.enter_context(TemporaryDirectory(prefix="essp-shared-")))
        lane = config.getoption("--lane")
        tests = [*config.args, *([f"--lane={lane}"] if lane else [])]
        self._resources.enter_context(launcher.for_all_workers(folder, tests))
        for spec in specs:
            spec.python = shlex.join(launcher.forked_python(folder, "worker"))
        port = os.environ[S3_PORT] = str(free_port())
        self._resources.callback(os.environ.pop, S3_PORT)
        server = MotoServer(folder, int(port))
        starting = threading.Thread(target=_start, args=(server,), name="s3")
        starting.start()
        self._resources.callback(server.stop)
        self._resources.callback(starting.join)

    def pytest_unconfigure(self) -> None:
        """After the last worker has ended."""
        self._resources.close()


def _start(server: MotoServer) -> None:
    with suppress(Exception):  # a test that needs it says that it is not there
        server.start()


class SharedS3Server(MotoServer):
    """The S3 server of all workers, as one of them uses it: another process starts and stops it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = int(os.environ[S3_PORT])

    def __enter__(self) -> Self:
        until(self._try_answer, "the S3 server of this run does not answer")
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def s3_server(folder: Path) -> MotoServer:
    """The S3 server of this run; enter it."""
    return SharedS3Server(folder) if S3_PORT in os.environ else MotoServer(folder)
