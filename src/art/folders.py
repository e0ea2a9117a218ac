"""Where a project's files lie: `.art/<project>/models/<name>/checkpoints/<step>`.

The root is `.art` in the current folder unless told otherwise; nothing here makes a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art.backend import AnyModel, AnyTrainableModel


def get_repo_root_path() -> str:
    """The nearest folder from the current one upward that holds a `.git`; "." where there is none."""
    here = Path.cwd()
    return next((str(folder) for folder in (here, *here.parents) if (folder / ".git").exists()), ".")


def get_default_art_path() -> str:
    """Where backends and models keep their files when no path is given: `.art` in the current folder."""
    return str(Path.cwd() / ".art")


def get_models_dir(project_name: str, art_path: str | None = None) -> str:
    """The folder of a project's models."""
    return str(Path(art_path or get_default_art_path()) / project_name / "models")


def get_output_dir_from_model_properties(project: str, name: str, art_path: str | None = None) -> str:
    """The folder of the model `name` in `project`."""
    return str(Path(get_models_dir(project, art_path)) / name)


def get_model_dir(model: AnyModel, art_path: str | None = None) -> str:
    """The folder of a model; without `art_path` it is under the model's own `base_path`."""
    return get_output_dir_from_model_properties(model.project, model.name, art_path or model.base_path)


def get_step_checkpoint_dir(model_output_dir: str, step: int) -> str:
    """The folder of one checkpoint, four digits: `checkpoints/0007`."""
    return str(Path(model_output_dir) / "checkpoints" / f"{step:04d}")


def get_trajectories_dir(model_output_dir: str) -> str:
    """The folder of a model's trajectory logs."""
    return str(Path(model_output_dir) / "trajectories")


def get_trajectories_split_dir(model_output_dir: str, split: str) -> str:
    """The folder of the trajectory logs of one split."""
    return str(Path(get_trajectories_dir(model_output_dir)) / split)


def get_step_from_dir(output_dir: str) -> int:
    """The newest checkpoint in a model's folder; 0 where there is none."""
    checkpoints = Path(output_dir) / "checkpoints"
    found = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return max((int(folder.name) for folder in found if folder.is_dir() and folder.name.isdigit()), default=0)


def get_model_step(model: AnyTrainableModel, art_path: str) -> int:
    """The newest checkpoint of a model under `art_path`, as its files say; 0 where there is none."""
    return get_step_from_dir(get_output_dir_from_model_properties(model.project, model.name, art_path))
