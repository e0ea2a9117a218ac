"""`art show`: logged trajectories in the terminal: groups of a step, rollouts of a group, or one rollout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from art.cli.model_verbs import printable
from art.errors import ConfigurationError
from art.tracking.folders import LOG_SUFFIXES, NamedModel, find_model
from art.trajectories import History, Trajectory, TrajectoryGroup
from art.types import SHOW, Unscored, is_choice, known_reward, text_of_content

SPLITS_SHOWN_FIRST = ("train", "val")
METRIC_COLUMNS = 6
PER_REPLY = {"completion_tokens": "completion_tokens a reply"}
"""A mean over the replies of a rollout is told as one."""
ROLE_STYLES = {"assistant": "green", "user": "blue", "tool": "magenta", "system": "dim"}


def show_log(
    target: str,
    *,
    group: int | None,
    rollout: int | None,
    split: str | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Prints what is asked for. Raises ConfigurationError, TrajectoryLogError."""
    shown = ShownLog.read(target, split, data_dir)
    if as_json:
        typer.echo(json.dumps(shown.plain(group, rollout), indent=1, default=str))
        return
    console = Console()
    for part in shown.parts(group, rollout):
        console.print(part, highlight=False)


class ShownLog:
    """The groups of one file, or of one step of a model in one split."""

    def __init__(self, title: str, groups: Sequence[TrajectoryGroup]) -> None:
        self.title, self.groups = title, groups

    @classmethod
    def read(cls, target: str, split: str | None, data_dir: Path) -> ShownLog:
        """Raises ConfigurationError, TrajectoryLogError."""
        from art.tracking.trajectory_log import LoggedSteps, read_trajectory_groups

        path = Path(target)
        if path.suffix in LOG_SUFFIXES:
            if not path.is_file():
                raise ConfigurationError(f"there is no file {target!r}")
            return cls(target, read_trajectory_groups(path))
        model = find_model(target, data_dir)
        split, step = logged_step(model, split)
        file = LoggedSteps(model.files.trajectories).path(split, step)
        return cls(f"{model.key}@{step} {split}", read_trajectory_groups(file))

    def group(self, index: int) -> TrajectoryGroup:
        """Raises ConfigurationError, which says how many there are."""
        if index >= len(self.groups):
            raise ConfigurationError(
                f"{self.title} has no group {index}: it has {len(self.groups)}, counted from 0"
            )
        return self.groups[index]

    def rollout(self, group: int, index: int) -> Trajectory:
        """Raises ConfigurationError, which says how many there are."""
        rollouts = self.group(group).trajectories
        if index >= len(rollouts):
            raise ConfigurationError(
                f"group {group} of {self.title} has no rollout {index}: it has {len(rollouts)}, counted "
                "from 0"
            )
        return rollouts[index]

    def parts(self, group: int | None, rollout: int | None) -> Iterator[RenderableType]:
        """Yields the parts that are printed."""
        if group is None:
            yield groups_table(self.title, self.groups)
        elif rollout is None:
            yield from group_parts(f"{self.title}, group {group}", self.group(group))
        else:
            where = f"{self.title}, group {group}, rollout {rollout}"
            yield from rollout_parts(where, self.rollout(group, rollout))

    def plain(self, group: int | None, rollout: int | None) -> Any:
        """Returns what `--json` prints: all groups with all their rollouts, one group, or one rollout."""
        if group is None:
            return [plain_group(one) for one in self.groups]
        return (
            plain_group(self.group(group)) if rollout is None else self.rollout(group, rollout).for_logging()
        )


def logged_step(model: NamedModel, split: str | None) -> tuple[str, int]:
    """Returns the split and the step to show: those asked for, else the newest step that is logged.

    Raises ConfigurationError, which lists what is logged.
    """
    from art.tracking.trajectory_log import LoggedSteps

    logged = LoggedSteps(model.files.trajectories).by_split()
    names = sorted(logged, key=lambda name: (name not in SPLITS_SHOWN_FIRST, name != "train", name))
    wanted = [name for name in names if split in (None, name)]
    step = model.step
    if step is None and wanted:
        step = max(logged[name][-1] for name in wanted)
    for name in wanted:
        if step in logged[name]:
            assert step is not None
            return name, step
    there = "; ".join(f"{name}: {', '.join(map(str, logged[name]))}" for name in names)
    asked = model.key + ("" if model.step is None else f"@{model.step}")
    asked += f" in split {split!r}" if split else ""
    raise ConfigurationError(
        f"no trajectories of {asked} are logged. Steps that are: {there or 'none (`model.log` writes them)'}"
    )


def plain_group(group: TrajectoryGroup) -> dict[str, Any]:
    """Returns plain values."""
    return {
        "metadata": group.metadata,
        "metrics": group.metrics,
        "logs": group.logs,
        "exceptions": [{"type": one.type, "message": one.message} for one in group.exceptions],
        "trajectories": [one.for_logging() for one in group.trajectories],
    }


def visible(value: object) -> Text:
    """Returns text for the terminal: no markup, and control characters as symbols."""
    return Text(printable(str(value)), overflow="fold")


def facts_line(facts: dict[str, Any]) -> Text:
    """Returns "won 1, turns 3"."""
    return visible(", ".join(f"{name} {shown_value(value)}" for name, value in facts.items()))


def shown_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _labelled(metric: str, *rollouts: Trajectory) -> str:
    return metric if any(one.exchanges for one in rollouts) else PER_REPLY.get(metric, metric)


def reward_text(reward: float | Unscored) -> str:
    return f"unscored: {reward.reason}" if isinstance(reward, Unscored) else f"{reward:.4g}"


def table_of(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=visible(title), box=None, pad_edge=False, title_justify="left")
    for name in columns:
        table.add_column(visible(name), overflow="fold")
    return table


def groups_table(title: str, groups: Sequence[TrajectoryGroup]) -> Table:
    """One line a group."""
    table = table_of(title, ("group", "rollouts", "failed", "unscored", "reward", "std", "metadata"))
    for index, group in enumerate(groups):
        rewards = [reward for one in group if (reward := known_reward(one)) is not None]
        table.add_row(
            str(index),
            str(len(group)),
            str(len(group.exceptions)),
            str(len(group) - len(rewards)),
            f"{fmean(rewards):.4g}" if rewards else "",
            f"{pstdev(rewards):.4g}" if rewards else "",
            facts_line(dict(group.metadata)),
        )
    return table


def group_parts(title: str, group: TrajectoryGroup) -> Iterator[RenderableType]:
    """One line a rollout, then what is known of the group."""
    names = list(dict.fromkeys(name for one in group for name in one.metrics))[:METRIC_COLUMNS]
    columns = [_labelled(name, *group) for name in names]
    table = table_of(title, ("rollout", "reward", "turns", "finish", *columns))
    for index, one in enumerate(group):
        choices: list[Any] = [item for item in one.messages_and_choices if is_choice(item)]
        last = choices[-1] if choices else None
        finish = last["finish_reason"] if isinstance(last, dict) else getattr(last, "finish_reason", "")
        cells = [shown_value(one.metrics[name]) if name in one.metrics else "" for name in names]
        reward = visible(reward_text(one.reward))
        table.add_row(str(index), reward, str(len(choices)), visible(finish), *map(visible, cells))
    yield table
    for what, facts in (("metadata", group.metadata), ("metrics", group.metrics)):
        if facts:
            yield Text(f"{what}: ") + facts_line(dict(facts))
    for line in group.logs:
        yield Text("log: ") + visible(line)
    for error in group.exceptions:
        yield Text("failed: ", style="red") + visible(f"{error.type}: {error.message}")


def rollout_parts(title: str, trajectory: Trajectory) -> Iterator[RenderableType]:
    """The whole conversation, then reward, metrics, metadata and logs."""
    yield visible(title)
    histories: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
    for number, history in enumerate(histories):
        if number:
            yield visible(f"further history {number}")
        for message, item in zip(history.messages(), history.messages_and_choices, strict=True):
            yield message_panel(dict(message), sampled=is_choice(item))
    facts_told = {**trajectory.metadata}
    if isinstance(view := facts_told.pop(SHOW, None), str) and view.strip():
        yield Text("task view:\n") + visible(view)
    yield Text("reward: ") + visible(reward_text(trajectory.reward))
    metrics = {_labelled(name, trajectory): value for name, value in trajectory.metrics.items()}
    for what, facts in (("metrics", metrics), ("metadata", facts_told)):
        if facts:
            yield Text(f"{what}: ") + facts_line(dict(facts))
    for line in trajectory.logs:
        yield Text("log: ") + visible(line)


def message_panel(message: dict[str, Any], *, sampled: bool) -> Panel:
    """One message: what was thought, said and called. Sampled ones are marked."""
    parts: list[RenderableType] = []
    if thought := message.get("reasoning_content") or message.get("reasoning"):
        parts.append(Text.assemble((printable(str(thought)), "italic dim")))
    if said := text_of_content(message.get("content")):
        parts.append(visible(said))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(
            Text("calls ", style="yellow") + visible(f"{function.get('name')}({function.get('arguments')})")
        )
    role = str(message.get("role"))
    heading = visible(f"{role}{' (sampled)' if sampled else ''}")
    return Panel(Group(*parts), title=heading, title_align="left", border_style=ROLE_STYLES.get(role, "none"))
