"""`essp job` against a real API: what it prints, and how it exits."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import Result

from essp.cli import job as cli
from essp.cli import rest
from essp.cli.rest import EXIT_DENIED, connect
from essp_common.errors import ConfigError, Conflict, EsspError, NotFound, PermanentError, Unavailable
from essp_common.job.status import JobStatus
from essp_master.api import events as master_events
from essp_master.api import idempotency, status_feed
from tests.harness.command_line import essp
from tests.harness.fleet import make_job
from tests.harness.model_manifest import manifest_at
from tests.harness.proxy import Proxy
from tests.harness.refused import refused
from tests.harness.serving import Served
from tests.harness.waiting import LONGEST_S


class Live(Served):
    """A master that commands are sent to, maybe through something that loses them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.file = folder / "job.json"
        self.file.write_text(self.job.model_dump_json())
        self.reached_at = self.url

    def essp(self, *arguments: str, typed: str | None = None) -> Result:
        """Run `essp job ...` against it."""
        return essp("job", *arguments, "--server", self.reached_at, typed=typed)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path) as made:
        yield made


def test_what_a_job_file_leaves_out_is_not_sent_as_if_given(live: Live, tmp_path: Path) -> None:
    """A prediction has the clips and streams of its model, which are not the defaults of a job."""
    model = manifest_at(f"file://{tmp_path}/trained", live.job.clip, live.job.streams, {"rgb": 0.5, "diff": 0.5})
    job = {"name": "told", "output": "told", "data": live.job.data.model_dump(), "predictor": {"model": model}}
    live.file.write_text(json.dumps(job))
    started = live.essp("start", str(live.file), "--json")
    assert started.exit_code == 0, started.stderr
    assert live.master.status("told").phases[0].done.keys() == {"predictor.rgb", "predictor.diff"}


def test_a_job_from_start_to_end(live: Live) -> None:
    started = live.essp("start", str(live.file), "--json")
    assert json.loads(started.stdout)["state"] == "running"
    assert "small" in live.essp("ls").stdout
    assert json.loads(live.essp("ls", "--json").stdout)[0]["total"] == 44
    shown = live.essp("get", "small").stdout
    assert "running" in shown
    assert max(map(len, shown.splitlines())) < 200
    assert json.loads(live.essp("pause", "small", "--json").stdout)["state"] == "paused"
    assert json.loads(live.essp("resume", "small", "--json").stdout)["state"] == "running"
    assert live.essp("wait", "small", "--timeout", "0").exit_code == cli.EXIT_TIMEOUT
    live.complete()
    assert live.essp("wait", "small").exit_code == 0
    events = [json.loads(line) for line in live.essp("events", "small", "--json").stdout.splitlines()]
    assert [event["id"] - events[0]["id"] for event in events] == list(range(len(events)))
    assert live.essp("events", "small", "--after", str(events[2]["id"])).stdout.count("\n") == len(events) - 3


def test_a_job_that_has_ended_is_given_more_epochs(live: Live) -> None:
    live.essp("start", str(live.file))
    live.complete()
    assert live.essp("wait", "small").exit_code == 0
    longer = json.loads(live.essp("start", str(live.file), "--epochs", "4", "--json").stdout)
    assert (longer["state"], longer["progress"]["total"]) == ("running", 72)
    live.essp("stop", "small", "--yes")
    again = json.loads(live.essp("start", str(live.file), "--json").stdout)
    assert again["progress"]["total"] == 72, "it goes on with the epochs that it was given"


def test_a_priority_is_set_where_there_is_a_queue(live: Live, tmp_path: Path) -> None:
    live.essp("start", str(live.file))
    with pytest.raises(ConfigError, match="no queue here"):
        live.essp("priority", "small", "5")
    with Live(tmp_path / "queue", queue_budget=2**30) as queueing:
        queueing.essp("start", str(queueing.file))
        assert "PRIORITY" not in queueing.essp("ls").stdout
        assert json.loads(queueing.essp("priority", "small", "-5", "--json").stdout)["priority"] == -5
        assert "-5" in queueing.essp("ls").stdout
        assert queueing.essp("priority", "small", "1001").exit_code == 2


def test_fields_of_a_running_job_are_set_as_a_job_file_has_them(live: Live) -> None:
    live.essp("start", str(live.file))
    lr, strategies = "trainers.rgb.optimizer.lr=1e-3", "aggregation.strategies=[average, {name: top_k, k: [1, 3]}]"
    status = json.loads(live.essp("set", "small", lr, strategies, "--json").stdout)
    assert [change["fields"] for change in status["changes"]] == [
        {
            "aggregation.strategies": ["average", {"name": "top_k", "k": [1, 3]}],
            "trainers.rgb.optimizer.lr": 0.001,
        }
    ]
    assert live.essp("set", "small", lr).exit_code == 0, "once more is harmless"
    assert "change 1: aggregation.strategies" in live.essp("get", "small").stdout.replace("\n", " ")
    for fields, words in (
        (["trainers.rgb.optimizer.lr"], "write FIELD=VALUE"),
        (["trainers..lr=1"], "write FIELD=VALUE"),
        (["trainers=1", "trainers.rgb=2"], "trainers is the value 1"),
        (["trainers.rgb.optimizer.lr=fast"], "must be a number"),
        (["trainers.rgb.dropout=0.1"], "cannot be changed while the job runs"),
    ):
        with pytest.raises(ConfigError, match=words):
            live.essp("set", "small", *fields)
    with pytest.raises(ConfigError, match="nothing to change: write FIELD=VALUE"):
        live.essp("set", "small")
    for given in ('trainers.rgb."a.b=1', "trainers.\udcff=1", 'trainers."\\q"=1', "=1"):
        with pytest.raises(ConfigError, match="a name with dots in it stands in double quotes"):
            live.essp("set", "small", given)
    live.complete()
    with pytest.raises(Conflict, match="job small is completed; start it again, and change it while it runs"):
        live.essp("set", "small", lr)
    with pytest.raises(Conflict, match="start it again with this trainer in its file"):
        live.essp("set", "small", "trainers.more.stream=rgb")


def test_a_job_is_removed_after_it_was_asked_for(live: Live, tmp_path: Path) -> None:
    live.essp("start", str(live.file))
    with pytest.raises(Conflict, match="stop it first"):
        live.essp("rm", "small", "--yes")
    live.essp("stop", "small", "--yes")
    told = json.loads(live.essp("rm", "small", "--dry-run", "--json").stdout)
    assert (told["job"], told["removed"], told["objects"] > 0) == ("small", False, True)
    assert live.essp("rm", "small", typed="n\n").exit_code == 1
    assert live.essp("get", "small").exit_code == 0
    assert live.essp("rm", "small", typed="y\n").exit_code == 0
    assert json.loads(live.essp("ls", "--json").stdout) == []
    with pytest.raises(NotFound):
        live.essp("rm", "small", "--yes")


@pytest.mark.parametrize("name", ["small:pause?", "small#", "small?"])
def test_a_name_is_one_name_whatever_is_in_it(live: Live, name: str) -> None:
    live.essp("start", str(live.file))
    for call in (["stop", name, "--yes"], ["get", name], ["set", name, "epochs=9"], ["events", name]):
        with pytest.raises(NotFound, match=re.escape(f"there is no job {name!r}; there are: small")):
            live.essp(*call)
    assert json.loads(live.essp("get", "small", "--json").stdout)["state"] == "running"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb", "\udcff", "a" * 70_000])
def test_what_is_no_name_is_refused_before_anything_is_sent(name: str) -> None:
    for call in (["stop", name, "--yes"], ["get", name], ["set", name, "epochs=9"], ["events", name], ["wait", name]):
        with pytest.raises(ConfigError, match="does not exist on the master"):
            essp("job", *call)


def test_a_field_is_given_as_messages_show_it(live: Live) -> None:
    live.essp("start", str(live.file))
    layer = 'trainers.more.optimizer.layers."layer1.0"'
    more = [f"trainers.more.{field}" for field in ("stream=rgb", "augment.crop=16", "batch_size=2")]
    with pytest.raises(ConfigError, match=f"{re.escape(layer)}: must be a number"):
        live.essp("set", "small", *more, f"{layer}=fast")
    told = json.loads(live.essp("set", "small", *more, f"{layer}=0.1", "--json").stdout)
    assert "the trainer more as soon as" in told["reason"]


def test_weights_given_with_a_command_are_meant_from_the_working_folder(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.essp("start", str(live.file))
    monkeypatch.chdir(tmp_path)
    more = [f"trainers.more.{field}" for field in ("stream=rgb", "augment.crop=16", "batch_size=2")]
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "none.pt"))):
        live.essp("set", "small", *more, "trainers.more.weights=none.pt")
    with pytest.raises(ConfigError, match="'imagenet' names no file"):
        live.essp("set", "small", *more, "trainers.more.weights=imagenet")


def test_a_trainer_is_attached_with_a_part_of_a_job_file(live: Live, tmp_path: Path) -> None:
    live.essp("start", str(live.file))
    part = tmp_path / "part.yaml"
    part.write_text("trainers: {more: {stream: rgb, batch_size: 2}}")
    told = live.essp("set", "small", "trainers.more.augment.crop=16", "--file", str(part), "--json").stdout
    assert "the trainer more as soon as" in json.loads(told)["reason"]
    part.write_text("[trainers]")
    with pytest.raises(ConfigError, match=r"part\.yaml: is not a mapping of the fields"):
        live.essp("set", "small", "--file", str(part))
    part.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"part\.yaml: not a text file"):
        live.essp("set", "small", "--file", str(part))
    part.write_text("")
    with pytest.raises(ConfigError, match=r"part\.yaml: is not a mapping of the fields"):
        live.essp("set", "small", "--file", str(part))


def test_who_waits_sees_where_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = json.loads(
        essp("token", "alice", "--scope", "operate", "--scope", "read", "--team", "vision", "--json").stdout
    )
    with Live(tmp_path, queue_budget="64KiB", api_tokens=[made["entry"]]) as live:
        monkeypatch.setenv("ESSP_API_TOKEN", made["token"])
        live.essp("start", str(live.file))
        live.file.write_text(
            live.job.model_copy(update={"name": "next", "output": f"file://{tmp_path}/2"}).model_dump_json()
        )
        live.essp("start", str(live.file))
        listed = json.loads(live.essp("ls", "--json").stdout)
        reason = "its budget is 64.0 KiB, and 0 B of 64.0 KiB are free"
        assert [(job["name"], job["team"], job["queue"]) for job in listed] == [
            ("next", "vision", {"position": 1, "reason": reason}),
            ("small", "vision", None),
        ]
        table = live.essp("ls").stdout
        assert "queued 1" in table
        assert "TEAM" in table
        assert "WHY" in table
        assert f"number 1 in the queue: {reason}" in " ".join(live.essp("get", "next").stdout.replace("│", "").split())


def test_a_job_that_did_not_complete_exits_with_1(live: Live) -> None:
    live.essp("start", str(live.file))
    assert live.essp("stop", "small", "--yes").exit_code == 0
    assert live.essp("wait", "small").exit_code == cli.EXIT_FAILED


@pytest.fixture
def link(live: Live) -> Iterator[Proxy]:
    """What is between the commands and the master."""
    with Proxy(httpx.URL(live.url).port or 0) as proxy:
        live.reached_at = f"http://127.0.0.1:{proxy.port}"
        yield proxy


@pytest.mark.parametrize("lose", [Proxy.lose_requests, Proxy.lose_responses])
def test_what_is_lost_on_the_way_is_asked_for_again_and_done_once(
    live: Live, link: Proxy, lose: Callable[[Proxy, int], None]
) -> None:
    commands = {"start": str(live.file), "pause": "small", "resume": "small", "stop": "small"}
    for number, (command, argument) in enumerate(commands.items(), start=1):
        lose(link, 1)
        confirmed = ["--yes"] if command == "stop" else []
        assert live.essp(command, argument, *confirmed, "--json").exit_code == 0
        assert link.faults.total() == number
    events = [json.loads(line) for line in live.essp("events", "small", "--json").stdout.splitlines()]
    assert [event["data"]["state"] for event in events if event["kind"] == "state"] == [
        "running",
        "paused",
        "running",
        "stopped",
    ]


def test_a_start_that_takes_longer_than_any_request_is_asked_for_until_it_is_answered(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, asked, go, refused = live.master.start, rest.ask, threading.Event(), list[Unavailable]()

    def slow(*given: Any, **more: Any) -> JobStatus:
        assert go.wait(LONGEST_S)
        return start(*given, **more)

    def ask(*given: Any, **more: Any) -> Any:
        try:
            return asked(*given, **more)
        except Unavailable as error:
            refused.append(error)
            if "Idempotency-Key" in str(error):
                go.set()
            raise

    monkeypatch.setattr(live.master, "start", slow)
    monkeypatch.setattr(cli, "ask", ask)
    monkeypatch.setattr(rest, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(idempotency, "PATIENCE_S", 0.0)
    monkeypatch.setattr(cli, "_LOOK_S", 0.0)
    done = live.essp("start", str(live.file), "--json")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (0, "running")
    assert isinstance(refused[0], rest.AnswerLost)
    assert done.stderr.count("trying again") == 1


def test_who_waits_for_a_job_outlives_the_masters_restart(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    get, asked = cli._get, 0

    def restarting(client: httpx.Client, name: str) -> JobStatus:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise Unavailable("the master does not answer")
        live.complete()
        return get(client, name)

    monkeypatch.setattr(cli, "_get", restarting)
    monkeypatch.setattr(cli, "_LOOK_S", 0.0)
    done = live.essp("start", str(live.file), "--wait")
    assert done.exit_code == 0
    assert done.stderr.count("trying again") == 1, "once, not each second"


def test_a_job_is_followed_through_an_outage_until_it_has_ended(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.essp("start", str(live.file))
    get, asked = cli._get, 0

    def seldom(client: httpx.Client, name: str) -> JobStatus:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Unavailable("the master does not answer")
        if asked == 3:
            live.complete()
        return get(client, name)

    monkeypatch.setattr(cli, "_get", seldom)
    monkeypatch.setattr(cli, "_LOOK_S", 0.0)
    shown = [json.loads(line) for line in live.essp("get", "small", "--watch", "--json").stdout.splitlines()]
    assert [next(iter(line)) for line in shown] == ["status", "status", "result"]
    assert shown[-1]["result"]["state"] == "completed"


def test_events_are_followed_through_an_outage_and_none_comes_twice(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.essp("start", str(live.file))
    stream, asked = cli._stream, 0

    def breaking(client: httpx.Client, name: str, after: int) -> Iterator[tuple[str, dict[str, Any]]]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Unavailable("the master does not answer")
        if asked == 3:
            live.complete()
        for number, found in enumerate(stream(client, name, after)):
            if asked == 1 and number:
                return  # the master ends its streams when it hands over
            yield found

    for module in (master_events, status_feed):
        monkeypatch.setattr(module, "STATUS_S", 0.0)
    monkeypatch.setattr(cli, "_stream", breaking)
    monkeypatch.setattr(cli, "_LOOK_S", 0.0)
    events = [json.loads(line) for line in live.essp("events", "small", "--json").stdout.splitlines()]
    assert [event["id"] for event in events] == sorted({event["id"] for event in events})
    assert events[-1]["data"]["state"] == "completed"


def test_a_server_that_breaks_every_answer_off_is_not_asked_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            listening.accept()[0].close()

        answering = threading.Thread(target=hang_up, name="hang-up")
        answering.start()
        with pytest.raises(Unavailable, match="no master answers"):
            essp("job", "events", "a", "--server", f"http://127.0.0.1:{listening.getsockname()[1]}")
        answering.join()


def test_who_started_a_job_and_waited_sees_how_it_ended(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    get = cli._get

    def later(client: httpx.Client, name: str) -> JobStatus:
        live.complete()
        return get(client, name)

    monkeypatch.setattr(cli, "_get", later)
    done = live.essp("start", str(live.file), "--wait")
    assert done.stderr == "job small is running; waiting until it has ended\n"
    assert re.match(r"small completed: 44 of 44 clips in \d+:\d\d\n", done.stdout)
    assert " gone" not in done.stdout, "no picture of the job as it began"
    again = live.essp("start", str(live.file), "--wait", "--json")
    assert (json.loads(again.stdout)["state"], again.exit_code) == ("completed", 0)


def test_who_waits_for_a_job_gives_up_a_master_that_stays_away(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(client: httpx.Client, name: str) -> JobStatus:
        raise Unavailable("the master does not answer")

    monkeypatch.setattr(cli, "_get", away)
    with pytest.raises(Unavailable):
        live.essp("wait", "small")  # it has never answered
    monkeypatch.setattr(cli, "_PATIENCE_S", 0.0)
    with pytest.raises(Unavailable):
        live.essp("start", str(live.file), "--wait")
    answers = iter([live.master.status("small")])

    def gone(client: httpx.Client, name: str) -> JobStatus:
        return next(answers, None) or away(client, name)

    monkeypatch.setattr(cli, "_get", gone)
    monkeypatch.setattr(cli, "_LOOK_S", 0.0)
    with pytest.raises(Unavailable):
        live.essp("get", "small", "--watch")


def test_stop_asks_first(live: Live) -> None:
    live.essp("start", str(live.file))
    declined = live.essp("stop", "small", typed="n\n")
    assert declined.exit_code == 1
    with refused("--yes", "missing"):
        live.essp("stop", "small", typed="")
    assert live.master.status("small").state == "running"


def test_errors_are_those_of_essp(live: Live, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no job 'no'"):
        live.essp("get", "no")
    with pytest.raises(NotFound):
        live.essp("events", "no")
    live.essp("start", str(live.file))
    with pytest.raises(Conflict, match="running"):
        live.essp("start", str(live.file))
    live.essp("stop", "small", "--yes")
    live.file.write_text(make_job(tmp_path, sampling={"seed": 9}).model_dump_json())
    with pytest.raises(ConfigError, match="differs in sampling"):
        live.essp("start", str(live.file))
    assert live.essp("start", str(live.file), "--fresh").exit_code == 0


def test_no_master_there_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with pytest.raises(Unavailable, match="ESSP_SERVER"):
        essp("job", "ls", "--server", f"http://127.0.0.1:{port}")


@pytest.fixture
def other_server() -> Iterator[str]:
    """The URL of a web server that is no master: it greets whoever comes, and sends on who asks for /moved."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            moved = self.path.startswith("/moved")
            pages = {"empty": b"", "list": b"[1]", "table": b'{"jobs": 3}'}
            page = pages.get(self.path.split("/")[1], b"<html>Welcome</html>")
            self.send_response(308 if moved else 200)
            if moved:
                self.send_header("Location", "https://elsewhere/v1")
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("place", ["", "/empty", "/list", "/table"])
def test_a_web_server_that_is_no_master_is_named(other_server: str, place: str, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(make_job(tmp_path).model_dump_json())
    for arguments, words in (
        (["ls"], f"{place}/v1/jobs?page_token= answered as no master does; is that a master"),
        (["get", "a"], f"{place}/v1/jobs/a answered as no master does; is that a master"),
        (["events", "a"], f"{place}/v1/jobs/a/events?after=0 answered as no master does; is that a master"),
        (["start", str(job)], f"{place}/v1/jobs?fresh=false answered as no master does; is that a master"),
    ):
        with pytest.raises(PermanentError, match=re.escape(f"{other_server}{words}")):
            essp("job", *arguments, "--server", other_server + place)


def test_a_master_that_has_moved_is_not_followed_but_named(other_server: str) -> None:
    for arguments in (["ls"], ["get", "a"], ["events", "a"]):
        with refused("--server", "refused"):
            essp("job", *arguments, "--server", f"{other_server}/moved")


def test_no_message_shows_the_password_of_an_address(other_server: str) -> None:
    behind_a_login = other_server.replace("http://", "http://ann:s3cret@")
    for server in (behind_a_login, f"{behind_a_login}/moved", "http://ann:s3cret@127.0.0.1:1"):
        for arguments in (["ls"], ["get", "a"], ["events", "a"]):
            with pytest.raises(EsspError) as caught:
                essp("job", *arguments, "--server", server)
            assert "s3cret" not in str(caught.value)


def test_the_token_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Live(tmp_path, api_token="swordfish") as live:
        assert live.essp("ls").exit_code == EXIT_DENIED
        monkeypatch.setenv("ESSP_API_TOKEN", "swordfish")
        assert live.essp("ls").exit_code == 0


def test_every_command_is_documented() -> None:
    group: Any = typer.main.get_command(cli.app)
    over_rest = {"start", "ls", "get", "pause", "resume", "stop", "priority", "set", "wait", "events"}
    assert set(group.commands) == over_rest | {"why", "dump", "rm"}
    assert all(command.help for command in group.commands.values())


def test_certificates_are_read_where_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over plain HTTP, reading all that are trusted took longer than a request."""
    read: list[object] = []
    load = ssl.SSLContext.load_verify_locations

    def noted(context: ssl.SSLContext, *places: Any, **more: Any) -> None:
        read.append(places)
        load(context, *places, **more)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    connect("HTTP://127.0.0.1:1", "").close()
    assert not read
    connect("https://127.0.0.1:1", "").close()
    assert read
