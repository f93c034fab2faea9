"""How the values of a feature are to be read: whether they are a picture, and what becomes of them in a mirror.

An extractor declares it, in its class or in its registration. The master checks jobs by it before they begin, and
passes it on to the trainers, whose models record it. So a prediction, years later, reads the feature as the training
did, and the code that made the feature need not be there.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class FeatureLayout(BaseModel):
    """How to read a feature. The default holds for every picture: it is never mirrored."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    values: Literal["colours", "signed", "descriptor"] = "signed"
    """`colours`: uint8, red, green and blue of one or more frames. `signed`: uint8 around 128, which is zero; floats
    are taken as they are. Both are pictures, `(T, H, W, C)`. `descriptor`: no picture, such as histograms and tracks,
    a descriptor in each row of C numbers; encoders learn from them, networks cannot."""
    mirrored: Literal["unknown", "plain", "horizontal_motion"] = "unknown"
    """What the values become when the frames are mirrored. `plain`: they only change places. `horizontal_motion`:
    channels 0, 2, 4, ... also change sign, as in a stack dx, dy, dx, dy, ... `unknown`: it must not be mirrored."""
    facts: int = Field(0, ge=0, exclude_if=lambda facts: not facts)
    """Of descriptors: how many numbers at the beginning of each row say where it is, not what is seen there. Encoders
    leave them out. Rows whose facts are all zero are padding. 0: there are none, and every row is a descriptor."""


COLOURS = FeatureLayout(values="colours", mirrored="plain")
"""Frames."""
DIFFERENCES = FeatureLayout(values="signed", mirrored="plain")
"""Signed values without a direction."""
MOTION = FeatureLayout(values="signed", mirrored="horizontal_motion")
"""Stacked fields of motion, dx and dy in turn."""
DESCRIPTOR = FeatureLayout(values="descriptor")
"""Numbers that are no picture."""
