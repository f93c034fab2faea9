"""Workers that die, raise, hang, fall silent, or get SIGTERM during a job.

One healthy decoder and one healthy extractor always run. Each test adds workers with a failpoint (docs/faults.md), and
runs jobs until the failpoint is hit. The other workers then finish what the failed one had in hand.
"""

from __future__ import annotations

import signal
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from essp_common import topics
from essp_common.pb.v1.messages_pb2 import (
    CRASHED,
    ClipReady,
    ClipRef,
    DeadLetter,
    DecodeSeed,
    FrameCodec,
    Recipe,
    Seed,
    StreamRequest,
    Video,
)
from essp_common.wiring import Adapters
from tests.faults.conftest import Begin
from tests.faults.deployment import Deployment, said
from tests.integration.fleet import Process
from tests.lanes import often

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("undisturbed_large"),
]

VICTIM = 5
"""The index of the clip that kills."""

KILLED = {
    "at the first try": (["worker.polled", "decoder.decoded"], ["extractor.read", "extractor.stored"]),
    "before it is durable": (["decoder.stored", "decoder.announced"], ["extractor.announced", "redis.acked"]),
    "once it is durable": (["decoder.flushed", "worker.handled"], ["extractor.flushed", "extractor.acked"]),
    "once it is told": (["worker.reported", "worker.done"], ["worker.reported", "kafka.flushed"]),
    "at a commit": (["kafka.committing"], ["kafka.committed"]),
}
"""Where decoders and extractors die in the same jobs: two of a kind, since what three died of is given up."""


@pytest.mark.parametrize("row", often(KILLED, 2))
def test_killed(row: str, deployment: Deployment, begin: Begin) -> None:
    decoders, extractors = KILLED[row]
    armed = {deployment.decoder(f"{name}:1:kill"): name for name in decoders}
    armed |= {deployment.extractor(f"{name}:1:kill"): name for name in extractors}
    run_until_hit(deployment, begin, armed, "kill")
    for process in armed:
        deployment.gone(process, -signal.SIGKILL)


def test_crashed_and_failed(deployment: Deployment, begin: Begin) -> None:
    """A child that crashes, a worker that crashes, and errors as servers give them, at every step."""
    child = deployment.decoder("decoder-child.decoded:5:segv")
    raising = deployment.decoder(",".join(f"{name}:2:raise" for name in ("decoder.stored", "decoder.announced")))
    crashing = deployment.extractor("extractor.read:2:segv")
    failing = deployment.extractor(",".join(f"{name}:2:raise" for name in ("extractor.stored", "kafka.flushed")))
    signs = {child: "child was killed by signal 11", crashing: "failpoint extractor.read: segv"}
    signs |= {raising: "failpoint decoder.announced: raise", failing: "failpoint kafka.flushed: raise"}
    run_until(deployment, begin, signs)
    deployment.gone(crashing, -signal.SIGSEGV)
    for process in (child, raising, failing):
        deployment.drain(process)


def test_hung(deployment: Deployment, begin: Begin) -> None:
    """A worker that hangs leaves by itself; one that hangs and is told to leave does so in its time, or at once."""
    stuck = deployment.decoder("decoder.decoded:1:hang", ESSP_STUCK_S="2")
    late = deployment.extractor("extractor.read:1:hang", ESSP_DRAIN_S="1")
    twice = deployment.extractor("extractor.stored:1:hang", ESSP_DRAIN_S="1000")
    for process in (stuck, late, twice):
        deployment.joined(process)
    run = begin(large=True)
    for process in (late, twice):
        deployment.until("it hangs", partial(said, process, "failpoint .*: hang"))
        process.popen.send_signal(signal.SIGTERM)
    deployment.until("it has heard", partial(said, twice, "a second signal ends it"))  # two that wait are one
    deployment.gone(late, 1)
    assert said(late, "not drained within 1 s")
    assert twice.popen.poll() is None
    twice.popen.send_signal(signal.SIGTERM)
    deployment.gone(twice, 130)
    deployment.gone(stuck, 1)
    assert said(stuck, "hangs for 2 s")
    run.finish()


def test_drained(deployment: Deployment, begin: Begin) -> None:
    """Workers that are told to leave in the midst of a job lose nothing, and have nothing made twice."""
    decoder, extractor = deployment.joined(deployment.decoder()), deployment.joined(deployment.extractor())
    run = begin(hold_at=12, large=True, coupled=True)  # so that nothing is made again for one that lags
    run.until("it is under way", lambda: run.status().counts.extracted > 12)
    deployment.drain(decoder)
    deployment.drain(extractor)
    counts = run.finish().counts
    assert (counts.lost, counts.reissued) == (0, 0)


def test_zombies(deployment: Deployment, begin: Begin) -> None:
    """Workers that stand still with work in hand for longer than the job lasts, and then go on with it: their late
    results change nothing, and what they store for a job that is over is gone after its time to live."""
    armed = {deployment.decoder("decoder.decoded:1:stop"): "decoder.decoded"}
    armed |= {deployment.extractor("extractor.read:1:stop"): "extractor.read"}
    run_until_hit(deployment, begin, armed, "stop", ttl_s=15)
    for process in armed:
        process.signal_group(signal.SIGCONT)
    for process in armed:
        deployment.until("it is back", partial(said, process, r"stop[\s\S]*takes part with [1-9]"))
    begin(large=True).finish()
    for process in armed:
        deployment.drain(process)


POISON = """
import ctypes, hashlib, sys
from essp_extractor.features.frame_diff import FrameDiff

class Poison(FrameDiff):
    def extract(self, clip):
        if hashlib.sha256(clip.tobytes()).hexdigest() == "{poison}":
            print("poisoned", file=sys.stderr, flush=True)
            ctypes.string_at(0)
        return super().extract(clip)
"""


@pytest.fixture
def plugin(deployment: Deployment, undisturbed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for PYTHONPATH with a package that has a feature of its own, which one clip makes crash."""
    facts = tmp_path / "poison-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: poison\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[essp.extractors]\npoison = poison:Poison\n")
    (tmp_path / "poison.py").write_text(POISON.format(poison=deployment.expected[12]["trainer.rgb"][VICTIM][2]))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_clip_that_kills_its_worker_is_given_up(
    deployment: Deployment, begin: Begin, consumers: Adapters, plugin: Path
) -> None:
    """The worker itself crashes, not a child: each one that gets the clip, until there have been enough of them."""
    alive = [start_poisoned(deployment, plugin), start_poisoned(deployment, plugin)]
    run, deaths = begin(feature="poison"), 0

    def replaced() -> bool:
        """As Kubernetes would, put a new worker in the place of each that died."""
        nonlocal deaths
        for process in [process for process in alive if process.popen.poll() is not None]:
            assert said(process, "poisoned")
            deployment.gone(process, -signal.SIGSEGV)
            alive.remove(process)
            alive.append(start_poisoned(deployment, plugin))
            deaths += 1
        return run.ended()

    run.until("the others are made", replaced)
    run.complete()
    run.leaves_nothing()
    with closing(consumers.bus.subscribe([topics.DEADLETTER], None)) as letters:

        def its_letter() -> DeadLetter | None:
            found = [DeadLetter.FromString(record.value) for record in letters.poll(100, 0.1)]
            return next((letter for letter in found if run.name.encode() in letter.message), None)

        letter = deployment.until("the clip is a dead letter", its_letter)
    assert 3 <= deaths <= 4
    expected = deployment.expected[12]
    assert run.taken["trainer.rgb"] == expected["trainer.rgb"]
    missing = [index for phase_index, index, what in run.taken["trainer.flow"] if what.startswith("skipped")]
    assert missing == [VICTIM]
    assert len(run.taken["trainer.flow"]) == len(expected["trainer.flow"])
    assert (letter.kind, letter.attempts) == (CRASHED, 3)
    for process in alive:
        deployment.drain(process)


def test_killed_at_a_rejection_and_at_a_rebalance(deployment: Deployment, begin: Begin, consumers: Adapters) -> None:
    """Messages that are none, and work that cannot be done, lie on every partition; then another worker joins."""
    armed = {deployment.decoder(f"{name}:1:kill"): name for name in ("worker.rejected", "decoder.failed")}
    armed |= {deployment.extractor(f"{name}:1:kill"): name for name in ("worker.rejected", "extractor.failed")}
    for process in armed:
        deployment.joined(process)
    vanished = Video(id="none", uri=f"s3://{deployment.bucket}/videos/none.mp4", width=40, height=40, frame_count=9)
    seed = Seed(frame_count=1, stride=1)
    impossible = DecodeSeed(job="nobody", video=vanished, seeds=[seed], recipe=Recipe(codec=FrameCodec(name="raw")))
    stream = StreamRequest(stream="flow", feature="flow")
    missing = ClipReady(clip=ClipRef(job="nobody"), key="essp:nobody:{none}", recipe=Recipe(streams=[stream]))
    for partition in range(topics.DATA_PARTITIONS):
        for topic, message in ((topics.SEEDS, impossible), (topics.CLIPS, missing)):
            consumers.bus.publish(topic, b"", b"\xff\xff\xff", partition)
            consumers.bus.publish(topic, b"", message.SerializeToString(), partition)
    consumers.bus.flush()
    run_until_hit(deployment, begin, armed, "kill")
    for process in armed:
        deployment.gone(process, -signal.SIGKILL)

    giving = deployment.joined(deployment.decoder("kafka.revoked:1:kill"))
    run = begin(large=True)
    others: list[Process] = []
    while not said(giving, "failpoint kafka.revoked: kill"):
        # On a busy machine its membership may lapse at just that moment, and nothing is left that it could give up.
        assert len(others) < 10, giving.story()
        others.append(deployment.joined(deployment.decoder()))
    run.finish()
    deployment.gone(giving, -signal.SIGKILL)
    for other in others:
        deployment.drain(other)


def start_poisoned(deployment: Deployment, plugin: Path) -> Process:
    return deployment.start("extractor", "run", "--feature", "poison", PYTHONPATH=str(plugin))


def run_until_hit(deployment: Deployment, begin: Begin, armed: dict[Process, str], action: str, **limits: int) -> None:
    """Jobs, until each of these has come to its failpoint."""
    run_until(deployment, begin, {process: f"failpoint {name}: {action}" for process, name in armed.items()}, **limits)


def run_until(deployment: Deployment, begin: Begin, signs: dict[Process, str], **limits: int) -> None:
    """Jobs, until each of these has said what it is to say."""
    for process in signs:
        deployment.joined(process)
    while not all(said(process, sign) for process, sign in signs.items()):
        begin(large=True, **limits).finish()
