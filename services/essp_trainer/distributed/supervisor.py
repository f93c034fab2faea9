"""All ranks of a training on this machine, one process each: `essp trainer --ranks N`.

    supervisor ──starts──▶ rank 0, rank 1, ...      each is `python -m essp_trainer.main`, as under torchrun
               ◀──exit────                          all succeed: done; one is killed: all are restarted

When a rank dies, the others notice and leave (`ranks.py`), and the training resumes from its last checkpoint with new
processes. A rank that ends with its own error (a wrong setting, a non-finite loss) would fail again: the supervisor
ends the others and raises `RanksFailed`. Ranks end when their supervisor is killed.

This process does not load torch.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from essp_common.errors import PermanentError
from essp_trainer.config import TrainerSettings

log = logging.getLogger(__name__)

EXIT_RANK_LOST = 75
"""Exit code of a rank that left because another rank, its own GPU or a server failed (EX_TEMPFAIL: restarting all
helps)."""

_POLL_S = 0.1
_NOTICE_S = 20.0
"""How long ranks may take to notice that one died; then they are killed, which is safe at any time."""
_PROVEN_S = 300.0
"""Ranks that ran for this long did not die of a problem at their start."""


class RanksFailed(PermanentError):
    """A rank ended with an error that a restart does not repair."""


class Supervisor:
    """Starts the ranks of one training, and restarts them."""

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        settings: TrainerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`command`: starts one rank, which reads its number from the environment."""
        self.name = "trainer"
        self.interrupted = False
        """Whether the ranks were drained before the training was done."""
        self._command = list(command)
        self._ranks = ranks
        self._settings = settings
        self._clock = clock
        self._draining = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._starting = threading.Lock()

    def run(self) -> None:
        """Run until all ranks have succeeded. Raises `RanksFailed`."""
        restarts = 0
        while not self._draining.is_set():
            began = self._clock()
            codes = self._run_once()
            for rank, code in enumerate(codes):
                if code > 0 and code not in (EXIT_RANK_LOST, self._settings.drained_exit):
                    raise RanksFailed(f"rank {rank} of {self._ranks} ended with exit code {code}; its log says why")
            if self._draining.is_set() or not set(codes) - {0, self._settings.drained_exit}:
                self.interrupted = any(codes)
                return
            restarts = 1 if self._clock() - began > _PROVEN_S else restarts + 1
            if restarts > self._settings.rank_restarts:
                raise RanksFailed(
                    f"the ranks died {restarts} times in a row, each time within {_PROVEN_S:g} s of their start (exit "
                    f"codes {codes}); see their logs"
                )
            log.warning(
                "ranks ended with exit codes %s; restarting all %d from the last checkpoint", codes, self._ranks
            )

    def drain(self) -> None:
        """Make the ranks save between two batches and leave."""
        self._draining.set()
        with self._starting:
            for process in self._processes:
                process.terminate()

    def _run_once(self) -> list[int]:
        """Start the ranks and wait until all have ended. Returns their exit codes, negative for signals."""
        with self._starting:
            if self._draining.is_set():
                return []
            environment = _rendezvous(self._ranks)
            self._processes = [self._start(rank, environment) for rank in range(self._ranks)]
        try:
            return self._wait()
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()

    def _start(self, rank: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "ESSP_SUPERVISED": "true"}
        return subprocess.Popen(
            self._command,
            env={**os.environ, **environment, **own},
            stdin=subprocess.PIPE,  # never written to: its end tells the rank that this process has died
            process_group=0,  # an interrupt at the terminal reaches only the supervisor, which drains the ranks
        )

    def _wait(self) -> list[int]:
        """Wait until all have ended. Once one has failed, kill those that do not end in time."""
        deadline = math.inf
        while None in (codes := [process.poll() for process in self._processes]):
            dead = [rank for rank, code in enumerate(codes) if code]
            if dead and deadline == math.inf:
                deadline = self._clock() + _NOTICE_S
                log.warning("rank %d died; waiting until the others notice", dead[0])
            if self._clock() > deadline and not self._draining.is_set():
                for process in self._processes:
                    process.kill()
            time.sleep(_POLL_S)
        return [process.wait() for process in self._processes]


def _rendezvous(ranks: int) -> dict[str, str]:
    """Return the environment with which `torch.distributed` connects ranks on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    count = str(ranks)
    return {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
