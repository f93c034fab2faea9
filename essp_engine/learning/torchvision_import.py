"""Lets `import torchvision` succeed with a torch that does not match its compiled library. `import essp` installs it.

The torchvision wheels on PyPI are built for CUDA. With a CPU-only torch, which many get from another index, their
library does not load, the operators `torchvision::nms` and `torchvision::qnms` are missing, and the import fails with
"operator torchvision::nms does not exist", although networks and transforms call neither.

So torchvision is imported as usual first. Only if that fails with this message, both operators are declared without an
implementation, and the import is repeated: calling them still fails, everything else works. If the library loads,
nothing is declared, because declaring an operator twice ends the process.

This module loads neither torch nor torchvision.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.library import Library

_NAME = "torchvision"
_OPERATORS = ("nms", "qnms")
_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_declared: list[Library] = []
"""Keeps the declarations alive."""


def install() -> None:
    """Watch the import of torchvision in this process. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def declared() -> bool:
    """Whether torchvision was loaded without its compiled operators in this process."""
    return bool(_declared)


class _Finder:
    """Finds torchvision as Python does, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _NAME:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Runs torchvision's own code, a second time if its operators are missing."""

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except RuntimeError as error:
            if f"operator {_NAME}::" not in str(error) or "does not exist" not in str(error):
                raise
            _declare()
            # start again without leftovers of the first try
            for name in [name for name in sys.modules if name.startswith(f"{_NAME}.")]:
                del sys.modules[name]
                vars(module).pop(name.removeprefix(f"{_NAME}."), None)
            super().exec_module(module)


def _declare() -> None:
    from torch.library import Library

    library = Library(_NAME, "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        library.define(f"{operator}{_ARGUMENTS}")  # type: ignore[no-untyped-call]
    _declared.append(library)
