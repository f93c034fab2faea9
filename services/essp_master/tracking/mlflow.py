"""`ESSP_MLFLOW=http://mlflow:5000`: a run for each training, in an experiment that has the name of the job.

A training that goes on, also under another master, goes on in its run, which is found by its tags. Points that the run
has already are left out, so a training that resumes adds none twice. A token or a password is given as MLflow wants it
(`MLFLOW_TRACKING_TOKEN`, `MLFLOW_TRACKING_USERNAME`, ...).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from essp_common.distribution import require
from essp_common.job.status import JobState
from essp_master.tracking.tracking import Begin, Item, Point, RunName, Tracker

_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""Of one request."""
_LONGEST_VALUE = 500
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""Unless the environment says otherwise; what fails is tried again anyway."""
_STATES = {JobState.COMPLETED: "FINISHED", JobState.FAILED: "FAILED"}
_OUTPUT, _TRAINER = "essp.output", "essp.trainer"


class MLflow(Tracker):
    """A tracking server."""

    name = "mlflow"

    def __init__(self, uri: str) -> None:
        require("ESSP_MLFLOW", "mlflow")
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._uri = uri
        self._made: Any = None
        self._ids: dict[RunName, str] = {}
        self._last: dict[tuple[RunName, str], int] = {}
        """Clips of the last point that the server has."""

    def write(self, items: Sequence[Item]) -> None:
        from mlflow.entities import Metric

        waiting: dict[RunName, list[Any]] = {}
        for item in items:
            if isinstance(item, Point):
                if item.clips > self._last_of(item.run, item.tag):
                    metric = Metric(item.tag, item.value, round(1000 * item.time_s), item.clips)
                    waiting.setdefault(item.run, []).append(metric)
                    self._send(waiting, _MOST_METRICS)
            elif isinstance(item, Begin):
                self._send(waiting, 1)
                self._begin(item)
            else:
                self._send(waiting, 1)
                self._client.set_terminated(self._id(item.run), _STATES.get(item.state, "KILLED"))
        self._send(waiting, 1)

    def close(self) -> None:
        """Nothing is held."""

    @property
    def _client(self) -> Any:
        if self._made is None:
            from mlflow import MlflowClient  # takes a second

            self._made = MlflowClient(self._uri)
        return self._made

    def _send(self, waiting: dict[RunName, list[Any]], least: int) -> None:
        """Send the points of each run that has so many."""
        for run in [run for run, metrics in waiting.items() if len(metrics) >= least]:
            metrics = waiting.pop(run)
            self._client.log_batch(self._id(run), metrics=metrics)
            for metric in metrics:
                self._last[run, metric.key] = max(metric.step, self._last[run, metric.key])

    def _last_of(self, run: RunName, tag: str) -> int:
        if (run, tag) not in self._last:
            history = self._client.get_metric_history(self._id(run), tag)
            self._last[run, tag] = max((metric.step for metric in history), default=-1)
        return self._last[run, tag]

    def _id(self, run: RunName) -> str:
        """Of a run that has begun."""
        return self._ids[run]

    def _begin(self, begin: Begin) -> None:
        """Go on in the run that the server has of this training, or make one."""
        from mlflow.entities import Param

        run = begin.run
        self._last = {key: clips for key, clips in self._last.items() if key[0] != run}
        known = self._client.get_experiment_by_name(run.job)
        experiment = self._client.create_experiment(run.job) if known is None else known.experiment_id
        asked = f"tags.`{_OUTPUT}` = '{run.output}' and tags.`{_TRAINER}` = '{run.trainer}'"
        order = ["attributes.start_time DESC"]
        for found in () if begin.anew else self._client.search_runs([experiment], asked, max_results=1, order_by=order):
            self._ids[run] = str(found.info.run_id)
            self._client.update_run(self._ids[run], "RUNNING")
            return
        tags = {_OUTPUT: run.output, _TRAINER: run.trainer}
        made = str(self._client.create_run(experiment, tags=tags, run_name=run.trainer).info.run_id)
        facts = list(begin.facts.items())[:_MOST_PARAMS]
        self._client.log_batch(made, params=[Param(name, value[:_LONGEST_VALUE]) for name, value in facts])
        self._ids[run] = made
