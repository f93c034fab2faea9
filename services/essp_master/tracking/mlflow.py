"""`ESSP_MLFLOW=http://mlflow:5000`: a run for each training, in an experiment named after the job.

A training that continues, also under another master, continues in its run, which is found by its tags. Points that the
run already has are left out, so a resuming training adds none twice. A run that the server refuses, such as one that
was deleted there, is logged and skipped until it begins again; the others continue. Tokens and passwords are given as
for MLflow (`MLFLOW_TRACKING_TOKEN`, `MLFLOW_TRACKING_USERNAME`, ...).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from essp_common.distribution import require
from essp_common.job.status import JobState
from essp_master.tracking.tracking import Begin, End, Item, Point, RunName, TrackingServer

_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""Limits of one request."""
_LONGEST_VALUE = 500
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # failed requests are retried here anyway
    "MLFLOW_DISABLE_TELEMETRY": "true",  # do not report usage to its makers
}
"""Unless the environment sets them."""
_STATES = {JobState.COMPLETED: "FINISHED", JobState.FAILED: "FAILED"}
_MAY_END = (401, 403, 408, 429)
"""Refusals that are not caused by the request, in addition to the server's own failures (5xx)."""
_OUTPUT, _TRAINER = "essp.output", "essp.trainer"


class MLflow(TrackingServer):
    """A tracking server."""

    name = "mlflow"

    def __init__(self, uri: str) -> None:
        super().__init__()
        require("ESSP_MLFLOW", "mlflow")
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        self._uri = uri
        self._made: Any = None
        self._ids: dict[RunName, str] = {}

    def write(self, items: Sequence[Item]) -> None:
        waiting: dict[RunName, list[Any]] = {}
        for item in self._left(items):
            if isinstance(item, Point):
                self._offer(item.run, partial(self._add, item, waiting))
                self._send(waiting, _MOST_METRICS)
            elif isinstance(item, Begin):
                self._send(waiting, 1)
                self._offer_begin(item)
            else:
                self._send(waiting, 1)
                self._offer(item.run, partial(self._end, item))
        self._send(waiting, 1)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    @property
    def _client(self) -> Any:
        if self._made is None:
            from mlflow import MlflowClient  # takes a second to import

            self._made = MlflowClient(self._uri)
        return self._made

    def _left(self, items: Sequence[Item]) -> list[Item]:
        """Drop items before a beginning that was already accepted, or refused, when these items were last offered."""
        begun = {item.run: at for at, item in enumerate(items) if self._begun.get(item.run) is item}
        return [item for at, item in enumerate(items) if at > begun.get(item.run, -1)]

    def _send(self, waiting: dict[RunName, list[Any]], least: int) -> None:
        """Send the points of each run that has at least this many."""
        for run in [run for run, metrics in waiting.items() if len(metrics) >= least]:
            self._offer(run, partial(self._log, run, waiting.pop(run)))

    def _add(self, point: Point, waiting: dict[RunName, list[Any]]) -> None:
        """Queue a point, unless the server already has it."""
        from mlflow.entities import Metric

        if point.clips > self._last_of(point.run, point.tag):
            metric = Metric(point.tag, point.value, round(1000 * point.time_s), point.clips)
            waiting.setdefault(point.run, []).append(metric)

    def _log(self, run: RunName, metrics: Sequence[Any]) -> None:
        self._client.log_batch(self._ids[run], metrics=metrics)
        for metric in metrics:
            self._last[run, metric.key] = max(metric.step, self._last[run, metric.key])

    def _end(self, end: End) -> None:
        self._client.set_terminated(self._ids[end.run], _STATES.get(end.state, "KILLED"))

    def _last_of(self, run: RunName, tag: str) -> int:
        if (run, tag) not in self._last:
            history = self._client.get_metric_history(self._ids[run], tag)
            self._last[run, tag] = max((metric.step for metric in history), default=-1)
        return self._last[run, tag]

    def _begin(self, begin: Begin) -> None:
        from mlflow.entities import Param

        run = begin.run
        known = self._client.get_experiment_by_name(run.job)
        experiment = self._client.create_experiment(run.job) if known is None else known.experiment_id
        quote = '"' if "'" in run.output else "'"
        asked = f"tags.`{_OUTPUT}` = {quote}{run.output}{quote} and tags.`{_TRAINER}` = '{run.trainer}'"
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

    @staticmethod
    def _may_end(error: Exception) -> bool:
        from mlflow.exceptions import MlflowException

        if isinstance(error, MlflowException):
            status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
            return status >= 500 or status in _MAY_END
        return isinstance(error, OSError)
