"""Replays dead letters: publishes the original message on its topic again, if a consumer still needs the clip.

A job does not wait for a clip that cannot be made: the master gives the index to another video, or lets the consumers
skip the index. From then on no consumer reads the original clip, and its bytes would only occupy the cache. A message
is therefore published again only while its job runs and its index is open; otherwise `obstacle` returns the reason
against it. A job that is started again issues the clips that it still needs, also from repaired videos.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from essp.deadletters.entries import ClipKey, clip_key_of, original_of
from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.bus.reading import read_all
from essp_common.messages.control import ENDED
from essp_common.messages.parsing import BadMessage, parsed
from essp_common.pb.v1.messages_pb2 import ClipReady, Control, DeadLetter, DecodeSeed, FeatureReady, Purpose

M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class ReplayState:
    """The state of the jobs and clips of some entries, read from the bus."""

    commands: dict[str, Control] = field(default_factory=dict)
    """Job -> its last command."""
    attempts: dict[ClipKey, int] = field(default_factory=dict)
    """Clip -> the last attempt that the master issued for it."""
    skipped: dict[ClipKey, set[str]] = field(default_factory=dict)
    """Clip -> topics on which a message says that consumers skip the clip."""


def replay_state(bus: Bus, entries: Collection[DeadLetter]) -> ReplayState:
    """Read the state of the jobs and clips of these entries. Reads all seeds: some seconds for a million."""
    clip_keys = {clip_key for entry in entries if (clip_key := clip_key_of(entry)) is not None}
    state = ReplayState()
    for command in _messages(bus, topics.CONTROL, Control):
        if command.job and command.fence >= state.commands.get(command.job, command).fence:
            state.commands[command.job] = command
    for unit in _messages(bus, topics.SEEDS, DecodeSeed):
        for seed in unit.seeds:
            clip_key = (unit.job, unit.purpose, unit.epoch, seed.index)
            if clip_key in clip_keys:
                state.attempts[clip_key] = max(state.attempts.get(clip_key, 0), seed.attempt)
    for topic in sorted({topic for entry in entries for topic in _consumer_topics(entry)}):
        kind: type[ClipReady] | type[FeatureReady] = ClipReady if topic == topics.CLIPS else FeatureReady
        for ready in _messages(bus, topic, kind):
            clip_key = (ready.clip.job, ready.clip.purpose, ready.clip.epoch, ready.clip.index)
            if ready.skipped and clip_key in clip_keys:
                state.skipped.setdefault(clip_key, set()).add(topic)
    return state


def obstacle(entry: DeadLetter, state: ReplayState) -> str | None:
    """The reason why a replay would be useless; None if it may help."""
    original, clip_key = original_of(entry), clip_key_of(entry)
    if original is None or clip_key is None:
        return "the original message cannot be read"
    job, purpose, epoch, index = clip_key
    command = state.commands.get(job)
    if command is None:
        return f"this bus has no command for job {job}"
    if command.command in ENDED:
        ended = Control.Command.Name(command.command).lower()
        return f"job {job} has ended ({ended}); when started again, it issues the clips that it still needs"
    if original.fence < command.fence:
        return f"an earlier start of job {job} issued it; the present start issues the clips that it still needs"
    where = f"index {index} of {Purpose.Name(purpose).lower()} {epoch}"
    attempt = original.seeds[0].attempt if isinstance(original, DecodeSeed) else original.clip.attempt
    if state.attempts.get(clip_key, 0) > attempt:
        return f"{where} went to another video, attempt {state.attempts[clip_key]}"
    skipping = state.skipped.get(clip_key, set())
    if skipping and skipping >= _consumer_topics(entry):
        return f"{where} was skipped by all consumers"
    return None


def publish_again(bus: Bus, entry: DeadLetter) -> None:
    """Publish the original message unchanged. Returns when it is durable."""
    original = original_of(entry)
    if isinstance(original, DecodeSeed):
        bus.publish(entry.topic, original.video.uri.encode(), entry.message)
    elif isinstance(original, ClipReady):
        clip = original.clip
        partition = topics.clip_partition(clip.purpose, clip.index, bus.partitions)
        bus.publish(entry.topic, str(clip.index).encode(), entry.message, partition=partition)
    else:
        raise DecodeError("the message cannot be read")
    bus.flush()


def _messages(bus: Bus, topic: str, kind: type[M]) -> Iterator[M]:
    """The messages of a topic. Records that are not valid messages are ignored."""
    for record in read_all(bus, topic):
        with suppress(BadMessage):
            yield parsed(kind, record)


def _consumer_topics(entry: DeadLetter) -> set[str]:
    """The topics whose consumers wait for the clip of this entry."""
    original = original_of(entry)
    if original is None:
        return set()
    recipe = original.recipe
    found = {topics.features(stream.feature) for stream in recipe.streams if stream.feature != "rgb"}
    if isinstance(original, DecodeSeed):
        found |= {topics.CLIPS for stream in recipe.streams if stream.feature == "rgb"}
    return found
