"""What tests share: real servers, started when first asked for and stopped at the end, and checks for leaks.

A server lives for the session (one each per xdist worker). `redis_url`, `kafka_url` and `s3_url` may be used by
fixtures of any scope; `empty_redis_url`, `own_kafka_url` and `empty_s3_url` are for one test alone: a flushed
database, a broker of its own, a prefix of its own. `unique` names topics, groups and jobs on the shared ones.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from essp.servers.servers import RedisServer, S3Server
from tests.harness import shared
from tests.harness.apache_kafka import VARIABLE
from tests.harness.brokers import kafka_broker
from tests.harness.fast_lane import FastLane
from tests.harness.leaks import LeakCheck
from tests.harness.log_capture import LoggersLookedAtOnce
from tests.harness.reports import EveryFailureReported, PassesReportedInShort
from tests.harness.skips import SkipsRefused
from tests.lanes import FAST, LANES, Lane

BUCKET = "essp-tests"

os.environ.setdefault("ESSP_LOG_FORMAT", "text")
"""Of the processes that tests start; their logs are read by people, when a test has failed."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""If it were set, each process that a test starts would compile all modules anew."""

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
"""Several tests run at the same time: more threads than cores, and threads that spin while they wait, slow all down. So
do processes that wait for something to compile."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, default=12, help="how many of each property (default: 12)")
    parser.addoption("--lane", choices=(FAST, *LANES), help="only the tests of this lane (tests/lanes.py says which)")
    parser.addoption("--refuse-skips", action="store_true", help="a test that is skipped fails")


def pytest_configure(config: pytest.Config) -> None:
    _leave_running()
    _hear_interrupts()
    # How long an example takes says more about the machine than about what is tested. Examples are other ones in each
    # run, so that many short runs find what one long run would.
    settings.register_profile(
        "essp",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
        max_examples=config.getoption("--examples"),
    )
    settings.load_profile("essp")
    lane = config.getoption("--lane")
    if lane != "gpu":
        # Results of CPUs are the same everywhere; a training would find the GPU by itself.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if lane == "kafka" and VARIABLE not in os.environ:
        raise pytest.UsageError(f"set {VARIABLE} to an unpacked release of Apache Kafka: a folder with its libs/")
    if lane == "cluster" and "KUBECONFIG" not in os.environ:
        raise pytest.UsageError("set KUBECONFIG to the file of a cluster in which tests may make namespaces")
    config.pluginmanager.register(LeakCheck())
    config.pluginmanager.register(EveryFailureReported())
    config.pluginmanager.register(PassesReportedInShort())
    config.pluginmanager.register(LoggersLookedAtOnce())
    config.pluginmanager.register(shared.Shared())
    config.pluginmanager.register(Lane(lane))
    if config.getoption("--refuse-skips"):
        config.pluginmanager.register(SkipsRefused())
    if lane == FAST:
        config.pluginmanager.register(FastLane())


def _leave_running() -> None:
    """On cores that are all busy, whoever wakes up waits for its turn. Threads that pass the interpreter's lock to and
    fro change places less often so, and a sixth of the time in the kernel is saved. Children inherit it."""
    if hasattr(os, "sched_setscheduler"):  # Linux
        with suppress(OSError):  # not everywhere in containers
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _hear_interrupts() -> None:
    """Some tests press Ctrl-C. What a shell starts in the background, or by nohup, has it ignored, and so have its
    children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded while tests are collected stays to the end, and is millions of objects: the garbage collector does
    not look at them again and again, neither meanwhile nor whenever a test, or the check for leaks, makes it run. What
    tests load and remember stays as well, so it also runs less often: it took an eighth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Only called where there are several workers."""
    from tests.harness.scheduling import CostliestFirst

    return CostliestFirst(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say for how long each worker was busy: whether the tests are dealt out evenly."""
    busy_s: Counter[str] = Counter()
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if hasattr(report, "node"):
            busy_s[report.node.gateway.id] += report.duration
    if busy_s:
        terminalreporter.write_line(", ".join(f"{name}: {busy_s[name]:.0f} s" for name in sorted(busy_s)))


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process sets up logging; the next test is to find none of it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    if root.level != level:  # it would have all loggers look anew whether they are enabled
        root.setLevel(level)


@pytest.fixture
def unique() -> str:
    """A short name that no other test has."""
    return "t" + uuid.uuid4().hex[:10]


@pytest.fixture(scope="session")
def server_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's servers write their logs."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def redis_server(server_logs: Path) -> Iterator[RedisServer]:
    with RedisServer(server_logs, maxmemory_bytes=64 * 2**20) as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    """`redis://...` of the session, 64 MiB, noeviction."""
    return redis_server.url


@pytest.fixture
def empty_redis_url(redis_server: RedisServer) -> str:
    """The session's Redis, flushed for this test."""
    redis_server.execute("FLUSHALL")
    return redis_server.url


@pytest.fixture(scope="session")
def redis_cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`redis+cluster://...` of the session: a cluster of one node, 64 MiB, noeviction."""
    with RedisServer(tmp_path_factory.mktemp("cluster"), maxmemory_bytes=64 * 2**20, cluster=True) as server:
        yield server.url


@pytest.fixture(scope="session")
def kafka_url(server_logs: Path) -> Iterator[str]:
    """`kafka://...` of the session; topics and groups are to be named after `unique`."""
    with kafka_broker(server_logs) as server:
        yield server.url


@pytest.fixture
def own_kafka_url(tmp_path: Path) -> Iterator[str]:
    """A broker for this test alone, so that the topics of ESSP can be used under their own names."""
    with kafka_broker(tmp_path) as server:
        yield server.url


@pytest.fixture(scope="session")
def s3_server(server_logs: Path) -> Iterator[S3Server]:
    """An S3 server with the bucket `essp-tests`; its credentials are in the environment."""
    with pytest.MonkeyPatch.context() as environment, shared.s3_server(server_logs) as server:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def s3_url(s3_server: S3Server) -> str:
    """`s3://bucket/prefix?endpoint=...` of the session."""
    return s3_server.store(BUCKET, uuid.uuid4().hex[:10])


@pytest.fixture
def empty_s3_url(s3_server: S3Server, unique: str) -> str:
    """A prefix with nothing in it, for this test alone."""
    return s3_server.store(BUCKET, unique)


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port on which nothing answers: it is bound, so that nobody else gets it, and does not listen."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield int(reserved.getsockname()[1])


@pytest.fixture(scope="session", autouse=True)
def forked_children() -> Iterator[None]:
    """Child processes of ESSP are forked from one that has loaded what they import: many a test needs some."""
    from tests.harness import launcher

    with launcher.forks_children():
        yield


@pytest.fixture
def started_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this test, and of what it starts, are started by their commands."""
    from tests.harness import launcher

    monkeypatch.setenv(launcher.STARTED, "1")


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the pictures that this test makes, which take a second of each report: all are the same one."""
    # They bring matplotlib, which most tests do without.
    from essp.bench import checkpoint_plot, trace_plot
    from essp.bench import plot as bench_plot
    from essp.capacity import plot as capacity_plot
    from essp.report import plots, samples

    for module in (plots, samples, bench_plot, checkpoint_plot, trace_plot, capacity_plot):
        monkeypatch.setattr(module, "png", lambda figure, theme: b"\x89PNG")


@pytest.fixture
def double_precision() -> Iterator[None]:
    """The test's models compute in float64; `harness/rounding.py` says why."""
    from tests.harness.rounding import in_double_precision  # brings torch, which most tests do without

    with in_double_precision():
        yield
