"""Workers of the version before talk to a master of this one: what they send is kept here as bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common import topics
from essp_common.pb.v1.messages_pb2 import Progress
from essp_master.translation import current
from tests.harness.fleet import adapters_in, make_job, master_over

OLD = {
    "decoded": "0a05736d616c6c12036f6c64180122260a180a05736d616c6c100130013a0963312f76312e6d7034400c10e807190000"
    "00000000d03f",
    "extracted": "0a05736d616c6c12036f6c6418012a2c0a180a05736d616c6c100130013a0963312f76312e6d7034400c120464696666"
    "18f40321000000000000e03f",
}
"""Version 0.1 on clip 0 of the first training phase of job `small`: 1000 bytes in 0.25 s, and 500 bytes of stream
`diff` in 0.5 s."""


@pytest.mark.parametrize(
    ("event", "stream", "size", "seconds"), [("decoded", "", 1000, 0.25), ("extracted", "diff", 500, 0.5)]
)
def test_a_message_for_each_clip_is_read_as_one_for_some(event: str, stream: str, size: int, seconds: float) -> None:
    old = Progress.FromString(bytes.fromhex(OLD[event]))
    assert old.WhichOneof("event") == event
    said = current(old)
    assert (said.job, said.worker, said.fence) == ("small", "old", 1)
    made = said.made
    assert (made.purpose, made.epoch, made.stream, made.indices, made.attempts) == (1, 0, stream, [0], [0])
    assert (made.bytes, made.seconds) == ([size], seconds)


def test_the_master_accounts_for_what_they_made(tmp_path: Path) -> None:
    adapters = adapters_in(tmp_path)
    master = master_over(adapters)
    before = master.start(make_job(tmp_path)).counts.issued
    for event in ("decoded", "decoded", "extracted"):
        adapters.bus.publish(topics.PROGRESS, b"small", bytes.fromhex(OLD[event]))
    master.step(0)
    status = master.status("small")
    assert (status.counts.decoded, status.counts.extracted) == (1, 1), "the second time it was known"
    assert status.counts.issued == before + 1, "it is smaller than it might have been: there is room for another"
    assert {pool.name: pool.done for pool in status.pools} == {"decoder": 2, "extractor.frame_diff": 1}
    adapters.close()
