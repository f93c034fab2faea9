"""What a rank ends with, by either entry point: by it the master and the supervisor know whether it is at fault."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest

from essp_common.errors import ConfigError, DeviceLost, EsspError, PermanentError, Unavailable
from essp_trainer import main, process
from essp_trainer.distributed.ranks import RankLost
from essp_trainer.distributed.supervisor import EXIT_RANK_LOST
from tests.harness.command_line import main_of

ARGUMENTS = ("--job", "tiny", "--trainer", "one")


@pytest.mark.parametrize(
    ("error", "command", "module"),
    [
        (RankLost("rank 0 of 2 lost another rank"), EXIT_RANK_LOST, EXIT_RANK_LOST),
        (DeviceLost("the GPU failed"), EXIT_RANK_LOST, EXIT_RANK_LOST),
        (Unavailable("S3 does not answer"), 6, EXIT_RANK_LOST),
        (ConfigError("is wrong", field="ESSP_BUS"), 2, 2),
        (PermanentError("the loss is not finite"), 1, 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, EsspError) else "",
)
def test_the_code_says_who_is_at_fault(
    error: EsspError, command: int, module: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """`command`: of `essp trainer`, which the chart's pods run; `module`: of what torchrun and the supervisor run."""
    with patch.object(process, "_run_rank", side_effect=error):
        assert main_of("trainer", *ARGUMENTS) == command
        with patch.object(sys, "argv", ["essp trainer", *ARGUMENTS]), pytest.raises(SystemExit) as left:
            main.as_process()
    assert left.value.code == module
    assert capsys.readouterr().err.count(str(error)) == 2
