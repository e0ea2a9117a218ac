"""Profiles: the numbers that a tuner chose, with what it measured, in a model's folder by name.

.art/<project>/models/<name>/pipeline_profiles/latest.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from art.errors import ConfigurationError, UnreadableFileError, did_you_mean
from art.process.files import write_whole
from art.process.foreign_files import parse_json, read_foreign
from art.tracking.folders import ModelPaths
from art_extensions.pipeline.settings import PipelineRuntimeConfig, runtime_options
from art_extensions.pipeline_tuner.config import check_profile_name

if TYPE_CHECKING:
    from art.model import TrainableModel


class PipelineTunerProfile(BaseModel):
    """The numbers of a pipeline that a tuner chose. measurements: by numbers of workers."""

    model_config = ConfigDict(extra="forbid")

    settings: PipelineRuntimeConfig
    measurements: dict[int, dict[str, float]] = {}


class PipelineTunerProfileStore:
    """The profiles of one model."""

    def __init__(self, model: TrainableModel[Any, Any]) -> None:
        self._folder = ModelPaths.of_model(model).path / "pipeline_profiles"

    def names(self) -> list[str]:
        """Returns the names of the profiles that exist, sorted."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def load(self, name: str = "latest") -> PipelineTunerProfile:
        """Returns a profile. Raises ConfigurationError for one that is missing or damaged."""
        path = self._path(name)
        if not path.exists():
            there = self.names()
            hint = did_you_mean(name, there)
            known = ", ".join(there) or "none. PipelineAutotuneConfig(mode='profile') writes one"
            raise ConfigurationError(
                f"no profile {name!r} in {str(self._folder)!r}{hint and f', {hint}'}; profiles there: {known}"
            )
        try:
            profile = PipelineTunerProfile.model_validate(parse_json(read_foreign(path)))
            runtime_options(profile.settings)
        except (ValidationError, UnreadableFileError, ValueError) as error:
            raise ConfigurationError(
                f"the profile {name!r} in {str(path)!r} is damaged: {error}. Delete it, or name another one"
            ) from error
        return profile

    def save(self, profile: PipelineTunerProfile, name: str = "latest") -> Path:
        """Writes a profile, or replaces it; returns the file. A reader meets the old or the new one."""
        path = self._path(name)
        write_whole(path, json.dumps(profile.model_dump(mode="json"), indent=2) + "\n")
        return path

    def _path(self, name: str) -> Path:
        return self._folder / f"{check_profile_name(name)}.json"
