"""What a process does around its services: signals, threads, logs, health."""

from __future__ import annotations

import http.client
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from essp.servers.servers import free_port
from essp_common.runtime import process
from essp_common.runtime.config import Settings
from essp_common.runtime.metrics import UNITS, MetricsServer
from essp_common.runtime.troubles import MEANINGS, Kind
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S


class Waiting:
    """A service that runs until drained, or raises."""

    def __init__(self, name: str = "waiting", error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.drained = threading.Event()
        self.thread = ""

    def run(self) -> None:
        self.thread = threading.current_thread().name
        if self.error is not None:
            raise self.error
        assert self.drained.wait(LONGEST_S)

    def drain(self) -> None:
        self.drained.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_drains(number: signal.Signals) -> None:
    service = Waiting()
    before = signal.getsignal(number)
    with process.drained_by_signals([service], LONGEST_S):
        signal.raise_signal(number)
        service.run()
    assert signal.getsignal(number) is before


SCRIPT = """
import signal, sys, threading
from essp_common.runtime.process import drained_by_signals
class Stubborn:
    name = "stubborn"
    def run(self): threading.Event().wait()
    def drain(self): print("draining", flush=True)
with drained_by_signals([Stubborn()], float(sys.argv[1])):
    print("running", flush=True)
    Stubborn().run()
"""


UNWAKEABLE = SCRIPT.replace(
    "with drained",
    """threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])  # so the thread above gets them
with drained""",
)


@pytest.fixture
def stubborn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process whose service does not drain."""
    started: list[subprocess.Popen[str]] = []

    def start(drain_s: float, script: str = SCRIPT) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(drain_s)]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(running)
        assert running.stdout is not None
        assert running.stdout.readline() == "running\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.readline() == "draining\n"
        return running

    yield start
    for running in started:
        running.kill()
        running.communicate()


@pytest.mark.processes
def test_second_signal_leaves_at_once(stubborn: Callable[..., subprocess.Popen[str]]) -> None:
    running = stubborn(1000.0)
    running.send_signal(signal.SIGINT)
    assert running.wait(LONGEST_S) == 130


@pytest.mark.processes
def test_signals_are_heard_while_the_main_thread_never_wakes(stubborn: Callable[..., subprocess.Popen[str]]) -> None:
    running = stubborn(1000.0, UNWAKEABLE)
    running.send_signal(signal.SIGINT)
    assert running.wait(LONGEST_S) == 130


@pytest.mark.processes
def test_drain_has_a_limit(stubborn: Callable[..., subprocess.Popen[str]]) -> None:
    running = stubborn(0.1)
    _, errors = running.communicate(timeout=LONGEST_S)
    assert running.returncode == 1
    assert "not drained within 0.1 s" in errors


SILENCED = SCRIPT.replace(
    'print("draining", flush=True)',
    """
        logging.basicConfig(stream=sys.stdout)
        print("draining", flush=True)
        logging.error("x" * 2**20)""",
).replace("import signal", "import logging, signal")


@pytest.mark.processes
def test_drain_has_a_limit_though_nobody_reads_the_log(stubborn: Callable[..., subprocess.Popen[str]]) -> None:
    assert stubborn(0.1, SILENCED).wait(LONGEST_S) == 1


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_signal_of_a_fork_is_its_own(number: signal.Signals) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        fork_that_gets(number)
    finally:
        signal.signal(signal.SIGINT, before)


def fork_that_gets(number: signal.Signals) -> None:
    service = Waiting()
    with process.drained_by_signals([service], LONGEST_S):
        started, start = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.write(start, b"x")
                while True:  # a signal right before a longer wait would not end it
                    time.sleep(0.01)
            finally:
                os._exit(3)
        os.read(started, 1)
        os.kill(child, number)
        status = os.waitpid(child, 0)[1]
    os.close(started)
    os.close(start)
    if number is signal.SIGTERM:
        assert os.WTERMSIG(status) == number
    else:
        assert os.WEXITSTATUS(status) == 3, "KeyboardInterrupt"
    assert not service.drained.is_set()


def test_services_run_side_by_side_under_their_names() -> None:
    one, two = Waiting("one"), Waiting("two")
    runner = threading.Thread(target=process.run_all, args=([one, two],))
    runner.start()
    one.drain()
    assert runner.is_alive()
    two.drain()
    runner.join(LONGEST_S)
    assert (one.thread, two.thread) == ("one", "two")


def test_service_that_fails_drains_the_others() -> None:
    error, other = RuntimeError("broken"), Waiting("other")
    with pytest.raises(RuntimeError, match="broken") as raised:
        process.run_all([other, Waiting("failing", error)])
    assert raised.value is error
    assert other.drained.is_set()


def test_worker_is_named_by_settings_or_by_its_host() -> None:
    assert process.worker_name(Settings(worker="decoder-7")) == "decoder-7"
    name = process.worker_name(Settings(worker=""))
    assert name.rpartition(".")[0] == process.process_name(os.getpid())
    assert process.worker_name(Settings(worker="")) == name


@pytest.mark.processes
def test_two_workers_of_one_host_name_and_process_id_have_two_names() -> None:
    """As containers have that share the network of their host."""
    code = (
        "import os; os.getpid = lambda: 1\n"
        "from essp_common.runtime import process\n"
        "from essp_common.runtime.config import Settings\n"
        "print(process.worker_name(Settings(worker='')))"
    )
    names = {subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)}
    assert len(names) == 2
    assert {name.rpartition(".")[0] for name in names} == {process.process_name(1)}


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONGEST_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_health_are_served() -> None:
    ready = threading.Event()
    UNITS.labels("test_stage", "done").inc()
    server = MetricsServer(0, ready.is_set, "127.0.0.1")
    try:
        assert 'essp_units_total{outcome="done",stage="test_stage"} 1.0' in get(server.port, "/metrics")[1]
        assert get(server.port, "/livez")[0] == 200
        assert get(server.port, "/readyz")[0] == 503
        ready.set()
        assert get(server.port, "/readyz")[0] == 200
        assert get(server.port, "/other")[0] == 404
        with refused("ESSP_METRICS_PORT", "taken"):
            MetricsServer(server.port, ready.is_set, "127.0.0.1")
    finally:
        server.close()


def test_no_answer_is_kept_or_taken_for_something_else() -> None:
    server = MetricsServer(0, lambda: True, "127.0.0.1")
    try:
        for method, path in (("GET", "/metrics"), ("GET", "/readyz"), ("GET", "/other"), ("POST", "/metrics")):
            with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_S)) as client:
                client.request(method, path)
                headers = client.getresponse().headers
            assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff"), path
    finally:
        server.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("10.2.3.4:9100", "[fd00::7]:9100", "localhost", "decoder", "host.internal")),
        *((host, 200) for host in ("10-2-3-4.team.pod.cluster.local:9100", "essp-decoder-metrics.team.svc")),
        *((host, 200) for host in ("decoder.team.svc.k8s.corp.example:9100", "LOCALHOST.:9100")),
        *((host, 403) for host in ("evil.example.com:9100", "10.2.3.4.evil.example", "k8s.corp.example.evil.org")),
        *((host, 403) for host in ("", "a b", "localhost@evil.example")),
    ],
)
def test_metrics_are_given_under_no_name_that_a_strangers_page_can_have(
    host: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prometheus asks pods by their address or by a name of the cluster; probes may use any name."""
    (tmp_path / "resolv.conf").write_text("nameserver 10.0.0.1\nsearch team.svc.k8s.corp.example k8s.corp.example\n")
    monkeypatch.setattr("essp_common.runtime.hosts.RESOLVER", tmp_path / "resolv.conf")
    server = MetricsServer(0, lambda: True, "127.0.0.1")
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_S)) as client:
            for path, expected in (("/metrics", status), ("/livez", 200), ("/readyz", 200)):
                client.request("GET", path, headers={"Host": host})
                answer = client.getresponse()
                answer.read()
                assert answer.status == expected, path
    finally:
        server.close()


def test_a_probe_that_gives_up_leaves_no_traceback(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A defect leaves one in the log."""
    raised = iter([BrokenPipeError(), ConnectionResetError(), TimeoutError(), ValueError("defect")])

    def ready() -> bool:
        raise next(raised)

    server = MetricsServer(0, ready, "127.0.0.1")
    try:
        for logged in (0, 0, 0, 1):
            with pytest.raises(http.client.RemoteDisconnected):
                get(server.port, "/readyz")
            assert len(caplog.records) == logged
    finally:
        server.close()
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("root_logger")
def test_serve_runs_a_service_with_its_endpoint() -> None:
    """Ready while it runs, not ready once it drains, gone afterwards."""
    port = free_port()
    answers: list[int] = []

    class Probing(Waiting):
        def run(self) -> None:
            answers.append(get(port, "/readyz")[0])
            signal.raise_signal(signal.SIGTERM)
            super().run()
            answers.append(get(port, "/readyz")[0])

    with refused("ESSP_BUS", "conflict"):
        process.serve(Probing(), Settings())
    process.serve(Probing(), Settings(bus="kafka://127.0.0.1:1", metrics_port=port, drain_s=LONGEST_S))
    assert answers == [200, 503]
    with pytest.raises(urllib.error.URLError):
        get(port, "/livez")


@pytest.mark.usefixtures("root_logger")
def test_a_service_that_is_kept_from_working_is_not_ready_and_says_why() -> None:
    port, troubles = free_port(), {Kind.STORAGE_FULL: "no room"}
    answers: list[tuple[int, str]] = []

    class Probing(Waiting):
        def run(self) -> None:
            answers.append(get(port, "/readyz"))
            answers.append(get(port, "/metrics"))
            troubles.clear()
            answers.append(get(port, "/readyz"))
            answers.append(get(port, "/metrics"))

    process.serve(
        Probing("trainer"), Settings(bus="kafka://127.0.0.1:1", metrics_port=port, drain_s=LONGEST_S), lambda: troubles
    )
    assert answers[0] == (503, f"not ready: storage-full: trainer: {MEANINGS[Kind.STORAGE_FULL]}\n")
    assert 'essp_condition{kind="storage-full",subject="trainer"} 1.0' in answers[1][1]
    assert answers[2] == (200, "ready\n")
    assert 'essp_condition{kind="storage-full",subject="trainer"} 0.0' in answers[3][1]
