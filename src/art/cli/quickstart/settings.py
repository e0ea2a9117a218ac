"""What a quick-start run was asked to do, resolved against the task's own defaults and saved with the run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from art import tasks
from art.errors import ConfigurationError
from art.schedule import Leg, legs_to

SETTINGS_FILE = "settings.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What the user chose; None takes the task's own default."""

    task: str
    seed: int = 0
    steps: int | None = None
    groups: int | None = None
    group_size: int | None = None
    learning_rate: float | None = None
    base_model: str | None = None
    evaluation_games: int = 1000
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A run, fully specified. The same settings give the same scenarios in the same order."""

    task: str
    seed: int
    steps: int
    groups: int
    """Scenarios a step."""
    group_size: int
    """Attempts at each scenario."""
    learning_rate: float
    """At its height; it rises and falls as the task's defaults say."""
    base_model: str
    evaluation_games: int
    deterministic: bool
    legs: tuple[Leg, ...] = ()
    """Of the learning rate's schedule, where the run was given another number of steps on its way."""

    @property
    def schedule(self) -> tuple[Leg, ...]:
        return self.legs or legs_to(self.steps, [], done=0)

    def save(self, folder: Path) -> None:
        (folder / SETTINGS_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Settings:
        path = folder / SETTINGS_FILE
        if not path.is_file():
            raise ConfigurationError(
                f"There is no run to resume in {str(folder)!r}: {SETTINGS_FILE} is missing."
            )
        saved = json.loads(path.read_text())
        return cls(**{**saved, "legs": tuple((first, last) for first, last in saved.get("legs", ()))})


def resolve(choices: Choices) -> Settings:
    """Fill what was not chosen from the task's defaults."""
    task = tasks.find(choices.task)
    defaults = task.DEFAULTS
    return Settings(
        task=task.NAME,
        seed=choices.seed,
        steps=choices.steps or defaults.steps,
        groups=choices.groups or defaults.groups,
        group_size=choices.group_size or defaults.group_size,
        learning_rate=choices.learning_rate or defaults.learning_rate,
        base_model=choices.base_model or defaults.base_model,
        evaluation_games=choices.evaluation_games,
        deterministic=choices.deterministic,
    )


def resumed(saved: Settings, choices: Choices, *, done: int) -> Settings:
    """The saved run, which has made `done` steps, with the number of steps possibly changed: the learning
    rate goes on from where it is.

    Raises ConfigurationError where a choice contradicts what the run was started with.
    """
    if choices.task != saved.task:
        raise ConfigurationError(f"The run to resume learns {saved.task!r}, not {choices.task!r}.")
    for name in ("groups", "group_size", "learning_rate", "base_model"):
        chosen, was = getattr(choices, name), getattr(saved, name)
        if chosen is not None and chosen != was:
            raise ConfigurationError(
                f"The run to resume has --{name.replace('_', '-')} {was}, not {chosen}. Leave it out."
            )
    steps = choices.steps or saved.steps
    legs = saved.legs if steps == saved.steps else legs_to(steps, saved.schedule, done=done)
    return replace(saved, steps=steps, legs=legs)
