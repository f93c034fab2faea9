"""Local servers come up, answer, and leave nothing behind, even when their starter is killed."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from essp.servers import main, servers
from essp.servers.servers import Address, KafkaServer, RedisServer, S3Server, Server
from essp_common.errors import ConfigError, Conflict, Unavailable
from essp_common.objects.s3 import S3Store
from tests.harness.command_line import essp
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S
from tests.lanes import often

pytestmark = [pytest.mark.processes, pytest.mark.lane("promises")]

KINDS = [RedisServer, KafkaServer, S3Server]
KEYS = {"AWS_ACCESS_KEY_ID": "essp", "AWS_SECRET_ACCESS_KEY": "right"}


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_server_comes_up_and_goes(kind: type[Server], tmp_path: Path) -> None:
    with kind(tmp_path) as server:
        assert server.alive()
        assert str(server.port) in server.url
        assert accepts(server.port)
    assert not server.alive()
    assert not accepts(server.port)


def test_redis_has_a_limit_and_never_evicts(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory_bytes=16 * 2**20) as server:
        assert str(16 * 2**20).encode() in server.execute("CONFIG", "GET", "maxmemory")
        assert b"noeviction" in server.execute("CONFIG", "GET", "maxmemory-policy")


def test_redis_cluster_owns_every_slot(tmp_path: Path) -> None:
    with RedisServer(tmp_path, cluster=True) as server:
        assert server.url.startswith("redis+cluster://")
        assert b"cluster_slots_ok:16384" in server.execute("CLUSTER", "INFO")


@pytest.mark.parametrize("kind", KINDS)
def test_server_comes_up_at_an_address_other_than_the_usual_one(kind: Any, tmp_path: Path) -> None:
    with kind(tmp_path, address=Address("127.0.0.2", "127.0.0.2")) as server:
        assert "127.0.0.2" in server.url
        assert not accepts(server.port)


def test_bucket_is_made_once(tmp_path: Path) -> None:
    with S3Server(tmp_path) as server:
        server.create_bucket("essp")
        server.create_bucket("essp")
        assert server.store("essp", "a") == f"s3://essp/a?endpoint={server.url}"


@pytest.fixture
def login(tmp_path: Path) -> Path:
    """A folder as the chart's Secret gives it to the servers."""
    folder = tmp_path / "login"
    folder.mkdir()
    (folder / "password").write_text('p"w')
    (folder / "credentials").write_text("[default]\naws_access_key_id = essp\naws_secret_access_key = right\n")
    return folder


def test_objects_in_a_folder_are_there_after_a_restart(
    tmp_path: Path, login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "objects"
    with S3Server(tmp_path, folder=folder, credentials=login / "credentials") as server:
        server.create_bucket("essp")
        store = S3Store.from_url(server.store("essp"))
        store.put("a/b", b"first", if_absent=True)
        assert store.keeps_marks("a/b"), "or a write whose answer is lost would wait for ever"
        with store.open("a/b") as file:
            store.put("a/b", b"other")
            with pytest.raises(Conflict):
                file.read()
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(ConfigError, match="SignatureDoesNotMatch"):
            S3Store.from_url(server.store("essp")).get("a/b")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "right")
    with S3Server(tmp_path, folder=folder, credentials=login / "credentials") as server:
        assert S3Store.from_url(server.store("essp")).get("a/b") == b"other"


def test_redis_asks_for_the_password(tmp_path: Path) -> None:
    (tmp_path / "essp-redis.conf").touch(0o644)
    with RedisServer(tmp_path, password='p"w') as server:
        assert server.execute("PING") == b"+PONG\r\n"
        with redis.Redis.from_url(server.url) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
    assert (tmp_path / "essp-redis.conf").stat().st_mode & 0o777 == 0o600


def test_servers_are_not_opened_to_all() -> None:
    with refused("--host", "conflict"):
        essp("servers", "up", "--host", "::")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_lies_beside_the_logs_is_run(kind: type[Server], tmp_path: Path) -> None:
    for name in ("json", "socket", "localbucket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not a module of the server')")
    with kind(tmp_path) as server:
        assert server.alive()


def test_a_start_that_is_interrupted_leaves_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(server: Server) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(RedisServer, "_answers", interrupted)
    server = RedisServer(tmp_path)
    with pytest.raises(KeyboardInterrupt), server:
        pass
    assert not server.alive()


def test_taken_port_is_an_error_with_the_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
        with pytest.raises(Unavailable, match="redis ended at start-up"):
            RedisServer(tmp_path, port).start()


def test_a_port_of_another_server_is_not_taken_for_the_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = int(other.getsockname()[1])
        with pytest.raises(Unavailable, match=f"another server listens on port {port}"):
            RedisServer(tmp_path, port).start()


def test_a_server_that_has_ended_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    """The log itself may be gone with its temporary folder when a user reads of it."""
    server = RedisServer(tmp_path)
    server.log_path.write_text("begun\n" * 9999 + "out of memory\n")
    with pytest.raises(Unavailable, match="redis has ended: begun / begun / out of memory"):
        main._check((server,))


def test_redis_has_a_limit_from_the_command() -> None:
    for few in ("0", "1MiB"):
        with refused("--redis-memory", "range"):
            essp("servers", "up", "--redis-memory", few)


def test_missing_wheel_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(servers, "import_module", absent)
    for kind in KINDS:
        with pytest.raises(ConfigError, match=r"essp-video\[servers\]"):
            kind(tmp_path).start()


def test_server_ends_with_a_killed_starter(tmp_path: Path) -> None:
    code = (
        "import sys, signal; from essp.servers.servers import RedisServer;"
        f"server = RedisServer({str(tmp_path)!r}).start();"
        "print(server.execute('INFO', 'server').decode(), flush=True); print('END', flush=True); signal.pause()"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    output = starter.stdout
    assert output is not None
    lines = list(iter(lambda: output.readline().strip(), "END"))
    pid = int(next(line for line in lines if line.startswith("process_id:")).partition(":")[2])
    handle = os.pidfd_open(pid)
    try:
        starter.kill()
        starter.wait()
        output.close()
        ended, _, _ = select.select([handle], [], [], LONGEST_S)
        assert ended, "redis-server outlived its starter"
    finally:
        os.close(handle)


def up(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "essp", "servers", "up", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", often([signal.SIGTERM, signal.SIGINT], 1))
def test_command_starts_three_and_stops_them(tmp_path: Path, number: int) -> None:
    process = up("--json", "--redis-memory", "8MiB", "--dir", str(tmp_path / "logs"))
    assert process.stdout is not None
    settings = json.loads(process.stdout.readline())
    endpoint = json.loads(settings["ESSP_STORES"])[0].partition("endpoint=")[2]
    ports = [urlsplit(url).port for url in (settings["ESSP_BUS"], settings["ESSP_CACHE"], endpoint)]
    assert all(port and accepts(port) for port in ports)
    process.send_signal(number)
    _, errors = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, errors
    assert not any(port and accepts(port) for port in ports)
    assert {path.name for path in (tmp_path / "logs").iterdir()} >= {"redis.log", "kafka.log", "s3.log"}


def test_command_prints_lines_for_a_shell(tmp_path: Path) -> None:
    process = up("--dir", str(tmp_path))
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(7)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONGEST_S)
    words = [shlex.split(line) for line in lines]
    assert {word[0] for word in words} == {"export"}
    names = {word[1].partition("=")[0] for word in words}
    assert names >= {
        "ESSP_BUS",
        "ESSP_CACHE",
        "ESSP_STORES",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "ESSP_API_TOKEN",
    }


def test_command_refuses_a_size_that_is_none(tmp_path: Path) -> None:
    process = up("--redis-memory", "much")
    _, errors = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 2
    assert "--redis-memory: 'much'" in errors


def test_command_refuses_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with refused("--dir"):
        essp("servers", "up", "--dir", str(tmp_path / "letter.txt"))
