"""Videos to decode, and the child process that does it: those of the tests of decoding."""

from tests.unit.essp_engine.decoding.conftest import folder, options, sandbox

__all__ = ["folder", "options", "sandbox"]
