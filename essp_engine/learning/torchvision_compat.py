"""Loads torchvision quickly, with any torch (`torchvision_import.py`). ESSP imports torchvision through this module.

`torchvision.ops.roi_align` imports a function of torch's compiler, which takes longer to load than all of torchvision,
and is needed only when that operator is called, which no model of ESSP does. While torchvision is imported, a stand-in
replaces the compiler, and the function loads the compiler when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from essp_engine.learning import torchvision_import

_COMPILER, _ASKED = "torch._dynamo", "torch._dynamo.utils"


class _StandIn(ModuleType):
    """A stand-in for a module of the compiler. An attribute that it lacks loads the real module and is taken from
    there."""

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


torchvision_import.install()
with _compiler_left_out():
    import torchvision

__all__ = ["torchvision"]
