"""Pictures with the spectrum of photographs: `textures` of few frequencies look alike to what hashes pictures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def photograph(width: int, height: int, seed: int) -> NDArray[np.uint8]:
    """(height, width, 3) uint8: random structure of all sizes, the larger the stronger; repeats at its edges."""
    rng = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(height)[:, None] * height, np.fft.fftfreq(width)[None, :] * width
    falling = 1 / np.maximum(1.0, np.hypot(rows, columns)) ** 1.5
    white = np.fft.fft2(rng.normal(size=(3, height, width)))
    shown = np.fft.ifft2(white * falling).real
    shown = shown[:1] + 0.3 * shown  # colours go together
    shown = 128 + 55 * (shown - shown.mean(axis=(1, 2), keepdims=True)) / shown.std()
    found: NDArray[np.uint8] = shown.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
    return found
