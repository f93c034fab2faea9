"""Embeddings by a loop of one's own: `essp.decode`, and the layers of a network, and nothing else."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

import essp
from essp_common.catalog.rows import VideoRow
from essp_engine.learning.inputs import IMAGENET
from essp_engine.learning.networks import Small

CROP, SIDE = 32, 40
"""Side of what the network sees, and of the frames that this is the middle of."""


def embeddings(row: VideoRow, network: Small, frames: int) -> NDArray[np.float32]:
    """Those of the clips of so many frames that follow one another in a video: `(T, D)`."""
    body, edge = torch.nn.Sequential(*list(network)[:-1]), (SIDE - CROP) // 2
    vectors = []
    for start in range(0, row.frame_count - frames + 1, frames):
        clip = essp.decode(row, start=start, frames=frames, size=(SIDE, SIDE), interpolation="bilinear")
        seen = torch.from_numpy(clip[:, edge : edge + CROP, edge : edge + CROP].copy()).float()
        normal = (seen - torch.tensor(IMAGENET.mean)) / torch.tensor(IMAGENET.std)
        with torch.inference_mode():
            vectors.append(body(normal.permute(0, 3, 1, 2)).mean(dim=0).numpy())
    return np.stack(vectors)
