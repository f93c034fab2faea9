"""A job that feeds loops: they come, are heard of, and count as gone when they are not."""

from __future__ import annotations

from pathlib import Path

from essp_common import topics
from essp_common.job.position import Position
from essp_common.job.spec import ConsumerSpec, JobSpec
from essp_common.job.status import JobState
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import Control, Loop, Progress
from essp_common.wiring import Adapters
from essp_master.service import Master
from tests.harness.fleet import Clock, make_job, master_over


def job_of_loops(tmp_path: Path) -> JobSpec:
    consumers = {name: ConsumerSpec(stream="rgb", batch_size=2) for name in ("one", "two")}
    return make_job(tmp_path, limits={"budget": "1MiB"}).model_copy(update={"trainers": {}, "consumers": consumers})


def say(master: Master, adapters: Adapters, incarnation: str, **loop: object) -> Control:
    """A loop says something; the command that everybody has then."""
    name = incarnation.partition("/")[0]
    progress = Progress(job="small", loop=Loop(consumer=f"consumer.{name}", incarnation=incarnation, **loop))  # type: ignore[arg-type]
    adapters.bus.publish(topics.PROGRESS, b"small", progress.SerializeToString())
    master.step(0)
    return latest(adapters)


def latest(adapters: Adapters) -> Control:
    feed = ControlFeed(adapters.bus)
    try:
        command = feed.wait("small", 10)
    finally:
        feed.close()
    assert command is not None
    return command


def part(command: Control) -> dict[str, tuple[str, Position]]:
    return {loop.consumer: (loop.incarnation, Position.of(loop.position)) for loop in command.loops}


def test_nothing_is_made_until_a_loop_comes(adapters: Adapters, tmp_path: Path) -> None:
    master = master_over(adapters)
    master.start(job_of_loops(tmp_path))
    master.step(0)
    assert master.status("small").counts.issued == 0
    command = say(master, adapters, "one/a")
    assert part(command) == {"consumer.one": ("one/a", Position(0, 0))}
    assert command.command == Control.RESUME
    assert master.status("small").counts.issued > 0
    assert master.status("small").state is JobState.RUNNING
    assert part(say(master, adapters, "two/a")) == {
        "consumer.one": ("one/a", Position(0, 0)),
        "consumer.two": ("two/a", Position(2, 0)),  # both epochs are issued already
    }


def test_a_later_process_takes_the_place_of_an_earlier_one(adapters: Adapters, tmp_path: Path) -> None:
    master = master_over(adapters)
    master.start(job_of_loops(tmp_path))
    say(master, adapters, "one/a")
    at = Position(0, 1)
    assert part(say(master, adapters, "one/b", position=at.message())) == {"consumer.one": ("one/b", at)}
    assert part(say(master, adapters, "one/a")) == {"consumer.one": ("one/b", at)}, "it has been replaced"
    assert part(say(master, adapters, "one/a", left=True)) == {"consumer.one": ("one/b", at)}
    assert part(say(master, adapters, "one/b", left=True)) == {}


def test_a_loop_that_is_not_heard_of_counts_as_gone_until_it_is(adapters: Adapters, tmp_path: Path) -> None:
    clock = Clock()
    master = master_over(adapters, clock)
    master.start(job_of_loops(tmp_path))
    say(master, adapters, "one/a")
    say(master, adapters, "two/a")
    for _ in range(10):
        clock.now_s += 30
        say(master, adapters, "one/a", position=Position(0, 0).message())
    assert set(part(latest(adapters))) == {"consumer.one"}
    events = [event.message for event in master.events("small")]
    assert any("consumer.two: no sign of life for 60 s" in event for event in events)
    back = Position(1, 2)
    assert part(say(master, adapters, "two/a", position=back.message()))["consumer.two"] == ("two/a", back)


def test_a_process_that_was_replaced_gives_no_sign_of_life_for_the_later_one(
    adapters: Adapters, tmp_path: Path
) -> None:
    clock = Clock()
    master = master_over(adapters, clock)
    master.start(job_of_loops(tmp_path))
    say(master, adapters, "one/a")
    say(master, adapters, "one/b", position=Position(0, 0).message())
    for _ in range(4):
        clock.now_s += 30
        say(master, adapters, "one/a")
    assert part(latest(adapters)) == {}


def test_loops_of_a_job_that_has_ended_are_not_waited_for(adapters: Adapters, tmp_path: Path) -> None:
    clock = Clock()
    master = master_over(adapters, clock)
    master.start(job_of_loops(tmp_path))
    say(master, adapters, "one/a")
    master.stop("small")
    last = master.events("small")[-1]
    for _ in range(4):
        clock.now_s += 30
        master.step(0)
    assert master.events("small")[-1] == last


def test_what_no_loop_can_say_changes_nothing(adapters: Adapters, tmp_path: Path) -> None:
    master = master_over(adapters)
    master.start(job_of_loops(tmp_path))
    say(master, adapters, "nobody/a")
    say(master, adapters, "one/" + "x" * 10_000)
    assert part(latest(adapters)) == {}
    say(master, adapters, "two/b")
    far = Position(2**31, 2**60)
    assert part(say(master, adapters, "one/a", position=far.message()))["consumer.one"][1] == (2, 0)
    assert part(say(master, adapters, "two/a", position=Position(0, 2**60).message()))["consumer.two"][1] == (1, 0)
    issued = master.status("small").counts.issued
    for _ in range(3):
        say(master, adapters, "two/a", position=Position(0, 2**60).message())
    assert master.status("small").counts.issued == issued, "a sign of life is not a coming"
    assert master.status("small").state is JobState.RUNNING
