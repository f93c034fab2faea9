"""Reports all problems of a job at once, so that users need not correct one field per attempt."""

from __future__ import annotations

from collections.abc import Iterable

from essp_common.errors import ConfigError
from essp_common.validation import MOST_PROBLEMS


def refuse(problems: Iterable[ConfigError]) -> None:
    """Raise all problems as one `ConfigError`, if there are any.

    A sweep may have hundreds of trainers with the same problem, so only the first `MOST_PROBLEMS` are listed.
    """
    errors = list(problems)
    if len(errors) > MOST_PROBLEMS:
        errors[MOST_PROBLEMS:] = [ConfigError(f"and {len(errors) - MOST_PROBLEMS} more problems")]
    if errors:
        raise ConfigError.together(errors)
