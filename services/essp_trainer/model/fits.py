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

import signal
import subprocess
from contextlib import closing
from multiprocessing import Pipe
from typing import Any

from essp_common.errors import PermanentError, Unavailable
from essp_common.runtime.children import module_command
from essp_engine.encoders.fitting import Tell
from essp_trainer.model.fit_child import FITS
from essp_trainer.model.fit_messages import Arrays, Failed, Learned, Request, Step

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
    with closing(_Child()) as child:
        return child.answer(Request(fit, arrays, settings), tell)


class _Child:
    """A child process that fits once."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        try:
            self._process = subprocess.Popen(
                module_command(_MODULE, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the parent; of the same session, so that niceness counts
            )
        except OSError as error:
            self._connection.close()
            raise Unavailable(f"a process that fits cannot be started: {error}") from error
        finally:
            theirs.close()

    def answer(self, request: Request, tell: Tell) -> Arrays:
        """Let it fit, and tell how far it is."""
        step: Step | None = None
        try:
            self._connection.send(request)
            while True:
                if not self._connection.poll(_LOOK_S):
                    if step is not None:
                        self._stand_still(step, tell)
                    continue
                match self._connection.recv():
                    case Step() as step:
                        tell(step.what, step.done, step.most)
                        self._connection.send(True)
                    case Learned(arrays):
                        return arrays
                    case Failed() as failed:
                        raise _raised(failed)
        except (EOFError, ConnectionError) as error:
            raise PermanentError(
                f"the process that fits {_fate(self._end(_GONE_S))}; if memory has run out, give the trainer more, or "
                "let it learn from fewer samples or clips"
            ) from error

    def close(self) -> None:
        """Make sure that it is gone. Idempotent."""
        self._end(0.0)

    def _stand_still(self, step: Step, tell: Tell) -> None:
        """Tell the same again. Who is told may wait as long as the job is paused."""
        self._process.send_signal(signal.SIGSTOP)
        tell(step.what, step.done, step.most)
        self._process.send_signal(signal.SIGCONT)

    def _end(self, patience_s: float) -> int:
        self._connection.close()
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _fate(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def _raised(failed: Failed) -> Exception:
    if failed.kind == ValueError.__name__:
        return ValueError(failed.said)
    return PermanentError(f"a fit failed: {failed.kind}: {failed.said}\n{failed.trace}")
