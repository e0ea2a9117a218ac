"""The config of a tuner: what a program asks for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from art.errors import ConfigurationError, did_you_mean
from art.wire.records import is_name


class PipelineAutotuneConfig(BaseModel):
    """The tuner of a `PipelineTrainer`.

    mode: "online" changes `num_rollout_workers` while the run trains, "profile" also writes what it chose
    into the model's folder, "off" changes nothing. profile: the name of a stored profile to start from, in
    any mode.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["off", "online", "profile"] = "off"
    profile: str | None = None
    output_name: str = "latest"
    """The name of the profile that mode "profile" writes."""
    window_steps: Annotated[int, Field(ge=1)] = 4
    """The fewest measured steps of a decision."""
    warmup_ignore_steps: Annotated[int, Field(ge=0)] = 3
    """The steps at the start, and after each change, that are not measured."""
    target_spill_probability: Annotated[float, Field(ge=0, le=1)] = 0.03
    """The largest share of groups that may come too late to be trained."""
    worker_step: Annotated[int, Field(ge=1)] = 2
    """The number of workers of one change."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        for name in data if isinstance(data, dict) else ():
            if name not in cls.model_fields:
                hint = did_you_mean(name, cls.model_fields)
                raise ConfigurationError(
                    f"PipelineAutotuneConfig({name}={data[name]!r}): no such field{hint and f', {hint}'}; "
                    f"known: {', '.join(cls.model_fields)}"
                )
        return data

    @field_validator("profile", "output_name")
    @classmethod
    def _check_profile_name(cls, value: str | None) -> str | None:
        return value if value is None else check_profile_name(value)


def check_profile_name(name: str) -> str:
    """Returns the name. Raises ConfigurationError for one that cannot name a file."""
    if not is_name(name):
        raise ConfigurationError(
            f"{name!r} is no name of a profile: use letters, digits, '.', '_' and '-', beginning with a "
            "letter or a digit"
        )
    return name
