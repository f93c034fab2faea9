"""RGB of frames that reached the device as YUV 4:2:0: the conversion of `essp_engine.video.colour`, for torch.

It uses the same integer arithmetic, so the pictures are identical on a CPU, on a GPU and in NumPy. The clips of a batch
may come from videos with different colour spaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from essp_engine.video.colour import Colour, coefficients, height_of

_MOST_PIXELS = 2**22
"""Maximum pixels converted at once: a pixel needs about twenty bytes during conversion."""


def pictures(frames: Tensor, colours: Sequence[Colour]) -> Tensor:
    """`(B, T, 3H/2, W)` YUV 4:2:0 -> `(B, T, H, W, 3)` RGB; `(B, T, H, W, 1)` luma -> grey levels. uint8.

    `colours`: of each clip of the batch. The result is on the device of `frames`.
    """
    if len(colours) != len(frames):
        raise ValueError(f"{len(colours)} colours for {len(frames)} clips")
    count, times, rows, width = frames.shape[:4]
    shape = (
        (count, times, rows, width, 1)
        if frames.ndim == 5
        else (count, times, height_of((times, rows, width)), width, 3)
    )
    made = torch.empty(shape, dtype=torch.uint8, device=frames.device)
    for begin, stop in _alike(colours, max(1, _MOST_PIXELS // frames[0].numel())):
        made[begin:stop] = _of_one_colour(frames[begin:stop], colours[begin])
    return made


def _alike(colours: Sequence[Colour], most: int) -> Iterator[tuple[int, int]]:
    """Runs of clips with the same colours, of at most `most` clips, as (first, after the last)."""
    begin = 0
    for _, run in groupby(colours):
        stop = begin + len(list(run))
        for first in range(begin, stop, most):
            yield first, min(first + most, stop)
        begin = stop


def _of_one_colour(frames: Tensor, colour: Colour) -> Tensor:
    numbers = coefficients(colour)
    planes = frames.reshape(-1, *frames.shape[2:])
    height = planes.shape[1] if planes.ndim == 4 else height_of(tuple(planes.shape))
    luma = planes[:, :height].to(torch.int16)
    light = luma * numbers.luma
    if numbers.quarter:
        light += luma >> 2
    if frames.ndim == 5:
        return _levels(light + numbers.offset).reshape(frames.shape)
    width = planes.shape[2]
    chroma = planes[:, height:].reshape(-1, 2, height // 2, width // 2).to(torch.int32) - 128
    u, v = chroma[:, 0], chroma[:, 1]
    light = light.reshape(-1, height // 2, 2, width // 2, 2)
    channels = []
    for by_u, by_v in numbers.chroma:
        term = (((by_u * u + by_v * v + 1024) >> 11) + numbers.offset).to(torch.int16)
        channels.append(_levels(light + term[:, :, None, :, None]))
    return torch.stack(channels, dim=-1).reshape(*frames.shape[:2], height, width, 3)


def _levels(light: Tensor) -> Tensor:
    return (light >> 5).clamp_(0, 255).to(torch.uint8)
