"""Where an encoder or a classifier is fitted: in this process, or in a child process if a step of it takes long.

    this process    rows ─▶ the child; hears how far it is, and looks whether the training is to leave or to pause
    the child       fits ─▶ arrays

Nothing interrupts a call of numpy, and one may take minutes: the span of the vectors of a few thousand clips. A child
is ended in the middle of it, and stands still while `tell` waits. It computes as this process would, so what comes of
it is the same to the last bit.

A child that dies, for lack of memory as a rule, fails the training with what to do. It ends with this process, however
that ends.
"""

from __future__ import annotations

import pickle
import signal
from typing import Any

from essp_common.errors import PermanentError
from essp_common.runtime.child_process import ChildProcess
from essp_engine.encoders.fitting import Tell
from essp_trainer.model.fit_child import FITS
from essp_trainer.model.fit_messages import GO_ON, Arrays, Failed, Learned, Request, Step

_MODULE = "essp_trainer.model.fit_child"
_WORTH = 10**9
"""Multiplications; a longest step that has fewer is over before a child has started."""
_LOOK_S = 0.2
"""How often `tell` is called in the middle of a step."""
_GONE_S = 5.0
"""Until a child that has closed its connection is gone."""


class FitLeft(Exception):
    """A fit was left in the middle, because the training is to leave. Nothing has changed but what was told."""


def fitted(fit: str, work: int, tell: Tell, arrays: Arrays, **settings: Any) -> Arrays:
    """What comes of a fit of `fit_child.FITS`. `work`: about how many multiplications its longest step has.

    `tell` may wait, and what it raises ends the fit. Raises what the fit has raised; of a child, `ValueError` for rows
    that are too few, and `PermanentError` for what else it has raised, or if it has died. Raises `Unavailable` if no
    child can be started.
    """
    if work < _WORTH:
        return FITS[fit](arrays, settings, tell)
    child = ChildProcess(_MODULE, "fits")
    try:
        return _answer(child, Request(fit, arrays, settings), tell)
    except (EOFError, ConnectionError) as error:
        raise PermanentError(
            f"the process that fits {child.end(_GONE_S)}; if memory has run out, give the trainer more, or let it "
            "learn from fewer samples or clips"
        ) from error
    finally:
        child.end()


def _answer(child: ChildProcess, request: Request, tell: Tell) -> Arrays:
    """Let it fit, and tell how far it is."""
    step: Step | None = None
    child.channel.send(pickle.dumps(request))
    while True:
        if not child.channel.poll(_LOOK_S):
            if step is not None:
                _stand_still(child, step, tell)
            continue
        match pickle.loads(child.channel.receive()):  # noqa: S301  of our own child
            case Step() as step:
                tell(step.what, step.done, step.most)
                child.channel.send(GO_ON)
            case Learned(arrays):
                return arrays
            case Failed() as failed:
                raise _raised(failed)


def _stand_still(child: ChildProcess, step: Step, tell: Tell) -> None:
    """Tell the same again. Who is told may wait as long as the job is paused."""
    child.process.send_signal(signal.SIGSTOP)
    tell(step.what, step.done, step.most)
    child.process.send_signal(signal.SIGCONT)


def _raised(failed: Failed) -> Exception:
    if failed.kind == ValueError.__name__:
        return ValueError(failed.said)
    return PermanentError(f"a fit failed: {failed.kind}: {failed.said}\n{failed.trace}")
