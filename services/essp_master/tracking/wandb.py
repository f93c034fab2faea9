"""`ESSP_WANDB=project` (or `entity/project`): a run on Weights & Biases for each training, grouped by job.

A training that continues, also under another master, continues in its run, which is found by its output and trainer;
without a connection (`WANDB_MODE=offline`) it gets another run of the same group. Points that the run already has are
left out. A run that the server refuses is logged and skipped until it begins again. Key, server and folder are given as
for W&B (`WANDB_API_KEY`, `WANDB_BASE_URL`, `WANDB_DIR`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from essp_common.distribution import require
from essp_common.errors import ConfigError
from essp_common.job.status import JobState
from essp_master.tracking.tracking import Begin, End, Item, Point, RunName, TrackingServer

_KEY = "essp_training"
"""In the configuration of a run: which training it is of."""
_CLIPS = "clips"
"""The axis of all charts."""
_WAIT_S = 15
_OFFLINE = ("offline", "dryrun", "disabled")
_PARTS = 2


class WandB(TrackingServer):
    """Runs of one project."""

    name = "wandb"

    def __init__(self, project: str) -> None:
        """Raises `ConfigError` for what is not a project."""
        super().__init__()
        require("ESSP_WANDB", "wandb")
        parts = project.split("/")
        if len(parts) > _PARTS or not all(part.strip() for part in parts):
            raise ConfigError(
                f"{project!r} is not a project; write its name, as in videos, or with its owner, as in team/videos",
                field="ESSP_WANDB",
            )
        self._entity: str | None = parts[0] if len(parts) > 1 else None
        self._project = parts[-1]
        self._runs: dict[RunName, Any] = {}

    def write(self, items: Sequence[Item]) -> None:
        waiting: dict[tuple[RunName, int], dict[str, float]] = {}
        for item in items:
            if isinstance(item, Point):
                if item.run in self._runs and item.clips > self._last.get((item.run, item.tag), -1):
                    waiting.setdefault((item.run, item.clips), {})[item.tag] = item.value
                continue
            self._send(waiting)
            if isinstance(item, End):
                self._offer(item.run, partial(self._end, item))
            elif self._begun.get(item.run) is not item:
                self._offer_begin(item)
        self._send(waiting)

    def close(self) -> None:
        """Leave the runs open on the server: a master that takes over continues in them."""
        for run in self._runs.values():
            run.finish(quiet=True)
        self._runs.clear()

    def _send(self, waiting: dict[tuple[RunName, int], dict[str, float]]) -> None:
        for (run, clips), values in waiting.items():
            self._offer(run, partial(self._log, run, clips, values))
        waiting.clear()

    def _log(self, run: RunName, clips: int, values: dict[str, float]) -> None:
        self._runs[run].log({_CLIPS: clips, **values})
        self._last |= {(run, tag): clips for tag in values}

    def _refuse(self, run: RunName) -> None:
        super()._refuse(run)
        self._runs.pop(run, None)

    def _begin(self, begin: Begin) -> None:
        import wandb

        run = begin.run
        if (before := self._runs.pop(run, None)) is not None:
            before.finish(quiet=True)
        key = hashlib.sha256(f"{run.output}\n{run.trainer}".encode()).hexdigest()[:16]
        known = None if begin.anew else self._found(key)
        opened = wandb.init(
            entity=self._entity,
            project=self._project,
            group=run.job,
            name=f"{run.job}/{run.trainer}",
            id=known or f"{key}-{secrets.token_hex(3)}",
            resume="allow",
            reinit="create_new",  # trainers of a job have runs at the same time
            config={_KEY: key, "job": run.job, "output": run.output, "trainer_name": run.trainer, **begin.facts},
            allow_val_change=True,
            settings=wandb.Settings(
                console="off",  # the master's log is not the trainer's
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,  # they would be of this machine, not of the trainer's
                init_timeout=_WAIT_S,
            ),
        )
        opened.define_metric(_CLIPS, hidden=True)
        opened.define_metric("*", step_metric=_CLIPS)
        if known:
            reached = opened.summary.get(_CLIPS)
            tags = list(dict(opened.summary))
            if isinstance(reached, int | float):
                self._last |= {(run, tag): int(reached) for tag in tags}
        self._runs[run] = opened

    def _found(self, key: str) -> str | None:
        """The id of the newest run of a training; None if there is none, or no connection."""
        import wandb

        if os.environ.get("WANDB_MODE", "").lower() in _OFFLINE:
            return None
        path = self._project if self._entity is None else f"{self._entity}/{self._project}"
        asked = {f"config.{_KEY}.value": key}
        try:
            found = wandb.Api(timeout=_WAIT_S).runs(path, filters=asked, order="-created_at", per_page=1)
            return next((str(run.id) for run in found), None)
        except ValueError:  # there is no such project yet
            return None

    def _end(self, end: End) -> None:
        if (run := self._runs.pop(end.run, None)) is not None:
            run.finish(exit_code=1 if end.state is JobState.FAILED else 0, quiet=True)

    @staticmethod
    def _may_end(error: Exception) -> bool:
        from wandb.errors import CommError

        return isinstance(error, CommError | OSError)
