"""A moving picture of the demonstration: a texture moves behind a window in front of a still background.

A single frame shows the texture but not its motion, and the motion says nothing about the texture, so a classifier of
(texture, motion) needs both. The design is counterbalanced so that nothing else distinguishes the classes or can be
memorised: the twelve videos of one `take` share background, window, exposure, length and the initial part of the
texture. Videos with the same motion also share its speed and exact direction. Only the sensor noise differs in each
video.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, radians, sin

import cv2
import numpy as np
from numpy.typing import NDArray

from essp.demo.photographs import BACKGROUNDS, TEXTURES, Picture, photograph

MOTIONS = {"down": 90.0, "left": 180.0, "right": 0.0, "up": 270.0}
"""Direction of each motion, in degrees clockwise from rightwards."""

_FRAMES = (24, 40)
_DIRECTION_SPREAD = 12.0
_SPEED = (0.016, 0.032)  # share of the short side per frame: 2 to 4 px at 128
_SCALE = (0.8, 1.2)
_TILT = 20.0  # degrees
_NOISE_SIGMA = 3.0
_REACH = 512.0  # maximum distance between the starting points of textures, in pixels


@dataclass(frozen=True, slots=True)
class Scene:
    """The content and size of a video."""

    texture: str
    motion: str
    split: str
    take: int
    """Scenes of one take differ only in texture and motion."""
    width: int
    height: int

    @property
    def short_side(self) -> int:
        return min(self.width, self.height)


def render(scene: Scene, seed: int, seen: Sequence[bool] = ()) -> Iterator[Picture]:
    """The frames of a scene, a function of the arguments alone.

    `seen`: for each frame, whether it shows the texture or only the background. If empty, all frames show the texture,
    and the scene determines their number.
    """
    texture, motion = list(TEXTURES).index(scene.texture), list(MOTIONS).index(scene.motion)
    setting = np.random.default_rng([seed, scene.take])
    velocity = _velocity(scene, np.random.default_rng([seed, scene.take, motion]))
    sensor = np.random.default_rng([seed, scene.take, motion, texture])

    seen = seen or [True] * int(setting.integers(_FRAMES[0], _FRAMES[1] + 1))
    background = _background(scene, setting).astype(np.float32)
    window = _window(scene, setting)[..., None]
    exposure = (setting.uniform(0.8, 1.2) * setting.uniform(0.92, 1.08, 3)).astype(np.float32)
    orientation = TEXTURES[scene.texture] * _orientation(scene, setting)
    start = setting.uniform(-_REACH, 0, 2)
    noise = sensor.normal(0, _NOISE_SIGMA, (2 * scene.height, 2 * scene.width, 3)).astype(np.float32)
    front = photograph(scene.texture, scene.split)
    size = (scene.width, scene.height)
    for number, visible in enumerate(seen):
        # All motions are at the same place half-way. The texture is reflected at its edges, so it continues
        # indefinitely.
        place = start + (number - len(seen) / 2) * velocity
        matrix = np.column_stack([orientation, place])
        shown = cv2.warpAffine(front, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
        picture = background + visible * window * (shown - background)
        picture *= exposure
        top, left = sensor.integers(0, (scene.height, scene.width))
        picture += noise[top : top + scene.height, left : left + scene.width]
        yield picture.clip(0, 255).astype(np.uint8)


def _velocity(scene: Scene, rng: np.random.Generator) -> NDArray[np.float64]:
    """(right, down) in pixels per frame."""
    speed = rng.uniform(*_SPEED) * scene.short_side
    angle = radians(MOTIONS[scene.motion] + rng.uniform(-_DIRECTION_SPREAD, _DIRECTION_SPREAD))
    return speed * np.array([cos(angle), sin(angle)])


def _orientation(scene: Scene, rng: np.random.Generator) -> NDArray[np.float64]:
    """(2, 2) scale and slight rotation of the texture."""
    scale = rng.uniform(*_SCALE) * scene.short_side / 128
    angle = radians(rng.uniform(-_TILT, _TILT))
    return scale * np.array([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])


def _background(scene: Scene, rng: np.random.Generator) -> Picture:
    """A random crop of a random photograph, with the aspect ratio of the frame."""
    source = photograph(BACKGROUNDS[rng.integers(len(BACKGROUNDS))], scene.split)
    height, width = source.shape[:2]
    share = min(width / scene.width, height / scene.height) * rng.uniform(0.6, 1.0)
    crop_width, crop_height = int(share * scene.width), int(share * scene.height)
    left, top = rng.integers(0, width - crop_width + 1), rng.integers(0, height - crop_height + 1)
    crop = source[top : top + crop_height, left : left + crop_width]
    return cv2.resize(crop, (scene.width, scene.height), interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)


def _window(scene: Scene, rng: np.random.Generator) -> NDArray[np.float32]:
    """(H, W) in 0..1: an ellipse or a rounded rectangle with soft edges, inside the central square of the frame."""
    radii = rng.uniform(0.28, 0.42, 2) * scene.short_side
    room = scene.short_side / 2 - radii
    centre = np.array([scene.width, scene.height]) / 2 + rng.uniform(-1, 1, 2) * room
    exponent = rng.choice([2.0, 6.0])
    y, x = np.mgrid[0 : scene.height, 0 : scene.width]
    terms = np.abs((x - centre[0]) / radii[0]) ** exponent + np.abs((y - centre[1]) / radii[1]) ** exponent
    softness = 2.0 / radii.min()
    edge: NDArray[np.float64] = np.clip((1 - terms ** (1 / exponent)) / softness, 0, 1)
    return edge.astype(np.float32)
