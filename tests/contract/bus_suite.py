"""What every bus has to do: one suite, run over each adapter.

A test module derives from `BusContract` and gives the fixture `bus`, a connected bus; topics are named by the
suite, so that buses on a shared broker do not meet. Delivery is at least once: the tests count what is done, not
what is delivered, except where a bus has no reason to deliver twice.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest

from essp_common.bus.port import SUSPECTS, Bus, Record, Subscription
from essp_common.errors import ConfigError, NotFound
from tests.harness.waiting import LONGEST_S

PARTITIONS = 4
SILENCE_S = 0.5
"""How long a test listens for what must not come."""

Open = Callable[..., Subscription]


def take(subscription: Subscription, count: int, max_records: int = 100) -> list[Record]:
    """Poll until there are `count` records or more."""
    deadline = time.monotonic() + LONGEST_S
    records: list[Record] = []
    while len(records) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(records)} of {count} records after {LONGEST_S} s")
        records += subscription.poll(max_records, 0.2)
    return records


def silent(subscription: Subscription) -> bool:
    """Nothing comes for a while."""
    deadline = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline:
        if subscription.poll(100, 0.1):
            return False
    return True


def own(subscription: Subscription, partitions: int, *others: Subscription) -> None:
    """Poll until it owns so many; the others of its group have to poll, too."""
    deadline = time.monotonic() + LONGEST_S
    while subscription.partitions != partitions:
        assert time.monotonic() < deadline, f"it owns {subscription.partitions} partitions"
        for member in (subscription, *others):
            member.poll(1, 0.05)


def finish(subscription: Subscription, records: Sequence[Record]) -> None:
    for record in records:
        subscription.done(record)


def numbers(records: Sequence[Record]) -> list[int]:
    """The values of records made by `publish_numbers`."""
    return [int(record.value) for record in records]


class BusContract:
    """The behaviour of a bus."""

    @pytest.fixture
    def topic(self, bus: Bus) -> str:
        """A topic of four partitions that no other test knows."""
        name = f"test.{uuid.uuid4().hex[:10]}"
        bus.ensure_topics({name: PARTITIONS})
        return name

    @pytest.fixture
    def subscribe(self, bus: Bus, topic: str) -> Iterator[Open]:
        """Opens subscriptions of `topic` that are closed after the test."""
        opened: list[Subscription] = []

        def open_one(group: str | None, partitions: Sequence[int] | None = None) -> Subscription:
            opened.append(bus.subscribe([topic], group, partitions))
            return opened[-1]

        yield open_one
        for subscription in opened:
            subscription.close()

    @pytest.fixture
    def publish_numbers(self, bus: Bus, topic: str) -> Callable[..., None]:
        """Publishes the numbers `start..stop`, keyed by themselves, and flushes."""

        def publish(start: int, stop: int, partition: int | None = None) -> None:
            for number in range(start, stop):
                bus.publish(topic, str(number).encode(), str(number).encode(), partition)
            bus.flush()

        return publish

    # --- publishing ---

    def test_equal_keys_stay_in_order(self, bus: Bus, topic: str, subscribe: Open) -> None:
        for number in range(60):
            bus.publish(topic, f"key{number % 6}".encode(), str(number).encode())
        bus.flush()
        by_key: dict[bytes, list[Record]] = defaultdict(list)
        for record in take(subscribe("g"), 60):
            by_key[record.key].append(record)
        assert len(by_key) == 6
        for records in by_key.values():
            assert len({record.partition for record in records}) == 1
            assert numbers(records) == sorted(numbers(records))

    def test_given_partition_is_used(self, bus: Bus, topic: str, subscribe: Open) -> None:
        for partition in range(PARTITIONS):
            bus.publish(topic, b"same", str(partition).encode(), partition)
        bus.flush()
        records = take(subscribe("g"), PARTITIONS)
        assert sorted((r.partition, int(r.value)) for r in records) == [(n, n) for n in range(PARTITIONS)]

    def test_partition_that_does_not_exist_is_refused(self, bus: Bus, topic: str) -> None:
        with pytest.raises(ValueError, match=str(PARTITIONS)):
            bus.publish(topic, b"", b"", PARTITIONS)

    def test_message_arrives_as_it_was_sent(self, bus: Bus, topic: str, subscribe: Open) -> None:
        bus.publish(topic, b"\x00key", b"\xff\x00value" * 1000, 1)
        bus.publish(topic, b"", b"", 1)
        bus.flush()
        first, second = take(subscribe(None), 2)
        assert (first.topic, first.partition, first.key, first.value) == (topic, 1, b"\x00key", b"\xff\x00value" * 1000)
        assert (second.key, second.value, second.offset) == (b"", b"", first.offset + 1)

    def test_flushed_is_durable(self, subscribe: Open, publish_numbers: Callable[..., None]) -> None:
        publish_numbers(0, 2000)
        assert sorted(numbers(take(subscribe(None), 2000))) == list(range(2000))

    def test_threads_publish_side_by_side(self, bus: Bus, topic: str, subscribe: Open) -> None:
        def publish(start: int) -> None:
            for number in range(start, start + 100):
                bus.publish(topic, str(start).encode(), str(number).encode())
            bus.flush()

        threads = [threading.Thread(target=publish, args=(start,)) for start in range(0, 400, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(numbers(take(subscribe("g"), 400))) == list(range(400))

    # --- membership ---

    def test_members_know_which_partitions_they_own(self, bus: Bus, topic: str, subscribe: Open) -> None:
        one = subscribe("g")
        own(one, PARTITIONS)
        other = subscribe("g")
        own(one, PARTITIONS // 2, other)
        own(other, PARTITIONS // 2, one)
        assert one.owned(topic) | other.owned(topic) == set(range(PARTITIONS))
        assert not one.owned(topic) & other.owned(topic)
        assert not one.owned("another")
        one.close()
        own(other, PARTITIONS)
        assert subscribe(None).partitions == PARTITIONS
        assert subscribe("h", [1]).partitions == 1
        assert not bus.troubles()

    # --- polling ---

    def test_poll_gives_no_more_than_asked_for(self, subscribe: Open, publish_numbers: Callable[..., None]) -> None:
        publish_numbers(0, 20)
        subscription = subscribe("g")
        received: list[Record] = []
        while len(received) < 20:
            records = subscription.poll(3, 0.5)
            assert len(records) <= 3
            received += records
        assert sorted(numbers(received)) == list(range(20))
        assert silent(subscription)

    def test_blocked_poll_wakes_for_a_message(self, subscribe: Open, publish_numbers: Callable[..., None]) -> None:
        subscription = subscribe("g")
        received: list[Record] = []
        reader = threading.Thread(target=lambda: received.extend(subscription.poll(10, LONGEST_S)))
        reader.start()
        publish_numbers(7, 8)
        reader.join()
        assert numbers(received) == [7]

    def test_paused_subscription_is_silent(self, subscribe: Open, publish_numbers: Callable[..., None]) -> None:
        subscription = subscribe("g")
        publish_numbers(0, 8)
        finish(subscription, take(subscription, 8))
        subscription.pause()
        publish_numbers(8, 16)
        assert silent(subscription)
        subscription.resume()
        assert sorted(numbers(take(subscription, 8))) == list(range(8, 16))

    def test_pause_holds_for_partitions_that_come_later(
        self, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        first = subscribe("g")
        publish_numbers(0, PARTITIONS)
        finish(first, take(first, PARTITIONS))
        second = subscribe("g")
        second.pause()
        deadline = time.monotonic() + LONGEST_S
        published = PARTITIONS
        received = set(range(published))
        while len(received) == published:  # until some have gone to partitions of the paused member
            assert time.monotonic() < deadline
            for partition in range(PARTITIONS):
                publish_numbers(published + partition, published + partition + 1, partition)
            published += PARTITIONS
            quiet_since = time.monotonic()
            while len(received) < published and time.monotonic() < quiet_since + 4 * SILENCE_S:
                records = first.poll(100, 0.1)
                finish(first, records)
                received |= set(numbers(records))
                assert not second.poll(100, 0.0)
        second.resume()
        while len(received) < published:
            assert time.monotonic() < deadline
            for member in (first, second):
                records = member.poll(100, 0.1)
                finish(member, records)
                received |= set(numbers(records))

    # --- groups ---

    def test_every_group_gets_everything(self, subscribe: Open, publish_numbers: Callable[..., None]) -> None:
        publish_numbers(0, 12)
        for group in ("one", "two"):
            assert sorted(numbers(take(subscribe(group), 12))) == list(range(12))

    def test_members_share_the_partitions(
        self, bus: Bus, topic: str, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        members = [subscribe("g"), subscribe("g")]
        deadline = time.monotonic() + LONGEST_S
        shares: list[list[int]] = []
        number = 0
        while sorted(map(len, shares)) != [2, 2]:
            assert time.monotonic() < deadline, f"shares stayed {shares}"
            for partition in range(PARTITIONS):
                bus.publish(topic, b"", str(number).encode(), partition)
            bus.flush()
            shares = [[], []]
            # All of this round has to come, though a rebalance may deliver some of it twice.
            while len({partition for share in shares for partition in share}) < PARTITIONS:
                for member, share in zip(members, shares, strict=True):
                    records = member.poll(100, 0.1)
                    finish(member, records)
                    share += [r.partition for r in records if int(r.value) == number]
            number += 1

    def test_member_that_leaves_hands_over(self, subscribe: Open, publish_numbers: Callable[..., None]) -> None:
        first, second = subscribe("g"), subscribe("g")
        publish_numbers(0, 40)
        held: list[Record] = []
        deadline = time.monotonic() + LONGEST_S
        while not held:
            assert time.monotonic() < deadline
            held += first.poll(100, 0.1)
            finish(second, second.poll(100, 0.1))
        first.close()
        again: set[int] = set()
        while not again >= set(numbers(held)):
            assert time.monotonic() < deadline
            records = second.poll(100, 0.2)
            finish(second, records)
            again |= set(numbers(records))

    def test_without_a_group_everything_is_read_from_the_start(
        self, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        publish_numbers(0, 10)
        early = subscribe(None)
        finish(early, take(early, 10))
        publish_numbers(10, 20)
        late = subscribe(None)
        assert sorted(numbers(take(early, 10))) == list(range(10, 20))
        assert sorted(numbers(take(late, 20))) == list(range(20))

    def test_fixed_partitions(self, subscribe: Open, publish_numbers: Callable[..., None]) -> None:
        for partition in range(PARTITIONS):
            publish_numbers(partition * 10, partition * 10 + 5, partition)
        even, odd = subscribe("g", [0, 2]), subscribe("g", [1, 3])
        assert {r.partition for r in take(odd, 10)} == {1, 3}
        records = take(even, 10)
        assert {r.partition for r in records} == {0, 2}
        finish(even, records)
        even.close()
        odd.close()
        publish_numbers(5, 6, 0)
        # The group remembers what is done, whichever way its partitions are dealt.
        assert sorted(numbers(take(subscribe("g", range(PARTITIONS)), 11))) == [5, *range(10, 15), *range(30, 35)]

    # --- redelivery ---

    def test_what_is_not_done_is_delivered_again(self, subscribe: Open, publish_numbers: Callable[..., None]) -> None:
        publish_numbers(0, 10, 0)
        subscription = subscribe("g")
        finish(subscription, take(subscription, 10)[:4])
        subscription.close()
        assert numbers(take(subscribe("g"), 6)) == [4, 5, 6, 7, 8, 9]

    def test_what_may_have_been_delivered_before_is_marked(
        self, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        """The first records of a partition, for whoever was given it; nothing for those who have no group."""
        count = 2 * SUSPECTS
        publish_numbers(0, count, 0)
        first = subscribe("g")
        assert not take(subscribe(None), count)[0].redelivered
        records = take(first, count)
        assert [record.redelivered for record in records] == [number < SUSPECTS for number in range(count)]
        finish(first, records[:5])
        first.close()
        again = take(subscribe("g"), count - 5)
        assert again == records[5:]
        assert [record.redelivered for record in again[: SUSPECTS + 1]] == [True] * SUSPECTS + [False]

    def test_commit_stops_at_the_first_that_is_not_done(
        self, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        publish_numbers(0, 6, 0)
        subscription = subscribe("g")
        records = take(subscription, 6)
        finish(subscription, [records[5], records[0], records[3], records[2]])
        subscription.close()
        second = subscribe("g")
        again = take(second, 5)
        assert numbers(again) == [1, 2, 3, 4, 5]
        finish(second, again[::-1])
        second.close()
        publish_numbers(6, 7, 0)
        assert numbers(take(subscribe("g"), 1)) == [6]

    def test_done_comes_from_any_thread_and_may_repeat(
        self, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        publish_numbers(0, 200)
        subscription = subscribe("g")
        records = take(subscription, 200)
        threads = [threading.Thread(target=finish, args=(subscription, records[n::2])) for n in (0, 1, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        subscription.close()
        finish(subscription, records)
        publish_numbers(200, 201)
        assert numbers(take(subscribe("g"), 1)) == [200]

    def test_closing_twice_is_harmless(self, subscribe: Open) -> None:
        subscription = subscribe("g")
        subscription.close()
        subscription.close()

    # --- topics ---

    def test_topics_are_made_once(self, bus: Bus, topic: str, subscribe: Open) -> None:
        bus.publish(topic, b"k", b"1")
        bus.flush()
        later = f"{topic}.later"
        bus.ensure_topics({topic: PARTITIONS, later: 1})
        bus.ensure_topics({topic: PARTITIONS, later: 1})
        assert numbers(take(subscribe("g"), 1)) == [1]

    def test_other_number_of_partitions_is_refused(self, bus: Bus, topic: str) -> None:
        with pytest.raises(ConfigError, match=f"{topic} has {PARTITIONS} partitions"):
            bus.ensure_topics({topic: PARTITIONS + 1})

    def test_unknown_topic_is_not_found(self, bus: Bus, topic: str) -> None:
        with pytest.raises(NotFound, match=r"there is no topic .*; a master makes it when it starts"):
            bus.subscribe([f"{topic}.unknown"], "g")

    def test_what_a_topic_holds_is_known_by_partition(self, bus: Bus, topic: str) -> None:
        assert [len(offsets) for offsets in bus.held(topic)] == [0] * PARTITIONS
        for number in range(3):
            bus.publish(topic, b"", str(number).encode(), 2)
            bus.flush()  # after each: of a batch, the broker of these tests counts the first record alone
        held = bus.held(topic)
        assert [len(offsets) for offsets in held] == [0, 0, 3, 0]
        with closing(bus.subscribe([topic], None)) as reader:
            assert [record.offset for record in take(reader, 3)] == list(held[2])
        with pytest.raises(NotFound, match=r"there is no topic .*nowhere; a master makes it when it starts"):
            bus.held("nowhere")

    def test_backlog_falls_as_records_are_done(
        self, bus: Bus, topic: str, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        publish_numbers(0, 10)
        before = bus.backlog(topic, "g")
        subscription = subscribe("g")
        finish(subscription, take(subscription, 10))
        subscription.close()
        assert 0 < before <= 10
        assert bus.backlog(topic, "g") == 0
