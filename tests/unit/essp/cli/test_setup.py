"""`essp setup` and `essp demo-data`: what they make, and that making it twice is harmless."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaAdminClient
from typer.testing import CliRunner, Result

from essp.cli import demo, demo_data
from essp.cli import main as cli
from essp.cli.job_file import load_job
from essp.demo.dataset import CLASSES
from essp.doctor.redis import examine
from essp.servers.servers import RedisServer
from essp_common import topics
from essp_common.bus.kafka_clients import connected
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.catalog.file import read_catalog
from essp_common.errors import ConfigError, Unavailable
from essp_common.objects.s3 import S3Store
from essp_common.wiring import open_cache, open_store
from essp_engine.video.synthetic import Encoding, write_video
from tests.harness.acls import grants
from tests.harness.command_line import essp as essp_command
from tests.harness.refused import refused


def essp(*arguments: str) -> Result:
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    return done


def test_rights_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_BUS", "kafka://nowhere:1")
    decoder = {
        (operation, resource, kind)
        for who, operations, resources, kind in grants(essp("setup", "--acls").stdout)
        for operation in operations
        for resource in resources
        if "User:essp-decoder" in who
    }
    assert decoder == {
        ("Describe", "topic essp.", "prefixed"),
        ("Read", "topic essp.seeds", "literal"),
        ("Write", "topic essp.clips", "literal"),
        ("Write", "topic essp.progress", "literal"),
        ("Read", "topic essp.control", "literal"),
        ("Write", "topic essp.deadletter", "literal"),
        ("Read", "group decoder", "prefixed"),
    }
    monkeypatch.setenv("ESSP_TENANT", "vision")
    one = essp("setup", "--acls", "--principal", "User:all of us").stdout
    given = grants(one)
    assert len(given) <= 6, "each command starts a JVM"
    assert {who for names, *_ in given for who in names} == {"User:all of us"}
    assert all(resource.partition(" ")[2].startswith("vision.") for *_, resources, _ in given for resource in resources)
    assert {
        operation
        for _, operations, resources, _ in given
        if "group vision.trainer." in resources
        for operation in operations
    } == {"Delete", "Read"}
    refused = CliRunner().invoke(cli.app, ["setup", "--acls", "--principal", "User:{name}"])
    assert "only {service} may stand in braces" in str(refused.exception)


@pytest.mark.integration
def test_a_tenants_user_of_redis_has_its_own_keys_alone(
    redis_server: RedisServer, empty_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESSP_TENANT", "vision")
    command = essp("setup", "--acls").stdout.splitlines()[-1]
    redis_server.execute(*command.replace("PASSWORD", "secret").split())
    try:
        url = empty_redis_url.replace("redis://", "redis://essp-vision:secret@")
        with closing(open_cache(url, "vision")) as own, closing(open_cache(url)) as others:
            own.put("essp:job:{1}", b"frames", ["trainer.rgb"], 60)
            assert bytes(own.get("essp:job:{1}")) == b"frames"
            assert own.usage().keys == 1
            assert own.purge("essp:job:") == 1
            own.put("essp:job:{2}", b"frames", ["trainer.rgb"], 60)
            assert own.ack_all(["essp:job:{2}"], "trainer.rgb") == 1
            with pytest.raises(Unavailable, match="essp setup --acls"):
                others.get("essp:job:{1}")
            with pytest.raises(Unavailable, match="essp setup --acls"):
                others.put("essp:job:{1}", b"frames", ["trainer.rgb"], 60)
            assert {finding.level for finding in examine(url, "vision")} == {"ok"}
    finally:
        redis_server.execute("ACL", "DELUSER", "essp-vision")


@pytest.mark.integration
def test_topics_and_buckets_are_made_once(
    own_kafka_url: str, empty_s3_url: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = empty_s3_url.partition("?")[2]
    monkeypatch.setenv("ESSP_BUS", own_kafka_url)
    monkeypatch.setenv("ESSP_STORES", json.dumps([f"s3://{unique}?{endpoint}", "file:///"]))
    assert f"bucket s3://{unique} was created" in essp("setup", "--buckets", "--feature", "flow").stdout
    assert f"bucket s3://{unique} is there" in essp("setup", "--buckets").stdout
    assert S3Store.from_url(f"s3://{unique}?{endpoint}").put("key", b"value").size_bytes == 5
    with closing(connected(KafkaAdminClient, **KafkaOptions.from_url(own_kafka_url).client())) as admin:
        found = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}
    wanted = (*topics.FIXED, topics.DOCTOR, topics.features("flow"))
    assert found == {topic: topics.partitions(topic) for topic in wanted}


@pytest.mark.integration
def test_buckets_are_made_without_topics(empty_s3_url: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something else makes the topics, the broker is not even asked."""
    monkeypatch.setenv("ESSP_BUS", "kafka://nowhere.invalid:1")
    monkeypatch.setenv("ESSP_STORES", json.dumps([f"s3://{unique}?{empty_s3_url.partition('?')[2]}"]))
    assert essp("setup", "--no-topics", "--buckets").stdout == f"bucket s3://{unique} was created\n"


@pytest.mark.integration
def test_servers_that_cannot_be_used_are_told_at_once(
    empty_redis_url: str, empty_s3_url: str, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would keep pods of an installation from starting, one after another, is in one message."""
    (tmp_path / "password").write_text("wrong")
    monkeypatch.setenv("ESSP_CACHE", f"{empty_redis_url}?password_file={tmp_path}/password")
    monkeypatch.setenv("ESSP_STORES", json.dumps([f"s3://{unique}?{empty_s3_url.partition('?')[2]}"]))
    with pytest.raises(Unavailable) as told:
        essp_command("setup", "--no-topics", "--check")
    redis, s3, *_ = str(told.value).split("\n  ")[1:]
    assert redis.startswith("redis: ")
    assert "AUTH" in redis
    assert f"there is no bucket {unique}" in s3
    monkeypatch.setenv("ESSP_CACHE", empty_redis_url)
    assert "was created" in essp("setup", "--no-topics", "--buckets", "--check").stdout


@pytest.mark.parametrize("arguments", [[], ["--buckets", "--feature", "flow"]])
def test_no_topics_does_not_go_with_what_it_would_leave_out(arguments: list[str]) -> None:
    refused = CliRunner().invoke(cli.app, ["setup", "--no-topics", *arguments])
    assert isinstance(refused.exception, ConfigError)
    assert "--no-topics" in str(refused.exception)


def small_set(write: Callable[..., object]) -> Callable[[str, int], Path]:
    """Three tiny videos in the place of the demonstration's."""

    def make(folder: str, videos_per_class: int) -> Path:
        frames = np.zeros((4, 32, 32, 3), np.uint8)
        for split in ("train", "validation", "test"):
            path = Path(folder) / split / CLASSES[0] / f"{videos_per_class:04d}.mp4"
            path.parent.mkdir(parents=True)
            write(path, frames, Encoding("h264", fps=25, gop=12))
        (Path(folder) / "dataset.json").write_text("{}")
        return Path(folder)

    return make


def nothing_made(*_: object) -> Path:
    raise AssertionError("what cannot work is refused before videos are made")


@pytest.mark.parametrize("name", ["job.yaml", "catalog.parquet"])
def test_the_demonstration_replaces_no_file_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(demo, "_make_videos", nothing_made)
    (tmp_path / name).write_text("mine")
    with refused("--dir", "exists"):
        essp_command("demo", "--dir", str(tmp_path))
    assert (tmp_path / name).read_text() == "mine"


def test_the_demonstration_goes_where_a_path_with_dots_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job files refuse `..`; the command means the folder that the path leads to."""

    class Reached(Exception):
        """The videos would be made now."""

    def made(videos: Path, *_: object) -> None:
        raise Reached(videos)

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(demo, "_make_videos", made)
    done = CliRunner().invoke(cli.app, ["demo", "--dir", "../x"])
    assert isinstance(done.exception, Reached)
    assert done.exception.args == (tmp_path / "x" / "videos",)
    monkeypatch.setattr(demo, "_make_videos", nothing_made)
    done = CliRunner().invoke(cli.app, ["demo", "--dir", "x\ty\x7f"])
    assert isinstance(done.exception, ConfigError)


def test_topics_of_a_bus_that_ends_with_the_command_are_not_told_to_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ESSP_BUS", raising=False)
    with refused("ESSP_BUS", "conflict"):
        essp_command("setup")


def test_job_files_that_could_not_be_written_are_refused_before_videos_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_data, "make_dataset", nothing_made)
    (tmp_path / "letter.txt").write_text("dear")
    for out, words in (
        (tmp_path / "letter.txt", "--out: .*letter.txt is a file"),
        (tmp_path / ("x" * 300), "--out: .* cannot be made .File name too long.; name another folder"),
        (Path("/proc/jobs"), "--out: /proc belongs to the kernel"),
    ):
        with pytest.raises(ConfigError, match=words):
            essp_command("demo-data", str(tmp_path / "set"), "--out", str(out))
    with pytest.raises(ConfigError, match=r"URI: .*letter\.txt is a file; give a folder"):
        essp_command("demo-data", str(tmp_path / "letter.txt"), "--out", str(tmp_path / "jobs"))


@pytest.mark.processes
def test_the_demonstration_is_put_into_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data, "make_dataset", small_set(write_video))
    monkeypatch.setenv("ESSP_STORES", json.dumps([f"file://{tmp_path}"]))
    for _ in range(2):
        said = essp("demo-data", str(tmp_path / "set"), "--out", str(tmp_path / "jobs"), "--epochs", "3").stdout
    assert said.splitlines()[-2:] == [
        f"essp job start {tmp_path}/jobs/{name}.yaml --wait" for name in ("train", "predict")
    ]
    store = open_store(f"file://{tmp_path}/set")
    assert [row.split for row in read_catalog(store, "catalog.parquet").rows] == ["test", "train", "validation"]
    assert [row.class_name for row in read_catalog(store, "unseen.parquet").rows] == [CLASSES[0]]
    train, predict = (load_job(tmp_path / "jobs" / f"{name}.yaml") for name in ("train", "predict"))
    assert train.epochs == 3
    assert predict.predictor is not None
    assert predict.predictor.model == f"{train.output}/model"
    assert "streams" not in predict.model_fields_set, "the model knows its streams, whichever the fusion has kept"


@pytest.mark.parametrize("there", ["jobs/train.yaml", "set/catalog.parquet"])
def test_the_demonstration_writes_over_nothing_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    monkeypatch.setattr(demo_data, "make_dataset", small_set(write_video))
    path = tmp_path / there
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is there already, and not from this command"):
        essp_command("demo-data", str(tmp_path / "set"), "--out", str(tmp_path / "jobs"))
    assert path.read_text() == "mine"
    assert not (tmp_path / "set" / "videos").exists()
