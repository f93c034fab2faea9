"""How far apart rounding may put two runs of a model that add the same numbers in another order.

One rank or three, one clip or four at once, AVX2 or AVX-512: a sum is taken in another order, and its last digits
differ. Tests compare such runs in double precision (the fixture `double_precision`).

In single precision there is no small bound. Where a number lies so close to zero that rounding decides its sign, ReLU
passes the gradient on in one run and not in the other. One such number, of the 387,072 that a training here passes
through ReLU, moves its weights by 1e-3; errors in the last places of each convolution caused one in a sixth of the
training runs tried. In double precision the numbers are off by 1e-12 at most, and the nearest is 4e-6 from zero.

`TOLERANCE` is a bound for any order of addition, hence for any CPU. It is the product of

- `ADDITIONS * UNIT`: the most that one sum can be off, relative to what is added (Higham, "Accuracy and Stability of
  Numerical Algorithms", 2002, section 4.2);
- `SUMS`: how many such sums follow one another;
- `AMPLIFICATION`: how much a relative change of all weights has grown when the training ends, which
  `test_rounding_is_amplified_less_than_assumed` measures.

What ranks really do goes wrong in the first digits: gradients weighted by the wrong number of clips, statistics or
dropout of the share instead of the batch put weights 1e-3 to 1 apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

UNIT = 2.0**-53
"""The largest relative rounding error of one addition in double precision."""
ADDITIONS = 4 * 2 * 16 * 16
"""Of the longest sum in a step of the small network: over 4 clips of 2 frames in the 16 x 16 pixels of its first
layer, for the statistics of the layer and the gradient of its weights. Scoring adds 1,152 products at most."""
SUMS = 8 * 5 * 4
"""Of 8 updates through 5 layers; in each a convolution and its statistics, forward and backward."""
AMPLIFICATION = 100
TOLERANCE = SUMS * ADDITIONS * AMPLIFICATION * UNIT
"""3.6e-9, relative and absolute. Most is never reached: measured were 1e-14."""
STORED = 2.0**-23
"""Of scores, which are stored in single precision: two that round differently are neighbours."""


@contextmanager
def in_double_precision() -> Iterator[None]:
    """Models made meanwhile, by any thread of this process, have float64 parameters and compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference of two states of a model, relative to `1 + |expected|`. Integers have to be equal."""
    assert found.keys() == expected.keys()
    largest = 0.0
    for name, tensor in expected.items():
        if tensor.is_floating_point():
            own = (found[name] - tensor).abs() / (1 + tensor.abs())
            assert own.isfinite().all(), name
            largest = max(largest, own.max().item())
        else:
            np.testing.assert_array_equal(found[name], tensor, err_msg=name)
    return largest
