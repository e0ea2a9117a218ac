"""Where a project's files lie: `.art/<project>/models/<name>/checkpoints/<step>`; and one writer a folder.

`ModelPaths` has the names of all files of a model; `find_model` takes the name that a command line gives; the
other functions are what programs call.

The root is `.art` in the current folder unless told otherwise; nothing here makes a folder, except the
lock. The kernel drops a lock when its holder dies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from art.errors import ConfigurationError, DeadlineError, did_you_mean
from art.process.files import close_to_others, is_open_to_all, make_private_folder, take_lock
from art.wire.records import is_name
from art.wire.rollout_record import ROLLOUT_FILE
from art.wire.training import TOKEN_FILE

if TYPE_CHECKING:
    from art.backend import AnyModel, AnyTrainableModel


def get_repo_root_path() -> str:
    """The nearest folder from the current one upward that holds a `.git`; "." where there is none."""
    here = Path.cwd()
    return next((str(folder) for folder in (here, *here.parents) if (folder / ".git").exists()), ".")


def get_default_art_path() -> str:
    """Returns the default folder of backends and models: `.art` in the current folder."""
    return str(Path.cwd() / ".art")


def get_models_dir(project_name: str, art_path: str | None = None) -> str:
    """The folder of a project's models."""
    return str(Path(art_path or get_default_art_path()) / project_name / "models")


def get_output_dir_from_model_properties(project: str, name: str, art_path: str | None = None) -> str:
    """The folder of the model `name` in `project`."""
    return str(Path(get_models_dir(project, art_path)) / name)


def model_folder(art_path: str | Path, project: str, name: str) -> Path:
    """`{art_path}/{project}/models/{name}`. Raises ConfigurationError for names that are none."""
    check_part("project", project)
    check_part("name", name)
    return Path(get_output_dir_from_model_properties(project, name, str(art_path)))


def check_part(what: str, value: str) -> None:
    """One component of a path. Raises ConfigurationError for what would leave its folder."""
    if not is_name(value):
        raise ConfigurationError(
            f"{what} {value!r} is not a name: use letters, digits, '.', '_' and '-', beginning with a letter "
            "or digit"
        )


def stored_name(model: AnyModel) -> str:
    """The name of a model's folder, registration and checkpoints: its run's, where it has one."""
    return model.run_name or model.name


def get_model_dir(model: AnyModel, art_path: str | None = None) -> str:
    """The folder of a model; without `art_path` it is under the model's own `base_path`."""
    return get_output_dir_from_model_properties(
        model.project, stored_name(model), art_path or model.base_path
    )


@dataclass(frozen=True)
class ModelPaths:
    """The files of one model, which every run of it shares."""

    path: Path

    @classmethod
    def of_model(cls, model: AnyModel) -> ModelPaths:
        return cls(Path(get_model_dir(model)))

    @property
    def description(self) -> Path:
        """The file with the settings of the model as its program made it."""
        return self.path / "model.json"

    @property
    def history(self) -> Path:
        """One row of numbers for each split of each step."""
        return self.path / "history.jsonl"

    @property
    def findings(self) -> Path:
        """The findings that the log reported while the run trained, a line each."""
        return self.path / "findings.jsonl"

    @property
    def state(self) -> Path:
        """The file with the program's own state and the log's sums."""
        return self.path / "state.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def trajectories(self) -> Path:
        """Logs, a folder for each split."""
        return self.path / "trajectories"

    @property
    def steps(self) -> Path:
        """The record of each training step, a folder for each."""
        return self.path / "steps"

    def tokens(self, step: int) -> Path:
        """Returns the file of a step's trained tokens; the step is the one that was made."""
        return self.steps / f"{step:04d}" / TOKEN_FILE

    def rollouts(self, step: int) -> Path:
        """The file with what became of each rollout of the step that was made."""
        return self.steps / f"{step:04d}" / ROLLOUT_FILE

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    def under_way(self, job_id: str) -> Path:
        """Returns the folder of the data that a training job logs after it has made its step."""
        return self.path / "under_way" / job_id

    @property
    def run_lock(self) -> Path:
        """The lock file of the pipeline that trains the model."""
        return self.path / ".pipeline.lock"


def get_step_checkpoint_dir(model_output_dir: str, step: int) -> str:
    """The folder of one checkpoint, four digits: `checkpoints/0007`."""
    return str(ModelPaths(Path(model_output_dir)).checkpoints / f"{step:04d}")


def get_trajectories_dir(model_output_dir: str) -> str:
    """The folder of a model's trajectory logs."""
    return str(ModelPaths(Path(model_output_dir)).trajectories)


def get_trajectories_split_dir(model_output_dir: str, split: str) -> str:
    """The folder of the trajectory logs of one split."""
    return str(Path(get_trajectories_dir(model_output_dir)) / split)


def get_step_from_dir(output_dir: str) -> int:
    """The newest checkpoint in a model's folder; 0 where there is none."""
    checkpoints = ModelPaths(Path(output_dir)).checkpoints
    found = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return max((int(folder.name) for folder in found if folder.is_dir() and folder.name.isdigit()), default=0)


def get_model_step(model: AnyTrainableModel, art_path: str) -> int:
    """The newest checkpoint of a model under `art_path`, as its files say; 0 where there is none."""
    return get_step_from_dir(
        get_output_dir_from_model_properties(model.project, stored_name(model), art_path)
    )


PATIENCE_SECONDS = 120.0
"""The longest wait in seconds for the lock. A writer holds it for the time of reading and writing a file."""
LOG_SUFFIXES = (".parquet", ".jsonl")
"""The suffixes of the files with the rollouts of a step."""


@contextmanager
def lock_folder(folder: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Holds the folder's lock; creates the folder if it does not exist.

    Raises: DeadlineError after `patience` seconds of waiting for another process or thread.
    """
    make_private_folder(folder)
    lock = folder / ".lock"
    descriptor = take_lock(lock, patience=patience)
    if descriptor is None:
        raise DeadlineError(
            f"another process has been writing to {str(folder)!r} for {patience:g} s: "
            f"look for a stopped process that holds {str(lock)!r}"
        )
    try:
        _close_older_folder(folder, lock)
        yield
    finally:
        os.close(descriptor)


def _close_older_folder(folder: Path, lock: Path) -> None:
    """Takes a folder of an earlier release from other users, once: whoever opens it again may do so."""
    if is_open_to_all(lock):
        close_to_others(folder)
        close_to_others(lock)


_MODEL_STEP = re.compile(r"(?:(?P<project>[^/@]+)/)?(?P<name>[^/@]+)(?:@(?P<step>\d+))?")


@dataclass(frozen=True)
class NamedModel:
    """A model in a data folder, as `project/name` or `project/name@step` names it."""

    project: str
    name: str
    step: int | None
    """None: nobody named one, so the newest."""
    files: ModelPaths

    @property
    def key(self) -> str:
        """`project/name`."""
        return f"{self.project}/{self.name}"

    def steps(self) -> list[int]:
        """Returns the steps whose checkpoints are here, oldest first."""
        there = self.files.checkpoints
        found = there.iterdir() if there.is_dir() else ()
        return sorted(int(one.name) for one in found if one.is_dir() and one.name.isdecimal())


def model_folders(data_dir: Path) -> dict[str, Path]:
    """Returns the folders of all models in a data folder, by `project/name`."""
    found = (path for path in sorted(data_dir.glob("*/models/*")) if path.is_dir())
    return {f"{path.parents[1].name}/{path.name}": path for path in found if not path.name.startswith(".")}


def find_model(text: str, data_dir: Path) -> NamedModel:
    """Returns the model that `project/name`, `name` or either with `@step` names. Its files need no server.

    Raises ConfigurationError where the text is no such name, no folder has it, or a `name` alone is that of
    models of several projects; it lists the models that are there.
    """
    said = _MODEL_STEP.fullmatch(text)
    if said is None:
        raise ConfigurationError(f"model {text!r}: write project/name or project/name@step")
    there = model_folders(data_dir)
    project, name = said["project"], said["name"]
    fit = [key for key in there if key == f"{project}/{name}" or (not project and key.endswith(f"/{name}"))]
    if len(fit) != 1:
        hint = did_you_mean(text.partition("@")[0], there)
        if not there:
            what = "there is no model in it; name its data folder with --data-dir"
        elif fit:
            what = f"that is the name of several models: {', '.join(fit)}"
        else:
            what = f"no such model{hint and f', {hint}'}; models there: {', '.join(there)}"
        raise ConfigurationError(f"model {text!r} in {str(data_dir)!r}: {what}")
    folder = there[fit[0]]
    step = None if said["step"] is None else int(said["step"])
    return NamedModel(folder.parents[1].name, folder.name, step, ModelPaths(folder))
