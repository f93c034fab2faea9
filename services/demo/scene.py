"""One moving picture of the demonstration: a texture seen to move through a window in front of a still background.

What a single frame shows (which texture, where the window is, which part of the texture fills it) is drawn without
regard to the motion, so no frame by itself says how the texture moves; and what moves says nothing of what it is
made of. A classifier of (texture, motion) needs both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, radians, sin

import cv2
import numpy as np
from numpy.typing import NDArray

from services.demo.photographs import BACKGROUNDS, Picture, photograph

MOTIONS = {"left": 180.0, "right": 0.0, "up": 270.0, "down": 90.0}
"""Direction of each motion, in degrees clockwise from rightwards."""

_DIRECTION_SPREAD = 12.0
_SPEED = (0.016, 0.032)  # of the short side a frame: 2 to 4 px at 128
_SCALE = (0.5, 0.8)  # of the photograph's own size, at a short side of 128
_TILT = 20.0  # degrees
_NOISE_SIGMA = 3.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What a video shows, and in which size."""

    texture: str
    motion: str
    split: str
    width: int
    height: int
    frames: int


def render(scene: Scene, rng: np.random.Generator) -> Iterator[Picture]:
    """The frames of a scene; everything that is random comes from `rng`."""
    size = (scene.width, scene.height)
    background = _background(scene, rng).astype(np.float32)
    window = _window(scene, rng)[..., None]
    exposure = (rng.uniform(0.8, 1.2) * rng.uniform(0.92, 1.08, 3)).astype(np.float32)
    noise = rng.normal(0, _NOISE_SIGMA, (2 * scene.height, 2 * scene.width, 3)).astype(np.float32)
    texture = photograph(scene.texture, scene.split)
    orientation = _orientation(scene, rng)
    start = rng.uniform(-512, 0, 2)
    velocity = _velocity(scene, rng)
    for number in range(scene.frames):
        # The matrix maps the texture onto the frame; reflected at its edges, the texture goes on for ever.
        matrix = np.column_stack([orientation, start + number * velocity])
        front = cv2.warpAffine(texture, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
        picture = background + window * (front - background)
        picture *= exposure
        top, left = rng.integers(0, (scene.height, scene.width))
        picture += noise[top : top + scene.height, left : left + scene.width]
        yield picture.clip(0, 255).astype(np.uint8)


def _orientation(scene: Scene, rng: np.random.Generator) -> NDArray[np.float64]:
    """(2, 2) scale and slight rotation of the texture."""
    scale = rng.uniform(*_SCALE) * min(scene.width, scene.height) / 128
    angle = radians(rng.uniform(-_TILT, _TILT))
    return scale * np.array([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])


def _velocity(scene: Scene, rng: np.random.Generator) -> NDArray[np.float64]:
    """(right, down) in pixels a frame."""
    speed = rng.uniform(*_SPEED) * min(scene.width, scene.height)
    angle = radians(MOTIONS[scene.motion] + rng.uniform(-_DIRECTION_SPREAD, _DIRECTION_SPREAD))
    return speed * np.array([cos(angle), sin(angle)])


def _background(scene: Scene, rng: np.random.Generator) -> Picture:
    """A random crop of a random photograph, of the shape of the frame."""
    source = photograph(BACKGROUNDS[rng.integers(len(BACKGROUNDS))], scene.split)
    height, width = source.shape[:2]
    largest = min(width / scene.width, height / scene.height)
    share = largest * rng.uniform(0.6, 1.0)
    crop_width, crop_height = int(share * scene.width), int(share * scene.height)
    left, top = rng.integers(0, width - crop_width + 1), rng.integers(0, height - crop_height + 1)
    crop = source[top : top + crop_height, left : left + crop_width]
    return cv2.resize(crop, (scene.width, scene.height), interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)


def _window(scene: Scene, rng: np.random.Generator) -> NDArray[np.float32]:
    """(H, W) in 0..1: an ellipse or a rounded rectangle with soft edges, inside the central square of the frame."""
    short = min(scene.width, scene.height)
    radii = rng.uniform(0.28, 0.42, 2) * short
    room = short / 2 - radii
    centre = np.array([scene.width, scene.height]) / 2 + rng.uniform(-1, 1, 2) * room
    exponent = rng.choice([2.0, 6.0])
    y, x = np.mgrid[0 : scene.height, 0 : scene.width]
    distance = (np.abs((x - centre[0]) / radii[0]) ** exponent + np.abs((y - centre[1]) / radii[1]) ** exponent) ** (
        1 / exponent
    )
    softness = 2.0 / radii.min()
    return np.clip((1 - distance) / softness, 0, 1).astype(np.float32)
