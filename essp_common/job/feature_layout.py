"""How to interpret the values of a feature: whether they form a picture, and how mirroring the frames affects them.

An extractor declares its layout in its class or in its registration. The master checks jobs against it before they
begin, and passes it on to the trainers, whose models record it. So a prediction years later interprets the feature as
the training did, even without the code that computed the feature.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class FeatureLayout(BaseModel):
    """How to interpret a feature. The default is safe for every picture: it is never mirrored."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    values: Literal["colours", "signed", "descriptor"] = "signed"
    """`colours`: uint8, red, green and blue of one or more frames. `signed`: uint8 with zero at 128; floats are used
    unchanged. Both are pictures, `(T, H, W, C)`. `descriptor`: not a picture, but descriptors such as histograms and
    tracks, one in each row of C numbers; encoders can learn from them, networks cannot."""
    mirrored: Literal["unknown", "plain", "horizontal_motion"] = "unknown"
    """How the values change when the frames are mirrored. `plain`: they only move. `horizontal_motion`: channels 0, 2,
    4, ... also change sign, as in a stack dx, dy, dx, dy, ... `unknown`: it must not be mirrored."""
    facts: int = Field(0, ge=0, exclude_if=lambda facts: not facts)
    """For descriptors: how many numbers at the beginning of each row give its location, not its content. Encoders
    ignore them. Rows whose location is all zero are padding. 0: rows have no location, and every row is a
    descriptor."""


COLOURS = FeatureLayout(values="colours", mirrored="plain")
"""Frames."""
DIFFERENCES = FeatureLayout(values="signed", mirrored="plain")
"""Signed values without a direction."""
MOTION = FeatureLayout(values="signed", mirrored="horizontal_motion")
"""Stacked motion fields, alternating dx and dy."""
DESCRIPTOR = FeatureLayout(values="descriptor")
"""Numbers that do not form a picture."""
