"""Doing again what was given up: the original message goes back to its topic, if that can still be of use.

A clip that cannot be made is not waited for: the master puts another video in its place, or has its consumers skip the
index. From then on nobody wants the original, whose bytes would only occupy the cache. So a message is published again
only while its job is under way and its index is still open; otherwise `obstacle` says what is in the way. A job that
is started again issues what it needs by itself, with videos that were repaired meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from essp.deadletters.entries import Place, original_of, place_of
from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.bus.reading import read_all
from essp_common.messages.control import ENDED
from essp_common.pb.v1.messages_pb2 import ClipReady, Control, DeadLetter, DecodeSeed, FeatureReady, Purpose


@dataclass(slots=True)
class Standing:
    """What became of the jobs and places of some letters."""

    commands: dict[str, Control] = field(default_factory=dict)
    """Job -> its last command."""
    attempts: dict[Place, int] = field(default_factory=dict)
    """Place -> the last attempt that was issued for it."""
    skipped: dict[Place, set[str]] = field(default_factory=dict)
    """Place -> topics whose consumers were told that there is nothing."""


def standing(bus: Bus, letters: Collection[DeadLetter]) -> Standing:
    """Read from the bus how things stand with these letters. All seeds are gone through: seconds a million."""
    places = {place for letter in letters if (place := place_of(letter)) is not None}
    found = Standing()
    for record in read_all(bus, topics.CONTROL):
        command = Control.FromString(record.value)
        if command.fence >= found.commands.get(command.job, command).fence:
            found.commands[command.job] = command
    for record in read_all(bus, topics.SEEDS):
        unit = DecodeSeed.FromString(record.value)
        for seed in unit.seeds:
            place = (unit.job, unit.purpose, unit.epoch, seed.index)
            if place in places:
                found.attempts[place] = max(found.attempts.get(place, 0), seed.attempt)
    for topic in sorted({topic for letter in letters for topic in _topics_told(letter)}):
        for record in read_all(bus, topic):
            ready = (ClipReady if topic == topics.CLIPS else FeatureReady).FromString(record.value)
            place = (ready.clip.job, ready.clip.purpose, ready.clip.epoch, ready.clip.index)
            if ready.skipped and place in places:
                found.skipped.setdefault(place, set()).add(topic)
    return found


def obstacle(letter: DeadLetter, found: Standing) -> str | None:
    """Why doing it again would be of no use; None if it may be."""
    original, place = original_of(letter), place_of(letter)
    if original is None or place is None:
        return "the message itself cannot be read, today as then"
    job, purpose, epoch, index = place
    command = found.commands.get(job)
    if command is None:
        return f"nothing is known of job {job} on this bus"
    if command.command in ENDED:
        ended = Control.Command.Name(command.command).lower()
        return f"job {job} has ended ({ended}); start it again, and it issues what it still needs"
    if original.fence < command.fence:
        return f"an earlier start of job {job} issued it; the present one issues what it still needs"
    where = f"index {index} of {Purpose.Name(purpose).lower()} {epoch}"
    attempt = original.seeds[0].attempt if isinstance(original, DecodeSeed) else original.clip.attempt
    if found.attempts.get(place, 0) > attempt:
        return f"{where} was given to another video, attempt {found.attempts[place]}"
    told = found.skipped.get(place, set())
    if told and told >= _topics_told(letter):
        return f"{where} was skipped, its consumers have gone on"
    return None


def publish_again(bus: Bus, letter: DeadLetter) -> None:
    """Publish the original message as it was. Returns when it is durable."""
    original = original_of(letter)
    if isinstance(original, DecodeSeed):
        bus.publish(letter.topic, original.video.uri.encode(), letter.message)
    elif isinstance(original, ClipReady):
        index = original.clip.index
        bus.publish(letter.topic, str(index).encode(), letter.message, partition=index % topics.DATA_PARTITIONS)
    else:
        raise DecodeError("the message cannot be read")
    bus.flush()


def _topics_told(letter: DeadLetter) -> set[str]:
    """Where consumers would learn that there is nothing at this letter's index."""
    original = original_of(letter)
    if original is None:
        return set()
    recipe = original.recipe
    told = {topics.features(stream.feature) for stream in recipe.streams if stream.feature != "rgb"}
    if isinstance(original, DecodeSeed):
        told |= {topics.CLIPS for stream in recipe.streams if stream.feature == "rgb"}
    return told
