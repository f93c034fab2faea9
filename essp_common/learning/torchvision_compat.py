"""Makes torchvision work with a CPU-only torch. Import torchvision through this module.

The wheels of torchvision on PyPI are built for CUDA. Their compiled library does not load with a CPU-only torch, so the
operators `torchvision::nms` and `torchvision::qnms` are not declared, and `import torchvision` raises "operator
torchvision::nms does not exist". No model of ESSP calls either operator. This module declares both without an
implementation: the import succeeds, and a call still fails.

If the compiled library loads, it declares the operators itself, and this module does not: declaring them twice is an
error.
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

import torchvision  # noqa: E402

__all__ = ["torchvision"]
