"""How torchvision is imported: by what needs it alone, and without torch's compiler, until somebody asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.lane("promises")
def test_torchvision_is_loaded_for_networks_and_the_compiler_when_it_is_used() -> None:
    code = """
import sys
import torch
import essp
assert essp.Loader and "torchvision" not in sys.modules
from essp_engine.learning.torchvision_compat import torchvision
torchvision.models.resnet18()
assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
ask = torchvision.ops.roi_align.__globals__["is_compile_supported"]
answer = ask("cpu")
assert sys.modules["torch._dynamo"] is torch._dynamo and torch._dynamo.__file__
from torch._dynamo.utils import is_compile_supported
assert answer == is_compile_supported("cpu") and not ask("meta")
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.lane("promises")
def test_whoever_asks_for_more_of_it_meanwhile_gets_the_compiler() -> None:
    code = """
import sys
import torch
from essp_engine.learning import torchvision_compat as compat
with compat._compiler_left_out():
    import torch._dynamo as standing_in
    assert type(standing_in).__name__ == "_StandIn"
    import torch._dynamo.config
    from torch._dynamo.utils import counters
    assert torch._dynamo.__file__
    assert standing_in.reset is torch._dynamo.reset
"""
    subprocess.run([sys.executable, "-c", code], check=True)
