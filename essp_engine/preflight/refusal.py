"""Refuses a job with all that is wrong with it at once, so that nobody mends one field a run."""

from __future__ import annotations

from collections.abc import Iterable

from essp_common.errors import ConfigError
from essp_common.validation import MOST_PROBLEMS


def refuse(problems: Iterable[ConfigError]) -> None:
    """Raises these as one `ConfigError`, or nothing if there are none.

    A sweep may have hundreds of trainers with the same problem: as many are named as people read, and the rest counted.
    """
    errors = list(problems)
    if len(errors) > MOST_PROBLEMS:
        errors[MOST_PROBLEMS:] = [ConfigError(f"and {len(errors) - MOST_PROBLEMS} more problems")]
    if errors:
        raise ConfigError.together(errors)
