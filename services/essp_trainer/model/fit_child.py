"""Fits for `fits.py`: `python -m essp_trainer.model.fit_child CONNECTION`.

    to it      Request, then `True` each time that it may go on
    from it    Step                      how far it is; it stands still until it may go on
               Learned                   what came of it; it ends
               Failed                    or what it raised; it ends

It touches neither bus nor store. It ends at once when its parent is gone, also in the middle of a step. It ignores
SIGINT and SIGTERM, which may come to all processes of a terminal or of a container: the parent decides when it is done.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from essp_engine.encoders.classifier import fitted_classifier
from essp_engine.encoders.encoder import fitted_encoder
from essp_engine.encoders.fitting import Tell
from essp_trainer.model.fit_messages import Arrays, Failed, Learned, Request, Step


def _encoder(arrays: Arrays, settings: Mapping[str, Any], tell: Tell) -> Arrays:
    return fitted_encoder(descriptors=arrays["rows"], tell=tell, **settings).arrays()


def _classifier(arrays: Arrays, settings: Mapping[str, Any], tell: Tell) -> Arrays:
    return vars(fitted_classifier(arrays["vectors"].astype(np.float64), arrays["labels"], tell=tell, **settings))


FITS: dict[str, Callable[[Arrays, Mapping[str, Any], Tell], Arrays]] = {"encoder": _encoder, "classifier": _classifier}
"""What can be fitted: of arrays and settings come the arrays of an `Encoder`, or of a `LinearClassifier`."""


def main() -> None:
    """Fit what the parent asks for."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    parent, permits = Connection(int(sys.argv[1])), SimpleQueue[bool]()
    request: Request = parent.recv()
    Thread(target=_listen, args=(parent, permits), daemon=True).start()

    def tell(what: str, done: int, most: int) -> None:
        parent.send(Step(what, done, most))
        permits.get()

    try:
        parent.send(Learned(FITS[request.fit](request.arrays, request.settings, tell)))
    except Exception as error:  # noqa: BLE001  raised again by the parent
        parent.send(Failed(type(error).__name__, str(error), traceback.format_exc()))


def _listen(parent: Connection, permits: SimpleQueue[bool]) -> None:
    try:
        while True:
            permits.put(parent.recv())
    except (EOFError, OSError):
        os._exit(0)
    finally:
        os._exit(1)  # of what nobody expected: the parent then sees that this process is gone


if __name__ == "__main__":
    main()
