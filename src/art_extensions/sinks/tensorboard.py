"""Rows as event files of TensorBoard, under the model's folder: `tensorboard --logdir .art` shows all models.

Written by TensorBoard's own `EventFileWriter`: neither torch nor TensorFlow is needed. A later process adds
a file to the run's folder, which TensorBoard reads as one run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from art.tracking.folders import ModelPaths
from art.tracking.sinks.sink import ReportedRun, TableRow, flat, safe_name
from art.wire.quoting import writable

_UNSAFE = re.compile(r"[^\w.\- ]")


def folder_of(run: ReportedRun) -> Path:
    """Returns the folder of a run's event files: `tensorboard/` of the model, or one in it for another id."""
    folder = ModelPaths(run.folder).tensorboard
    name = run.run_id or run.name
    return folder if name == run.folder.name else folder / safe_name(name, _UNSAFE, 100)


class TensorBoardSink:
    """The event files of one run."""

    is_local = True

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        """Begins a new event file in the run's folder."""
        self._name = run.name
        self._writer = EventFileWriter(str(folder_of(run)))
        self.config(config)

    def config(self, values: Mapping[str, Any]) -> None:
        """Reports the config as hyperparameters and, for reading, as text."""
        if values:
            named = flat(values)
            lines = "\n".join(f"    {name} = {value}" for name, value in named.items())
            self._write(0, hparams_pb(named, trial_id=writable(self._name)), text_pb("config", lines))

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Reports scalars; TensorBoard keeps them as 32-bit numbers."""
        values = [Summary.Value(tag=writable(name), simple_value=value) for name, value in row.items()]
        self._write(step, Summary(value=values))

    def table(self, name: str, step: int, rows: Sequence[TableRow]) -> None:
        """Reports conversations as text, indented: what a model wrote is not read as Markdown."""
        texts = [
            f"group {row.group}, rollout {row.place}, reward {row.reward}\n\n"
            + "\n".join(f"    {line}" for line in row.text.splitlines())
            for row in rows
        ]
        self._write(step, text_pb(writable(name), texts))

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()

    def _write(self, step: int, *summaries: Summary) -> None:
        for summary in summaries:
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()
