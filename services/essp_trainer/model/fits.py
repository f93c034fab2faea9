"""Fits an encoder or a classifier: in this process, or in a child process if one of its steps takes long.

    this process    rows ─▶ the child; receives its progress, and checks whether the training should leave or pause
    the child       fits ─▶ arrays

A NumPy call cannot be interrupted, and may take minutes (such as the decomposition of a few thousand clips' vectors). A
child can be ended during such a call, and is stopped while `tell` waits. It computes exactly as this process would, so
the result is the same to the last bit.

A child that dies, usually because memory has run out, fails the training with a remedy. The child ends with this
process, however that ends.
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
"""Number of multiplications; a longest step with fewer is over before a child has started."""
_LOOK_S = 0.2
"""Interval at which `tell` is called during a step."""
_GONE_S = 5.0
"""How long a child may take to end after it has closed its connection."""


class FitLeft(Exception):
    """The fit was aborted because the trainer is shutting down. Only progress was reported; nothing else has
    changed."""


def fitted(fit: str, work: int, tell: Tell, arrays: Arrays, **settings: Any) -> Arrays:
    """Run a fit of `fit_child.FITS`. `work`: roughly how many multiplications its longest step has.

    `tell` may block, and an exception that it raises ends the fit. Raises what the fit raises; in a child, `ValueError`
    for too few rows, and `PermanentError` for any other error or if the child has died. Raises `Unavailable` if no
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
    """Let the child fit, and report its progress."""
    step: Step | None = None
    child.channel.send(pickle.dumps(request))
    while True:
        if not child.channel.poll(_LOOK_S):
            if step is not None:
                _stand_still(child, step, tell)
            continue
        match pickle.loads(child.channel.receive()):  # noqa: S301  from our own child
            case Step() as step:
                tell(step.what, step.done, step.most)
                child.channel.send(GO_ON)
            case Learned(arrays):
                return arrays
            case Failed() as failed:
                raise _raised(failed)


def _stand_still(child: ChildProcess, step: Step, tell: Tell) -> None:
    """Report the same progress again, with the child stopped: `tell` may block for as long as the job is paused."""
    child.process.send_signal(signal.SIGSTOP)
    tell(step.what, step.done, step.most)
    child.process.send_signal(signal.SIGCONT)


def _raised(failed: Failed) -> Exception:
    if failed.kind == ValueError.__name__:
        return ValueError(failed.said)
    return PermanentError(f"a fit failed: {failed.kind}: {failed.said}\n{failed.trace}")
