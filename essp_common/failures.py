"""What failed, how, and why: enums in messages, and the words that users see for them.

Messages name the service that met a failure (`Stage`) and its kind (`FailureKind`). The API, the command line, metrics
and logs show the same values as lower-case words: `decoder`, `damaged`, `not_video`. The errors of `errors.py` carry
the word as their `kind`; only this module translates. The reason is the text of the error, in a form that fits into
every message, because errors of plug-ins or about files may contain anything.
"""

from __future__ import annotations

from typing import cast

from essp_common.errors import EsspError
from essp_common.pb.v1.messages_pb2 import ERROR, FailureKind, Stage

LONGEST_REASON = 2_000
"""Characters of a reason shown to users; longer ones are cut, because they are copied into other messages."""


def reason_of(error: BaseException) -> str:
    """The text of an error, with its type if it is not one of ESSP's. Fits into any message."""
    return shortened(str(error) if isinstance(error, EsspError) else f"{type(error).__name__}: {error}")


def shortened(words: str, longest: int = LONGEST_REASON) -> str:
    """A text that fits into any message: limited in length, and without surrogates from file names that are not UTF-8,
    which messages cannot carry."""
    cut = words if len(words) <= longest else words[: longest - 4] + " ..."
    return cut.encode("utf-8", "replace").decode()


def kind_of(error: BaseException) -> FailureKind:
    """The kind of an error; ERROR if it is not one of ESSP's."""
    return kind_named(error.kind) if isinstance(error, EsspError) else ERROR


def kind_named(word: str) -> FailureKind:
    """The kind for a word; ERROR if the word is unknown."""
    name = word.upper()
    return cast(FailureKind, FailureKind.Value(name)) if name in FailureKind.keys() else ERROR  # noqa: SIM118  not a mapping


def kind_word(kind: FailureKind) -> str:
    """The word for a kind. A kind that only a newer version knows is an `error`."""
    return FailureKind.Name(kind).lower() if kind in FailureKind.values() else FailureKind.Name(ERROR).lower()


def stage_named(word: str) -> Stage:
    """The service for a word. Raises `ValueError` if it is unknown."""
    return cast(Stage, Stage.Value(word.upper()))


def stage_word(stage: Stage) -> str:
    """The word for a service; `unknown` if the message does not name it or only a newer version knows it."""
    return Stage.Name(stage).lower() if stage in Stage.values() and stage else "unknown"
