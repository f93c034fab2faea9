"""Each error has a kind that the wire knows, and each kind and service a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast, get_args

import pytest

from essp_common import errors
from essp_common.errors import BadVideo, CacheFull, CacheMiss, EsspError, Unavailable, VideoFault
from essp_common.failures import kind_named, kind_of, kind_word, reason_of, stage_named, stage_word
from essp_common.pb.v1.messages_pb2 import (
    CACHE_FULL,
    ERROR,
    LOST,
    NOT_VIDEO,
    STAGE_UNSPECIFIED,
    UNAVAILABLE,
    Failed,
    FailureKind,
    Stage,
)


def every_error(root: type[EsspError] = EsspError) -> Iterator[type[EsspError]]:
    yield root
    for error in root.__subclasses__():
        yield from every_error(error)


ERRORS = sorted(every_error(), key=lambda error: error.__name__)


@pytest.mark.parametrize("error", ERRORS)
def test_the_kind_of_every_error_is_known_on_the_wire(error: type[EsspError]) -> None:
    assert kind_word(kind_named(error.kind)) == error.kind


@pytest.mark.parametrize("kind", get_args(VideoFault))
def test_what_may_be_the_matter_with_a_video_is_known_on_the_wire(kind: VideoFault) -> None:
    assert kind_word(kind_of(BadVideo("no", kind))) == kind


@pytest.mark.parametrize("kind", FailureKind.values())
def test_kinds_and_words_map_one_to_one(kind: FailureKind) -> None:
    assert not kind or kind_named(kind_word(kind)) == kind


@pytest.mark.parametrize("word", ["decoder", "extractor", "trainer", "aggregator", "predictor", "consumer"])
def test_services_and_words_map_one_to_one(word: str) -> None:
    assert stage_word(stage_named(word)) == word
    assert len(Stage.values()) == 7


def test_errors_have_the_kind_they_say() -> None:
    assert kind_of(BadVideo("no", "not_video")) == NOT_VIDEO
    assert kind_of(CacheFull("no")) == CACHE_FULL
    assert kind_of(Unavailable("no")) == UNAVAILABLE
    assert kind_of(CacheMiss("no")) == LOST
    assert kind_of(errors.ConfigError("no")) == ERROR
    assert kind_of(ZeroDivisionError("no")) == ERROR


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadVideo("no video"), "no video"),
        (ZeroDivisionError("oh"), "ZeroDivisionError: oh"),
        (BadVideo("no file b\udcff.mp4"), "no file b?.mp4"),
        (BadVideo("x" * 2000), "x" * 2000),
        (BadVideo("\udcff" * 2001), "?" * 1996 + " ..."),
    ],
)
def test_every_message_takes_the_reason(error: Exception, reason: str) -> None:
    assert Failed(reason=reason_of(error)).reason == reason


def test_what_a_newer_version_knows_is_still_shown() -> None:
    assert kind_word(cast(FailureKind, 99)) == "error"
    assert stage_word(cast(Stage, 99)) == "unknown"
    assert stage_word(STAGE_UNSPECIFIED) == "unknown"
