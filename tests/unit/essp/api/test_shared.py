"""`Records.share`: each record once an epoch over all processes; one may be killed, come late, or leave early."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import essp
from essp.api import epochs as epochs_module
from essp.api import shared as shared_module
from essp.records import ring
from essp_common.errors import ConfigError, PermanentError
from essp_common.records.chunk import Record
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S
from tests.lanes import often
from tests.unit.essp.api.numbered_records import RECORDS, build, damage, image, taken

BATCH = 4
EPOCH = list(range(RECORDS))


@pytest.fixture
def shared(raw: Path) -> Iterator[essp.SharedRecords]:
    with essp.Records(raw, batch_size=BATCH).share(processes=2) as made:
        yield made


def another(shared: essp.SharedRecords) -> essp.SharedRecords:
    """As another process gets it."""
    found = pickle.loads(pickle.dumps(shared))  # noqa: S301  our own
    assert isinstance(found, essp.SharedRecords)
    return found


def in_threads(*loops: Callable[[], list[int]]) -> list[list[int]]:
    """What each gets, side by side."""
    found: list[list[int]] = [[] for _ in loops]

    def run(place: int) -> None:
        found[place] = loops[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(loops))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_alone_it_is_the_loader_that_was_shared(raw: Path, shared: essp.SharedRecords) -> None:
    """The same batches in the same order, epoch after epoch."""
    with essp.Records(raw, batch_size=BATCH) as loader:
        for _ in range(3):
            for ours, theirs in zip(shared, loader, strict=True):
                assert torch.equal(ours.frames, theirs.frames)
                assert torch.equal(ours.labels, theirs.labels)
                assert ours.meta == theirs.meta
        assert (len(shared), shared.classes, shared.epoch) == (len(loader), loader.classes, loader.epoch)
        # It begins where the loader is.
        with loader.share(processes=1) as later:
            assert later.epoch == 3
            assert taken(iter(later)) == taken(loader)


def test_two_get_each_record_once_an_epoch(shared: essp.SharedRecords) -> None:
    other = another(shared)
    for epoch in range(3):
        both = in_threads(lambda: taken(iter(shared)), lambda: taken(iter(other)))
        assert sorted(both[0] + both[1]) == EPOCH
        assert shared.epoch == other.epoch == epoch + 1
    other.close()


def test_a_slow_loop_stops_nobody(shared: essp.SharedRecords) -> None:
    """It has a batch in hand while the other one takes all that is left."""
    other = another(shared)
    slow = iter(other)
    held = taken(iter([next(slow)]))
    fast = iter(shared)
    found = [number for _ in range(len(shared) - 1) for number in taken(iter([next(fast)]))]
    assert sorted(found + held) == EPOCH
    slow.close()  # type: ignore[attr-defined]
    assert next(fast, None) is None
    other.close()


def test_who_leaves_early_has_used_its_batch_and_the_others_take_the_rest(shared: essp.SharedRecords) -> None:
    other = another(shared)
    first = next(iter(other)).meta["record"]
    assert sorted(taken(iter(shared)) + first) == EPOCH
    assert other.epoch == 0
    assert sorted(taken(iter(other)) + taken(iter(shared))) == EPOCH, "the next epoch is one for both"
    other.close()


def test_if_all_leave_early_the_next_epoch_is_whole(shared: essp.SharedRecords) -> None:
    for batch in shared:
        assert batch.meta["epoch"][0] == 0
        break
    assert sorted(taken(iter(shared))) == EPOCH
    assert shared.epoch == 2


def test_who_comes_late_finds_what_is_over_empty(shared: essp.SharedRecords) -> None:
    assert sorted(taken(iter(shared))) == EPOCH
    late = another(shared)
    late.set_epoch(0)
    assert taken(iter(late)) == []
    assert late.epoch == 1
    assert sorted(taken(iter(late))) == EPOCH
    shared.set_epoch(7)
    late.set_epoch(7)
    assert next(iter(shared)).meta["epoch"][0] == 7
    with refused("epoch", "range"):
        late.set_epoch(-1)
    late.close()


def test_what_the_loader_made_of_batches_comes_in_each_process(raw: Path) -> None:
    with essp.Records(raw, batch_size=BATCH).map(len) as loader, loader.share(processes=1) as shared:
        sizes: list[Any] = list(another(shared))
        assert sum(sizes) == RECORDS


def test_an_exception_leaves_the_epoch(shared: essp.SharedRecords) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in shared.map(lambda batch: 1 / 0):
            pass
    assert [str(size) for size in shared.map(len)] == [str(BATCH)] * 12 + ["2"]


def test_one_iteration_at_a_time(shared: essp.SharedRecords) -> None:
    old = iter(shared)
    next(old)
    next(iter(shared))
    with pytest.raises(ConfigError, match="this iteration is over"):
        next(old)


def test_what_is_closed_ends_its_iteration(shared: essp.SharedRecords) -> None:
    batches = iter(shared)
    next(batches)
    shared.close()
    with pytest.raises(ConfigError, match="this iteration is over"):
        next(batches)


def test_what_is_closed_loads_no_state(shared: essp.SharedRecords) -> None:
    """It looked for a lock under a number that was another file's by then."""
    state = shared.state_dict()
    shared.close()
    with refused("address", "not_found"):
        shared.load_state_dict(state)


@pytest.mark.parametrize("used", [3, None, "ab", [[1]], [[0, 1.5]], [[3, 2]], [[0, 10**30]]])
def test_a_state_has_spans(shared: essp.SharedRecords, used: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        shared.load_state_dict({**shared.state_dict(), "used": used})
    assert caught.value.field == "state"


def test_an_iteration_that_another_thread_ended_says_so(shared: essp.SharedRecords) -> None:
    """It seemed to be at its end."""
    old = iter(shared)
    next(old)
    list(shared)
    with pytest.raises(ConfigError, match="this iteration is over"):
        list(old)


def test_an_epoch_that_is_set_meanwhile_is_the_next_one(shared: essp.SharedRecords) -> None:
    for batch in shared:
        assert batch.meta["epoch"][0] == 0
        shared.set_epoch(7)
    assert next(iter(shared)).meta["epoch"][0] == 7


def states(shared: essp.SharedRecords, other: essp.SharedRecords) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """States in an epoch that two loops take turns in, one of them slow; and what is used then."""
    used: list[int] = []
    slow, fast = iter(other), iter(shared)
    yield shared.state_dict(), []
    held = next(slow).meta["record"]
    for step in range(8):
        used += next(fast).meta["record"]
        yield shared.state_dict(), list(used)
        yield other.state_dict(), [number for number in used if number not in used[-BATCH:]] + held
        if step % 3 == 2:
            used, held = used + held, next(slow).meta["record"]


@pytest.mark.parametrize("batch_size", often([7, BATCH], 1))
def test_a_resumed_epoch_has_everything_that_was_not_used(raw: Path, batch_size: int) -> None:
    """Once, whatever the batches are then; and of a resumed epoch that is saved again, too."""
    with essp.Records(raw, batch_size=BATCH).share(processes=2) as shared, another(shared) as other:
        found = list(states(shared, other))
    assert any(state["used"] for state, _ in found)
    for state, used in found:
        with essp.Records(raw, batch_size=batch_size).share(processes=1) as again:
            again.load_state_dict(state)
            first = next(iter(again)).meta["record"]
            state = again.state_dict()
        with essp.Records(raw, batch_size=batch_size).share(processes=1) as again:
            again.load_state_dict(state)
            assert sorted(taken(iter(again)) + first + used) == EPOCH
            assert sorted(taken(iter(again))) == EPOCH
            assert again.state_dict() == {**state, "epoch": 2, "clip": 0, "used": []}
        # A loader for one loop takes the state, too: it shows again what is used beyond `clip`.
        with essp.Records(raw, batch_size=batch_size) as alone:
            alone.load_state_dict(state)
            assert set(EPOCH) <= {*taken(alone), *first, *used}


def test_an_epoch_that_was_left_is_gone_on_with_by_those_that_share_it(raw: Path) -> None:
    with essp.Records(raw, batch_size=BATCH) as loader:
        iteration = iter(loader)
        shown = [*next(iteration).meta["record"], *next(iteration).meta["record"]]
        with loader.share(processes=1) as shared:
            assert sorted(shown + taken(iter(shared))) == EPOCH
            assert sorted(taken(iter(shared))) == EPOCH
            assert shared.state_dict()["epoch"] == 2


def test_batches_that_end_where_the_next_span_begins_lose_nothing(raw: Path) -> None:
    with essp.Records(raw, batch_size=BATCH).share(processes=1) as shared:
        state = shared.state_dict() | {"clip": 2, "used": [(4, 6)]}
    with essp.Records(raw, batch_size=BATCH) as loader:
        order = taken(loader)
    with essp.Records(raw, batch_size=BATCH).share(processes=1) as again:
        again.load_state_dict(state)
        assert sorted(taken(iter(again))) == sorted(order[2:4] + order[6:])


def test_who_shares_a_loader_shows_its_version_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is added to the data set meanwhile; and so does a copy for another process."""
    build(tmp_path / "set", [Record.of_image(image(i), i % 2) for i in range(RECORDS)])
    monkeypatch.chdir(tmp_path)
    with essp.Records("set", batch_size=BATCH) as loader:
        build(tmp_path / "set", [Record.of_image(image(i), i % 2) for i in range(RECORDS, 2 * RECORDS)], append=True)
        monkeypatch.chdir("/")
        copied = pickle.loads(pickle.dumps(loader))  # noqa: S301  our own
        assert (copied.version, sorted(taken(copied))) == (loader.version, EPOCH)
        copied.close()
        with loader.share(processes=1) as shared:
            assert sorted(taken(iter(shared))) == EPOCH


def test_states_that_cannot_be_loaded(raw: Path, shared: essp.SharedRecords) -> None:
    state = shared.state_dict()
    for wrong in ([(3, 2)], [(0, 99)], [(-1, 4)]):
        with refused("state", "invalid"):
            shared.load_state_dict(state | {"used": wrong})
    with refused("state", "conflict"):
        shared.load_state_dict(state | {"plan": 0})
    with refused("", "unsupported"), another(shared) as other:
        other.load_state_dict(state)
    next(iter(shared))
    with refused("state", "conflict"):
        shared.load_state_dict(state)


def test_ranks_share_their_share(raw: Path) -> None:
    found = []
    for rank in range(2):
        loader = essp.Records(raw, batch_size=BATCH, rank=rank, world_size=2, drop_last=True)
        with loader.share(processes=1) as shared:
            found += taken(iter(shared))
            assert shared.state_dict()["epoch"] == 1
    assert len(set(found)) == 48


def test_spans_of_a_rank_are_not_taken_for_those_of_another(raw: Path) -> None:
    """Some records were left out then, and others came twice."""
    with essp.Records(raw, batch_size=2, rank=1, world_size=2).share(processes=1) as shared:
        state = shared.state_dict() | {"used": [(4, 6)]}
        shared.load_state_dict(state)
    for rank, ranks in ((0, 1), (0, 2)):
        with essp.Records(raw, batch_size=2, rank=rank, world_size=ranks).share(processes=1) as other:
            with refused("state", "conflict"):
                other.load_state_dict(state)
            other.load_state_dict(state | {"used": []})


def test_a_transform_makes_batches_of_any_type(raw: Path) -> None:
    """They grow beyond what the first one took."""

    def transform(frames: Any, generator: np.random.Generator) -> Any:
        return np.float32(frames) + 0.5

    with essp.Records(raw, batch_size=BATCH, transform=transform).share(processes=1, memory="1KiB") as shared:
        for batch in shared:
            assert batch.frames.dtype == torch.float32
            assert (batch.frames[:, 0, 0, 0, 0] - 0.5).int().tolist() == batch.meta["record"]
            batch.frames.zero_()  # they are the loop's own


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    path = build(tmp_path, [Record.of_image(image(i), i % 2) for i in range(RECORDS)])
    damage(path, [3, 40])
    with essp.Records(path, batch_size=BATCH).share(processes=1) as shared:
        assert sorted(taken(iter(shared))) == [i for i in EPOCH if i not in (3, 40)]
        assert len(shared.damaged) == 2
        with refused("", "unsupported"), another(shared) as other:
            _ = other.damaged


def test_why_it_cannot_be_read_is_an_error_of_every_loop(raw: Path) -> None:
    def fails(frames: Any, generator: np.random.Generator) -> Any:
        raise OSError("the disk is gone")

    with essp.Records(raw, transform=fails).share(processes=1) as shared:
        for _ in range(2):
            with pytest.raises(PermanentError, match=r"could not read the records .* OSError: the disk is gone"):
                next(iter(shared))
        with pytest.raises(PermanentError, match="the disk is gone"):
            len(another(shared))


def test_one_more_than_was_asked_for_is_refused(shared: essp.SharedRecords) -> None:
    with another(shared) as other, another(shared) as third:
        loops = [iter(shared), iter(other)]
        for loop in loops:
            next(loop)
        with refused("processes", "taken"):
            next(iter(third))
        other.close()
        next(iter(third))


@pytest.mark.parametrize("processes", [0, -1, 1.5, True, 10_000])
def test_wrong_numbers_of_processes_are_named(raw: Path, processes: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        essp.Records(raw).share(processes=processes)
    assert caught.value.field == "processes"
    with refused("memory", "type"):
        essp.Records(raw).share(processes=1, memory="much")


def test_what_is_closed_says_so(raw: Path) -> None:
    shared = essp.Records(raw, batch_size=BATCH).share(processes=2)
    other = another(shared)
    loop = iter(other)
    next(loop)
    shared.close()
    shared.close()
    with pytest.raises(PermanentError, match="has closed it; share it again"):
        next(loop)
    other.close()
    for one in (shared, other):
        with refused("address", "not_found"):
            next(iter(one))
    with refused("address", "not_found"):
        essp.SharedRecords(shared.address)


def test_an_abandoned_one_is_closed(raw: Path) -> None:
    """The check for leaks sees its thread and files."""
    shared = essp.Records(raw, batch_size=BATCH).share(processes=2)
    next(iter(shared))


def test_a_data_loader_of_torch_takes_it(shared: essp.SharedRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(taken(iter(DataLoader(shared, batch_size=None)))) == EPOCH
    assert shared.batch_sampler.sampler is shared
    monkeypatch.setattr(epochs_module, "get_worker_info", lambda: "a worker")
    with pytest.raises(ConfigError, match="num_workers=0"):
        iter(shared)


def test_elsewhere_than_on_linux_it_is_refused(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match="on Linux only"):
        essp.Records(raw).share(processes=2)


def test_a_loop_that_holds_the_others_up_is_named(
    shared: essp.SharedRecords, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_module, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(ring, "_LOOK_S", 0.001)
    other = another(shared)
    slow = iter(other)
    next(slow)
    warned = threading.Event()
    monkeypatch.setattr(shared_module.log, "warning", lambda *_: warned.set())
    loop = threading.Thread(target=lambda: taken(iter(shared)))
    loop.start()
    assert warned.wait(LONGEST_S)
    slow.close()  # type: ignore[attr-defined]
    loop.join()
    other.close()


# --- processes ---


def loop_until_told(shared: essp.SharedRecords, pipe: Connection) -> None:
    """Take three batches, say which, and hold the last one."""
    loop = iter(shared)
    pipe.send([next(loop).meta["record"] for _ in range(3)])
    pipe.recv()


@pytest.mark.processes
@pytest.mark.parametrize("method", often(["fork", "spawn"], 1))
def test_what_a_killed_process_held_goes_to_the_others(shared: essp.SharedRecords, method: str) -> None:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=loop_until_told, args=(shared, theirs))  # type: ignore[attr-defined]
    process.start()
    used, more, held = ours.recv()
    killer = threading.Thread(target=process.kill)
    loop = iter(shared)
    found = next(loop).meta["record"]
    killer.start()  # in the middle of the epoch, or at its end
    found += taken(loop)
    killer.join()
    process.join()
    assert sorted(found + used + more) == EPOCH
    assert set(held) <= set(found)
    assert sorted(taken(iter(shared))) == EPOCH, "the next epoch is whole"
    for end in (ours, theirs):
        end.close()
    process.close()


def in_shared_memory(pid: int) -> set[str]:
    """The files in /dev/shm that a process has open or mapped, but those of the tests."""
    opened = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            opened.append(os.readlink(path))
    mapped = re.findall(r"(/\S+)", Path(f"/proc/{pid}/maps").read_text())
    own = ("/dev/shm/pytest-of-", "/dev/shm/essp-tests-")
    return {path for path in (*opened, *mapped) if path.startswith("/dev/shm/") and not path.startswith(own)}


def shares(path: Path, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background without it
    with essp.Records(path, batch_size=BATCH).share(processes=2) as shared:
        pipe.send(shared.address)
        for _ in shared:
            break
        pipe.recv()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_if_the_process_that_reads_dies_the_others_are_told(raw: Path, number: signal.Signals) -> None:
    """Killed, or stopped by Ctrl-C. They had opened it by its address, and it has no files that would stay."""
    before = in_shared_memory(os.getpid())
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=shares, args=(raw, theirs))
    process.start()
    with essp.SharedRecords(ours.recv()) as shared:
        assert process.pid
        assert in_shared_memory(process.pid) <= before
        os.kill(process.pid, number)
        with pytest.raises(PermanentError, match=r"has died; start the training again|has closed it"):
            taken(batch for _ in itertools.count() for batch in shared)
    process.join()
    for end in (ours, theirs):
        end.close()
    process.close()
