"""What failed, how, and why: enums on the wire, and the words that people see for them.

Messages name the service that met a failure (`Stage`) and what kind of failure it is (`FailureKind`). The API, the
command line, metrics and logs show the same values as words in lower case: `decoder`, `damaged`, `not_video`. The
errors of `errors.py` carry the word as their `kind`; this module is the only one that translates. The reason is what
the error says, in a form that every message takes: an error of a plug-in, or about a file, may say anything.
"""

from __future__ import annotations

from typing import cast

from essp_common.errors import EsspError
from essp_common.pb.v1.messages_pb2 import ERROR, FailureKind, Stage

LONGEST_REASON = 2_000
"""Characters of a reason for people; longer ones are cut, as they are passed on in other messages."""


def reason_of(error: BaseException) -> str:
    """What an error says, and of which type it is if it is not ESSP's own. Fits into any message."""
    return shortened(str(error) if isinstance(error, EsspError) else f"{type(error).__name__}: {error}")


def shortened(words: str, longest: int = LONGEST_REASON) -> str:
    """Words that fit into any message: not too long, and without the surrogates of file names that are no UTF-8, which
    no message takes."""
    cut = words if len(words) <= longest else words[: longest - 4] + " ..."
    return cut.encode("utf-8", "replace").decode()


def kind_of(error: BaseException) -> FailureKind:
    """The kind of an error; ERROR for one that is not ESSP's own."""
    return kind_named(error.kind) if isinstance(error, EsspError) else ERROR


def kind_named(word: str) -> FailureKind:
    """The kind that people call `word`; ERROR if there is none."""
    name = word.upper()
    return cast(FailureKind, FailureKind.Value(name)) if name in FailureKind.keys() else ERROR  # noqa: SIM118  not a mapping


def kind_word(kind: FailureKind) -> str:
    """What people call a kind. A kind that only a newer version knows is an `error`."""
    return FailureKind.Name(kind).lower() if kind in FailureKind.values() else FailureKind.Name(ERROR).lower()


def stage_named(word: str) -> Stage:
    """The service that people call `word`. Raises `ValueError` if there is none."""
    return cast(Stage, Stage.Value(word.upper()))


def stage_word(stage: Stage) -> str:
    """What people call a service; `unknown` if the message did not say, or only a newer version knows it."""
    return Stage.Name(stage).lower() if stage in Stage.values() and stage else "unknown"
