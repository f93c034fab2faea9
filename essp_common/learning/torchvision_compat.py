"""torchvision beside a CPU-only torch. Import torchvision and torchmetrics through this module.

The wheels of torchvision on PyPI are built for CUDA. Beside a CPU-only torch their compiled library cannot be
loaded, so `torchvision::nms` and `torchvision::qnms` are never declared, and `import torchvision` stops with
"operator torchvision::nms does not exist" where it attaches shape rules to them. No model used here calls either.
Declaring the two schemas, without an implementation, lets the import go through; calling them still fails.

Nothing is declared when the compiled library loads: then it declares them itself, and twice is an error.
torchmetrics imports torchvision wherever it is installed, hence meets the same error.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _compiled_library_loads() -> bool:
    spec = find_spec("torchvision")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for suffix in EXTENSION_SUFFIXES:
            library = Path(folder) / f"_C{suffix}"
            if library.exists():
                try:
                    torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
                except OSError:
                    return False
                return True
    return False


def _declare_missing() -> torch.library.Library | None:
    if _compiled_library_loads():
        return None
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    library.define(f"nms{_SCHEMA}")  # type: ignore[no-untyped-call]
    library.define(f"qnms{_SCHEMA}")  # type: ignore[no-untyped-call]
    return library


# The declarations live as long as this object.
_LIBRARY = _declare_missing()

import torchmetrics  # noqa: E402
import torchvision  # noqa: E402

__all__ = ["torchmetrics", "torchvision"]
