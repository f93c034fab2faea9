"""`essp deadletter` as users run it: with a broker, and on the output of `essp run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from essp.catalog.build import BuildOptions, build
from essp.cli.deadletter import app
from essp.deadletters.store import OutputEntryStore
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common import topics
from essp_common.bus.reading import read_all
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.failures import kind_named
from essp_common.job.spec import parse_spec
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import TRAIN, Control, DeadLetter, DecodeSeed, Seed, Video
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores, open_bus
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.embedded_jobs import finish
from tests.harness.journeys import job_text

pytestmark = pytest.mark.integration


def essp(*arguments: str) -> str:
    """What `essp deadletter ARGUMENTS` prints; errors of ESSP are raised, for `main` turns them into exit codes."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def dead(index: int, kind: str) -> tuple[bytes, bytes]:
    """Original message and dead letter."""
    unit = DecodeSeed(
        job="j", purpose=TRAIN, fence=1, video=Video(id=f"v{index}", uri=f"s3://b/{index}"), seeds=[Seed(index=index)]
    )
    original = unit.SerializeToString()
    entry = DeadLetter(topic=topics.SEEDS, message=original, reason=f"{kind} because", kind=kind_named(kind), time_ms=5)
    return original, entry.SerializeToString()


def test_letters_on_a_broker_are_listed_replayed_and_purged(
    own_kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESSP_BUS", own_kafka_url)
    bus = open_bus(own_kafka_url)
    bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
    original, first = dead(1, "vanished")
    for value in (first, dead(2, "damaged")[1]):
        bus.publish(topics.DEADLETTER, b"v", value)
    bus.publish(topics.CONTROL, b"j", Control(job="j", fence=1, command=Control.START).SerializeToString())
    bus.flush()

    listed = json.loads(essp("ls", "--kind", "vanished", "--json"))
    assert [(entry["id"], entry["seed"]["index"]) for entry in listed] == [("0", 1)]
    assert "damaged because" in essp("show", "1")
    with pytest.raises(NotFound):
        essp("show", "9")
    with pytest.raises(ConfigError, match="no entries are selected"):
        essp("replay")

    assert "published again" in essp("replay", "0")
    assert original in [record.value for record in read_all(bus, topics.SEEDS)]
    bus.publish(topics.CONTROL, b"j", Control(job="j", fence=1, command=Control.COMPLETE).SerializeToString())
    bus.flush()
    with pytest.raises(Conflict):
        essp("replay", "0", "--json")

    essp("purge", "0", "--yes")
    assert [entry["id"] for entry in json.loads(essp("ls", "--json"))] == ["1"]
    bus.close()


def test_too_many_dead_letters_fail_the_job_and_are_kept_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = tmp_path / "videos"
    for number in range(8):
        split, label = ("train", "validation")[number // 4 % 2], ("a", "b")[number % 2]
        path = videos / split / label / f"{number}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_video(path, numbered(12, 64, 48, seed=number), Encoding(gop=6))
    catalog, output = f"file://{tmp_path}/catalog.parquet", f"file://{tmp_path}/run"
    build(f"file://{videos}", catalog, ("file:///",), BuildOptions("folders"))
    for path in (videos / "train").rglob("*.mp4"):
        path.unlink()
    spec = parse_spec(job_text("dead", output=output, catalog=catalog, clips=24))
    with Embedded(spec, Settings(), EmbeddedOptions(consumers=lambda *_: [])) as job:
        status = finish(job)
    assert status.state is JobState.FAILED
    assert "could not be made, more than limits.dead_ratio (20 %) allows" in status.reason

    kept = OutputEntryStore(Stores(("file:///",)).under(output)).entries()
    assert len(kept) >= status.counts.failed > 0
    listed = json.loads(essp("ls", "--from", str(tmp_path / "run"), "--last", "0", "--json"))
    assert {entry["kind"] for entry in listed} == {"vanished"}
    assert all(entry["seed"]["job"] == "dead" and "is not there" in entry["reason"] for entry in listed)
    essp("purge", "--all", "--from", str(tmp_path / "run"), "--yes")
    assert json.loads(essp("ls", "--from", str(tmp_path / "run"), "--json")) == []
    monkeypatch.delenv("ESSP_BUS", raising=False)
    with pytest.raises(ConfigError, match="--from OUTPUT"):
        essp("ls")
