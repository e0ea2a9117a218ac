"""Rows as runs of MLflow, at `MLFLOW_TRACKING_URI` (a server, or `sqlite:///mlflow.db`).

An experiment is a project, a run a model; a tag of the run says which model, so that the next process goes
on with it. Written by `MlflowClient`, which keeps no state of the process: two models report side by side.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from art.tracking.run_facts import FACTS
from art.tracking.sinks.sink import ReportedRun, TableRow, flat, safe_name
from art.wire.quoting import writable
from art_extensions.sinks.tags import run_tags

_UNSAFE = re.compile(r"[^\w.\- /]")
_LONGEST_NAME, _LONGEST_VALUE = 200, 500
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # of one request
RUN_TAG = "art.run"
FACT_TAGS = ("base_model", "version")


class MlflowSink:
    """One run of an experiment."""

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        """Finds the run of an earlier process, or makes it."""
        self._client = MlflowClient()
        experiment = self._experiment(writable(f"{run.entity}/{run.project}" if run.entity else run.project))
        tag = f"tags.`{RUN_TAG}` = '{run.digest}'"
        if found := self._client.search_runs([experiment], tag, max_results=1):
            self._id, known = found[0].info.run_id, found[0].data.params
            self._client.update_run(self._id, status="RUNNING")
            for name, value in _tags_of(config).items():
                self._client.set_tag(self._id, name, value, synchronous=True)
        else:
            tags, known = {RUN_TAG: run.digest, "art.project": writable(run.project)}, {}
            tags["art.model"] = writable(run.folder.name)
            facts = config.get(FACTS) or {}
            tags |= {f"art.{name}": writable(str(facts[name])) for name in FACT_TAGS if facts.get(name)}
            tags |= _tags_of(config)
            self._id = self._client.create_run(experiment, run_name=writable(run.name), tags=tags).info.run_id
        self._known = set(known)
        self.config(config)

    def config(self, values: Mapping[str, Any]) -> None:
        """Adds parameters. MLflow cannot change one that it has: the first value stays."""
        named = {safe_name(name, _UNSAFE, _LONGEST_NAME): value for name, value in flat(values).items()}
        params = [
            Param(name, str(value)[:_LONGEST_VALUE])
            for name, value in named.items()
            if name not in self._known
        ]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._id, params=params[first : first + _MOST_PARAMS], synchronous=True)
        self._known |= named.keys()

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Reports metrics under their names; a name with other characters than MLflow's gets a digest."""
        now = int(time.time() * 1000)
        metrics = [
            Metric(safe_name(name, _UNSAFE, _LONGEST_NAME), value, now, step) for name, value in row.items()
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            part = metrics[first : first + _MOST_METRICS]
            self._client.log_batch(self._id, metrics=part, synchronous=True)

    def table(self, name: str, step: int, rows: Sequence[TableRow]) -> None:
        """Stores conversations as an artifact of JSON lines."""
        text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
        where = f"{safe_name(name, _UNSAFE, _LONGEST_NAME)}/{step:04d}.jsonl"
        self._client.log_text(self._id, text, where)

    def checkpoint(self, step: int, files: Sequence[Path]) -> None:
        """Stores the adapter of a step as artifacts below `checkpoints/`."""
        for file in files:
            self._client.log_artifact(self._id, str(file), f"checkpoints/{step:04d}")

    def close(self) -> None:
        """Marks the run as finished; the next process opens it again."""
        self._client.set_terminated(self._id)

    def _experiment(self, name: str) -> str:
        if (found := self._client.get_experiment_by_name(name)) is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            found = self._client.get_experiment_by_name(name)  # another process was first
            if found is None:
                raise
            return str(found.experiment_id)


def _tags_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the run's tags as MLflow has tags, a name and a value."""
    return {safe_name(f"art.tag.{tag}", _UNSAFE, _LONGEST_NAME): "true" for tag in run_tags(config)}
