"""Clips whose motion is known exactly: textures are functions of the place, evaluated where the camera looks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_engine.features import registry
from essp_engine.features.port import Extractor

Clip = NDArray[np.uint8]
Matrix = NDArray[np.float64]

STILL: Matrix = np.eye(2)


def ready(name: str, **params: Any) -> Extractor:
    """An extractor that has been set up."""
    extractor = registry.create(name, params)
    extractor.setup()
    return extractor


def rotation(degrees: float) -> Matrix:
    """Turns clockwise as one sees it: y points down."""
    angle = np.radians(degrees)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def places(height: int, width: int) -> NDArray[np.float64]:
    """x, y of each pixel, from the centre of the picture: `(H, W, 2)`."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x - (width - 1) / 2, y - (height - 1) / 2], axis=-1)


def texture(place: NDArray[np.float64], seed: int) -> NDArray[np.uint8]:
    """Sums of waves, the longer the stronger as in photographs, at any places `(..., 2)`: `(..., 3)`."""
    rng = np.random.default_rng(seed)
    lengths, directions = np.geomspace(8, 90, 32), rng.uniform(0, 2 * np.pi, 32)
    waves = 2 * np.pi / lengths * np.stack([np.cos(directions), np.sin(directions)])
    strengths = 2.5 * lengths**0.5 * rng.uniform(0.7, 1.3, (3, 32))
    values = 128 + np.sin(place @ waves + rng.uniform(0, 2 * np.pi, 32)) @ strengths.T
    picture: NDArray[np.uint8] = np.clip(values, 0, 255).astype(np.uint8)
    return picture


def moving(step: Matrix, shift: tuple[float, float], frames: int, size: tuple[int, int] = (96, 128)) -> Clip:
    """A texture: what is at p in a frame is at `step @ p + shift` in the next."""
    place, back = places(*size), np.linalg.inv(step)
    clip = np.empty((frames, *size, 3), np.uint8)
    for frame in clip:
        frame[...] = texture(place, seed=7)
        place = (place - np.array(shift)) @ back.T
    return clip


def flow_of(step: Matrix, shift: tuple[float, float], size: tuple[int, int] = (96, 128)) -> NDArray[np.float64]:
    """The flow of `moving`, `(H, W, 2)`."""
    flow: NDArray[np.float64] = places(*size) @ (step - np.eye(2)).T + np.array(shift)
    return flow


def with_object(clip: Clip, start: tuple[int, int], velocity: tuple[int, int], side: int) -> Clip:
    """The clip with a textured square before it, whose upper left corner is at `start`, x and y, and moves on."""
    square = texture(places(side, side), seed=11)
    result = clip.copy()
    for number, frame in enumerate(result):
        x, y = start[0] + number * velocity[0], start[1] + number * velocity[1]
        frame[y : y + side, x : x + side] = square
    return result
