"""Fits for `fits.py`: `python -m essp_trainer.model.fit_child CONNECTION`.

    to it      Request, then `GO_ON` each time it may continue
    from it    Step                      its progress; it waits until it may continue
               Learned                   the result; it ends
               Failed                    or the error; it ends

It uses neither bus nor store. It ends at once when its parent is gone, even during a step.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from essp_common.runtime.child_process import requests, to_parent
from essp_engine.encoders.classifier import fitted_classifier
from essp_engine.encoders.encoder import fitted_encoder
from essp_engine.encoders.fitting import Tell
from essp_trainer.model.fit_messages import Arrays, Failed, Learned, Request, Step


def _encoder(arrays: Arrays, settings: Mapping[str, Any], tell: Tell) -> Arrays:
    return fitted_encoder(descriptors=arrays["rows"], tell=tell, **settings).arrays()


def _classifier(arrays: Arrays, settings: Mapping[str, Any], tell: Tell) -> Arrays:
    return vars(fitted_classifier(arrays["vectors"].astype(np.float64), arrays["labels"], tell=tell, **settings))


FITS: dict[str, Callable[[Arrays, Mapping[str, Any], Tell], Arrays]] = {"encoder": _encoder, "classifier": _classifier}
"""What can be fitted: arrays and settings -> the arrays of an `Encoder`, or of a `LinearClassifier`."""


def main() -> None:
    """Fit what the parent asks for."""
    parent = to_parent(sys.argv[1])
    request: Request = pickle.loads(parent.receive())  # noqa: S301  from our own parent
    permits = requests(parent)

    def say(what: Step | Learned | Failed) -> None:
        parent.send(pickle.dumps(what))

    def tell(what: str, done: int, most: int) -> None:
        say(Step(what, done, most))
        permits.get()

    try:
        say(Learned(FITS[request.fit](request.arrays, request.settings, tell)))
    except Exception as error:  # noqa: BLE001  raised again by the parent
        say(Failed(type(error).__name__, str(error), traceback.format_exc()))


if __name__ == "__main__":
    main()
