"""Trainers killed at any instant, as processes over a real broker and a real cache: every clip is trained exactly once.

The final weights equal those of an uninterrupted run, bit for bit. The tests take the roles of master, decoder and
extractor: they publish all clips, and make clips again that are reported as lost.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from essp.servers.servers import free_port
from essp_common.artifacts import checkpoint, layout
from essp_common.artifacts.manifest import Manifest
from essp_common.pb.v1.messages_pb2 import LOST, Control
from essp_common.runtime.failpoints import VARIABLE
from essp_common.wiring import open_bus, open_cache
from essp_trainer.distributed.supervisor import EXIT_RANK_LOST
from tests.harness import launcher
from tests.harness.training_jobs import Stage, files_of, job_spec, phase_plans, train
from tests.harness.waiting import LONGEST_S
from tests.lanes import often

pytestmark = pytest.mark.integration

DRAINED = 76
"""What a rank is to end with that leaves before the end, as in the chart."""
TRAINER = ["--job", "tiny", "--trainer", "one"]
ONE_RANK = [
    # It saves after each batch of 4 and at the end of each epoch: at 4, 8, 10; after 6 clips of validation at 20, ...
    "trainer.trained:2",  # the second batch, without anything of it being said
    "trainer.released:1",  # said, and not saved
    "checkpoint.data:1",
    "checkpoint.manifest:1",
    "checkpoint.latest:1",  # saved, and not said
    "checkpoint.pruned:1",  # at the end of the epoch
    "trainer.scored:1",  # in the middle of ending an evaluation
    "trainer.saved:1",
    "trainer.announced:1",  # said, and its messages not committed
    "trainer.committed:1",
]
BURST = [
    "checkpoint.staged:1",  # in the burst buffer, and not in the store
    "checkpoint.manifest:1",  # what was staged is in the store, and is not the latest there
    "checkpoint.copied:1",  # durable, and still in the buffer
]
TWO_RANKS = [
    (1, "trainer.trained:2"),
    (0, "trainer.released:1"),
    (0, "checkpoint.latest:1"),
    (1, "trainer.announced:1"),
    (0, "trainer.scored:1"),
    (0, "trainer.committed:2"),
]


class Servers:
    """A job on real servers, and the processes of its trainer."""

    def __init__(self, kafka_url: str, redis_url: str, folder: Path) -> None:
        self._folder = folder
        self.environment = {"ESSP_BUS": kafka_url, "ESSP_CACHE": redis_url}
        spec = job_spec(folder / "run", checkpoint={"every": 4})
        self.stage = Stage(spec, phase_plans(2), open_bus(kafka_url), open_cache(redis_url))
        self._lives = 0

    def begin(self) -> None:
        """Start the job and put all of its clips out."""
        self.stage.command(Control.START)
        self.stage.feed(self.stage.every_position())
        self.stage.bus.flush()

    def life(
        self, ranks: int, failpoints: Sequence[tuple[int, str]] = (), drained: int | None = None
    ) -> list[tuple[int | None, str]]:
        """Run so many ranks until all have ended; exit code and log of each. `drained`: this one gets SIGTERM once a
        checkpoint is saved."""
        self._lives += 1
        port = str(free_port())
        processes, logs = [], []
        for rank in range(ranks):
            own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            own["ESSP_DRAINED_EXIT"] = str(DRAINED)
            own[VARIABLE] = ",".join(f"{point}:kill" for armed, point in failpoints if armed == rank)
            logs.append(self._folder / f"{self._lives:02}-{rank}.log")
            environment = {**os.environ, **self.environment, **own}
            processes.append(launcher.start(TRAINER, environment, logs[-1], launcher.RANK))
        try:
            if drained is not None:
                self.until("a checkpoint was saved", lambda: bool(self.stage.reports("checkpoint")))
                processes[drained].terminate()
            self.until("all ranks have ended", lambda: all(process.poll() is not None for process in processes))
        finally:
            end(processes)
        return [(process.returncode, log.read_text()) for process, log in zip(processes, logs, strict=True)]

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Make lost clips again until this holds."""
        deadline = time.monotonic() + LONGEST_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {LONGEST_S:g} s: {what}"
            for progress in self.stage.progress(timeout_s=0.05):
                failed = progress.failed
                if progress.WhichOneof("event") == "failed":
                    assert failed.kind == LOST, failed.reason
                    phases = [(plan.purpose, plan.epoch) for plan in self.stage.plans]
                    self.stage.feed([(phases.index((failed.clip.purpose, failed.clip.epoch)), failed.clip.index)])

    def close(self) -> None:
        self.stage.close()
        self.stage.bus.close()
        self.stage.cache.close()


def end(processes: Sequence[launcher.Forked]) -> None:
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def servers(own_kafka_url: str, empty_redis_url: str, tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(own_kafka_url, empty_redis_url, tmp_path)
    yield servers
    servers.close()


def uninterrupted(folder: Path, ranks: int) -> Stage:
    """The same job in this process."""
    stage = Stage(job_spec(folder, checkpoint={"every": 4}), phase_plans(2))
    train(stage, ranks=ranks)
    return stage


def kept(stage: Stage) -> dict[str, bytes]:
    """Everything a training leaves that is the same each time."""
    final = checkpoint.read_latest(stage.store, "one")
    assert final is not None
    assert final.final
    last = checkpoint.read(stage.store, "one", checkpoint.steps(stage.store, "one")[-2])
    phases = (("validation", 0), ("validation", 1), ("test", 1))
    found = {f"{purpose}-{epoch}": stage.store.get(layout.scores("one", purpose, epoch)) for purpose, epoch in phases}
    found |= {f"final {name}": data for name, data in files_of(stage.store, final).items()}
    found |= {f"last {name}": data for name, data in files_of(stage.store, last).items()}
    return found | {"counts": counts(final) + counts(last)}


def counts(manifest: Manifest) -> bytes:
    return f"{manifest.step} {manifest.updates} {manifest.digest};".encode()


@pytest.mark.lane("long")
def test_killed_at_each_point_it_ends_as_if_never_stopped(servers: Servers, tmp_path: Path) -> None:
    servers.begin()
    for point in ONE_RANK:
        [(code, log)] = servers.life(1, [(0, point)])
        assert code == -signal.SIGKILL, log
        assert f"failpoint {point.partition(':')[0]}: kill" in log
    [(code, log)] = servers.life(1)
    assert code == 0, log
    assert kept(servers.stage) == kept(uninterrupted(tmp_path / "whole", 1))
    assert servers.stage.cache.usage().keys == 0


@pytest.mark.lane("long")
def test_killed_between_the_burst_buffer_and_the_store_it_ends_as_if_never_stopped(
    servers: Servers, tmp_path: Path
) -> None:
    servers.environment["ESSP_BURST"] = f"{(tmp_path / 'nvme').as_uri()}?bytes=64MiB"
    servers.begin()
    for point in BURST:
        [(code, log)] = servers.life(1, [(0, point)])
        assert code == -signal.SIGKILL, log
        assert f"failpoint {point.partition(':')[0]}: kill" in log
    [(code, log)] = servers.life(1)
    assert code == 0, log
    final, whole = kept(servers.stage), kept(uninterrupted(tmp_path / "whole", 1))
    assert final == whole
    assert servers.stage.cache.usage().keys == 0


@pytest.mark.parametrize("points", often([TWO_RANKS[:3], TWO_RANKS[3:]], 1), ids=["early", "late"])
def test_one_of_two_ranks_killed_at_each_point_the_other_leaves_and_both_go_on(
    servers: Servers, tmp_path: Path, points: list[tuple[int, str]]
) -> None:
    servers.begin()
    for killed, point in points:
        ends = servers.life(2, [(killed, point)])
        code, log = ends[killed]
        assert code == -signal.SIGKILL, log
        code, log = ends[1 - killed]
        assert code == EXIT_RANK_LOST, log
        assert f"rank {1 - killed} of 2 lost another rank" in log
        assert "start all of them again" in log
    for code, log in servers.life(2):
        assert code == 0, log
    assert kept(servers.stage) == kept(uninterrupted(tmp_path / "whole", 2))
    assert servers.stage.cache.usage().keys == 0


def test_no_rank_says_that_it_is_done_when_one_of_them_is_drained(servers: Servers, tmp_path: Path) -> None:
    """The others leave with it. Who is at its end, to the eyes of Kubernetes, is never started again."""
    servers.stage.command(Control.START)
    servers.stage.feed(servers.stage.every_position()[:7])
    servers.stage.bus.flush()
    assert [code for code, _ in servers.life(2, drained=1)] == [DRAINED, DRAINED]
    servers.stage.feed(servers.stage.every_position()[7:])
    servers.stage.bus.flush()
    assert [code for code, _ in servers.life(2)] == [0, 0]
    assert kept(servers.stage) == kept(uninterrupted(tmp_path / "whole", 2))


class Launched:
    """A launcher of ranks of trainer `one`, as a process of its own."""

    def __init__(self, servers: Servers, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command, *TRAINER],
                env={**os.environ, **servers.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def story(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def pids(self, rank: int) -> list[int]:
        """Of all processes that were this rank, one after another."""
        return [int(pid) for pid in re.findall(rf"started as \S*-(\d+)\.\w+-rank{rank}\n", self.story())]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The ranks of torchrun are in its process group; those of `essp trainer` end with it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.lane("long")
def test_ranks_are_started_again_when_one_is_killed(servers: Servers, tmp_path: Path) -> None:
    """Rank 1 dies between its first checkpoint and the next."""
    servers.stage.command(Control.START)
    servers.stage.feed(servers.stage.every_position()[:7])
    command = ["-m", "essp", "trainer", "--ranks", "2"]
    with Launched(servers, command, tmp_path / "ranks.log") as launched:
        servers.until("a checkpoint was saved", lambda: bool(servers.stage.reports("checkpoint")))
        os.kill(launched.pids(1)[0], signal.SIGKILL)
        servers.stage.feed(servers.stage.every_position()[7:])
        servers.until("the trainer has ended", lambda: launched.process.poll() is not None)
        assert launched.process.returncode == 0, launched.story()
        assert len(launched.pids(1)) == 2
        assert "rank 0 of 2 lost another rank" in launched.story()
    assert kept(servers.stage) == kept(uninterrupted(tmp_path / "whole", 2))


def test_torchrun_starts_ranks_on_two_nodes(servers: Servers, tmp_path: Path) -> None:
    """By the command of the chart's Jobs, each of whose pods is a node."""
    servers.begin()
    meeting = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    essp = str(launcher.essp_program(tmp_path))

    def node(rank: int) -> Launched:
        agent = ["-m", "torch.distributed.run", *meeting, f"--node-rank={rank}", "--nproc-per-node=1"]
        return Launched(servers, [*agent, "--no-python", essp, "trainer"], tmp_path / f"node-{rank}.log")

    with node(1) as second, node(0) as first:
        for launched in (first, second):
            servers.until("the trainer has ended", launched.has_ended)
            assert launched.process.returncode == 0, launched.story()
    assert (len(first.pids(0)), len(second.pids(1))) == (1, 1)
    assert kept(servers.stage) == kept(uninterrupted(tmp_path / "whole", 2))
