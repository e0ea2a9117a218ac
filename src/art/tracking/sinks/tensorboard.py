"""Rows of the log as TensorBoard event files, in `tensorboard/` of the model's folder. It needs no torch.

    tensorboard --logdir .art

Each process writes a file of its own, and TensorBoard shows them as one run. Rollouts are texts. They are
written as code blocks, since their content is a model's and must not be read as Markdown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from art.tracking.folders import ModelPaths
from art.trajectories import Trajectory, is_choice
from art.types import Unscored

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.trajectories import TrajectoryGroup

SHOWN_GROUPS, SHOWN_ROLLOUTS = 2, 2
"""Of a step's groups, and of the rollouts of each, that are shown as texts."""
LONGEST_TEXT = 20_000
_TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


class TensorBoardSink:
    """Writes the scalars and texts of one model."""

    def __init__(self, model: AnyModel) -> None:
        folder = ModelPaths(model._folder()).tensorboard
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Writes each number as a scalar under its own name."""
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        self._write(
            [
                Summary.Value(tag=name, simple_value=value)
                for name, value in numbers.items()
                if name not in ("step", "training_step")
            ],
            step,
        )

    def log_rollouts(self, groups: Sequence[TrajectoryGroup], split: str, step: int) -> None:
        """Writes the first rollouts of the first groups as texts."""
        self._write(
            [
                Summary.Value(
                    tag=f"{split}/rollout {number}.{place}",
                    tensor=make_tensor_proto([code_block(rollout_text(trajectory))]),
                    metadata=_TEXT,
                )
                for number, group in enumerate(groups[:SHOWN_GROUPS])
                for place, trajectory in enumerate(group.trajectories[:SHOWN_ROLLOUTS])
            ],
            step,
        )

    def close(self) -> None:
        self._writer.close()

    def _write(self, values: list[Summary.Value], step: int) -> None:
        if values:
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            self._writer.flush()


def rollout_text(trajectory: Trajectory) -> str:
    """Returns the conversation as plain text, a line for who speaks; the end of a long one is left out."""
    reward = trajectory.reward
    lines = [f"reward: {'unscored' if isinstance(reward, Unscored) else reward}"]
    items: list[Any] = list(trajectory.messages_and_choices)
    for item in items:
        message = item.message.model_dump(exclude_none=True) if is_choice(item) else dict(item)
        lines.append(f"\n{message.get('role')}:\n{message.get('content') or ''}")
        lines += [f"call: {call['function']}" for call in message.get("tool_calls") or ()]
    text = "\n".join(lines)
    return (
        text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ... ({len(text) - LONGEST_TEXT} more)"
    )


def code_block(text: str) -> str:
    """Returns Markdown that shows a text as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())
