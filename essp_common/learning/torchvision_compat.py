"""Makes torchvision work with a CPU-only torch, and load quickly. Import torchvision through this module.

The wheels of torchvision on PyPI are built for CUDA. Their compiled library does not load with a CPU-only torch, so the
operators `torchvision::nms` and `torchvision::qnms` are not declared, and `import torchvision` raises "operator
torchvision::nms does not exist". No model of ESSP calls either operator. This module declares both without an
implementation: the import succeeds, and a call still fails.

If the compiled library loads, it declares the operators itself, and this module does not: declaring them twice is an
error.

`torchvision.ops.roi_align` imports a function of torch's compiler, which takes longer to load than all of torchvision
and is needed only when that operator is called, by no model of ESSP. While torchvision is imported, a stand-in lies in
its place, and the function loads the compiler when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_COMPILER, _ASKED = "torch._dynamo", "torch._dynamo.utils"
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


class _StandIn(ModuleType):
    """Of a module of the compiler. What it has not is that of the module itself, which is loaded then."""

    def __getattr__(self, name: str) -> Any:
        # Any module may be asked for its `__file__`; only the import of another part of the compiler needs `__path__`.
        if name.startswith("__") and (self.__name__, name) != (_COMPILER, "__path__"):
            raise AttributeError(name)
        _remove_stand_ins()
        return getattr(import_module(self.__name__), name)


def _is_compile_supported(device_type: Any) -> Any:
    return import_module(_ASKED).is_compile_supported(device_type)


def _remove_stand_ins() -> None:
    for name in (_COMPILER, _ASKED):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


@contextmanager
def _compiler_left_out() -> Iterator[None]:
    if _COMPILER not in sys.modules:
        asked = sys.modules[_ASKED] = _StandIn(_ASKED)
        asked.__dict__["is_compile_supported"] = _is_compile_supported
        sys.modules[_COMPILER] = _StandIn(_COMPILER)
    try:
        yield
    finally:
        _remove_stand_ins()


# The declarations live as long as this object.
_LIBRARY = _declare_missing()

with _compiler_left_out():
    import torchvision

__all__ = ["torchvision"]
