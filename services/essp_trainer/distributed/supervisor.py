"""All ranks of a training on this machine, one process each: `essp trainer --ranks N`.

    supervisor ──starts──▶ rank 0, rank 1, ...      each is `python -m essp_trainer.main`, as under torchrun
               ◀──ends───                           all end well: done; one is killed: all are started again

A rank that dies takes the others along, which notice and leave (`ranks.py`), and the training goes on from its last
checkpoint with new processes. One that ends with an error of its own (a wrong setting, a loss that is not finite) would
do so again: the others are ended and its exit code is that of the whole. Ranks end when their supervisor is killed.

This process loads no torch.
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
"""Exit code of a rank that left because another, or its GPU, was gone (EX_TEMPFAIL: starting all again helps)."""

_LOOK_S = 0.1
_NOTICE_S = 20.0
"""How long ranks may take to notice that one is gone; who has not then is killed, which is safe at any time."""
_PROVEN_S = 300.0
"""Ranks that ran for so long did not die of what they do first."""


class RanksFailed(PermanentError):
    """A rank ended with an error that starting it again does not mend."""


class Supervisor:
    """Starts the ranks of one training, and starts them again."""

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        settings: TrainerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`command`: starts one rank, which finds in its environment which one it is."""
        self.name = "trainer"
        self.interrupted = False
        """The ranks were told to leave before the end."""
        self._command = list(command)
        self._ranks = ranks
        self._settings = settings
        self._clock = clock
        self._draining = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._starting = threading.Lock()

    def run(self) -> None:
        """Until all ranks have ended well. Raises `RanksFailed`."""
        restarts = 0
        while not self._draining.is_set():
            began = self._clock()
            codes = self._one_life()
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
            log.warning("ranks ended with %s; starting all %d again, from the last checkpoint", codes, self._ranks)

    def drain(self) -> None:
        """Let the ranks save between two batches and leave."""
        self._draining.set()
        with self._starting:
            for process in self._processes:
                process.terminate()

    def _one_life(self) -> list[int]:
        """Start the ranks and wait until all have ended; their exit codes, negative for signals."""
        with self._starting:
            if self._draining.is_set():
                return []
            environment = _meeting_place(self._ranks)
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
            stdin=subprocess.PIPE,  # never written to: that it ends tells the rank that this process is gone
            process_group=0,  # an interrupt at the terminal is for the supervisor, which drains
        )

    def _wait(self) -> list[int]:
        """Wait until all have ended, with a limit once one has ended badly."""
        deadline = math.inf
        while None in (codes := [process.poll() for process in self._processes]):
            dead = [rank for rank, code in enumerate(codes) if code]
            if dead and deadline == math.inf:
                deadline = self._clock() + _NOTICE_S
                log.warning("rank %d is gone; waiting for the others to notice", dead[0])
            if self._clock() > deadline and not self._draining.is_set():
                for process in self._processes:
                    process.kill()
            time.sleep(_LOOK_S)
        return [process.wait() for process in self._processes]


def _meeting_place(ranks: int) -> dict[str, str]:
    """What `torch.distributed` needs to know of ranks on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    count = str(ranks)
    return {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
