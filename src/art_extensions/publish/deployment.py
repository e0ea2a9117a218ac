"""`deploy_model`: an adapter of a checkpoint, at a provider; and what a provider is."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict

from art.client.publishing import LoRADeploymentJob
from art.errors import (
    CheckpointError,
    CheckpointMissingError,
    DeploymentError,
    UnsupportedBaseModelDeploymentError,
    UnsupportedLoRADeploymentProviderError,
)
from art.extensions import DEPLOYMENT, extension_points, load_extension
from art.wire.models import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from art.wire.records import split_bits

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel


class LoRADeploymentProvider(StrEnum):
    """Providers by the names that programs use."""

    TOGETHER = "together"
    WANDB = "wandb"


class DeploymentConfig(BaseModel):
    """Base of the providers' settings. Unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class DeployedAdapter:
    """A deployed adapter."""

    project: str
    name: str
    entity: str | None
    base_model: str
    step: int
    folder: Path
    """A PEFT folder: `adapter_model.safetensors` and `adapter_config.json`."""


@dataclass(frozen=True)
class DeploymentResult:
    """inference_model_name: what to send as `model` to the provider."""

    inference_model_name: str


class DeploymentProvider(Protocol):
    """A provider that deploys adapters. An entry point `deployment.NAME` names a class that makes it."""

    base_models: Mapping[str, str]
    """Base models that adapters may have here, and what the provider calls them."""

    def configured(self, config: DeploymentConfig | None) -> DeploymentConfig:
        """Returns the provider's own settings, checked. Raises ConfigurationError."""

    def deploy(self, adapter: DeployedAdapter, base_model: str, config: Any) -> LoRADeploymentJob:
        """Upload and, unless told otherwise, wait. Blocks; `base_model` is the provider's name.

        Raises DeploymentError, LoRADeploymentTimedOutError, StorageError, ConfigurationError.
        """


def provider_named(name: str | LoRADeploymentProvider) -> DeploymentProvider:
    """Raises UnsupportedLoRADeploymentProviderError that lists the known ones."""
    key = name.value if isinstance(name, LoRADeploymentProvider) else name
    known = extension_points(DEPLOYMENT)
    if key not in known:
        raise UnsupportedLoRADeploymentProviderError(
            f"no deployment provider {key!r}; known: {', '.join(known)}"
        )
    provider: DeploymentProvider = load_extension(DEPLOYMENT, key)()
    return provider


def base_model_at(provider: DeploymentProvider, name: str, base_model: str) -> str:
    """Returns the provider's name of a base model. Raises UnsupportedBaseModelDeploymentError."""
    if base_model not in provider.base_models:
        raise UnsupportedBaseModelDeploymentError(
            f"{name} serves no adapters of {base_model!r}; it does of: "
            f"{', '.join(sorted(provider.base_models))}"
        )
    return provider.base_models[base_model]


_log = logging.getLogger(__name__)


async def deploy_model(
    model: AnyTrainableModel,
    checkpoint_path: str | Path,
    step: int,
    provider: str | LoRADeploymentProvider,
    config: DeploymentConfig | None = None,
    verbose: bool = False,
) -> DeploymentResult:
    """Deploys the adapter of a checkpoint folder at a provider.

    provider: "together" (needs a `TogetherDeploymentConfig`) or "wandb". verbose: what happens is
    logged as a warning, so that it is seen, and not as an info.

    Raises UnsupportedLoRADeploymentProviderError, UnsupportedBaseModelDeploymentError,
    CheckpointMissingError, ConfigurationError, LoRADeploymentTimedOutError, DeploymentError.
    """
    job = await start_deployment(model, checkpoint_path, step, provider, config, verbose=verbose)
    return DeploymentResult(inference_model_name=_name_of(job, model, step))


def deploy_wandb(
    model: AnyTrainableModel,
    checkpoint_path: str | Path,
    step: int,
    config: DeploymentConfig | None = None,
    verbose: bool = False,
) -> str:
    """`deploy_model` with the provider "wandb", for code that does not await: blocks until it is uploaded.

    Gives the inference name. Raises what `deploy_model` raises.
    """
    return _name_of(_deployed(model, checkpoint_path, step, "wandb", config, verbose), model, step)


async def start_deployment(
    model: AnyTrainableModel,
    checkpoint_path: str | Path,
    step: int,
    provider: str | LoRADeploymentProvider,
    config: DeploymentConfig | None = None,
    *,
    verbose: bool = False,
) -> LoRADeploymentJob:
    """Starts a deployment as `deploy_model` does, but returns a job that failed at the provider."""
    return await asyncio.to_thread(_deployed, model, checkpoint_path, step, provider, config, verbose)


def _name_of(job: LoRADeploymentJob, model: AnyTrainableModel, step: int) -> str:
    if job.failure_reason is not None:
        raise DeploymentError(
            f"{model.name}@{step} was not deployed: {job.failure_reason} (job {job.job_id})"
        )
    return job.model_name


def _deployed(
    model: AnyTrainableModel,
    checkpoint_path: str | Path,
    step: int,
    provider: str | LoRADeploymentProvider,
    config: DeploymentConfig | None,
    verbose: bool,
) -> LoRADeploymentJob:
    chosen = provider_named(provider)
    name = provider.value if isinstance(provider, LoRADeploymentProvider) else provider
    folder = Path(checkpoint_path)
    base_model = base_model_at(chosen, name, _base_of(model.base_model, folder))
    checked = chosen.configured(config)
    for file in (ADAPTER_CONFIG_FILE, ADAPTER_FILE):
        if not (folder / file).is_file():
            raise CheckpointMissingError(
                f"{folder} has no {file!r}: only adapters are deployed, not whole models"
            )
    adapter = DeployedAdapter(
        project=model.project,
        name=model.name,
        entity=model.entity,
        base_model=model.base_model,
        step=step,
        folder=folder,
    )
    level = logging.WARNING if verbose else logging.INFO
    _log.log(level, "%s@%d goes to %s from %s", model.name, step, name, folder)
    job = chosen.deploy(adapter, base_model, checked)
    _log.log(level, "%s@%d at %s: %s as %r", model.name, step, name, job.status, job.model_name)
    return job


def _base_of(base_model: str, checkpoint: Path) -> str:
    """The model's base without its bits; where it began with a LoRA's folder, the base that its checkpoint
    names.
    """
    base_model, _ = split_bits(base_model)
    config = checkpoint / ADAPTER_CONFIG_FILE
    if not Path(base_model).is_dir() or not config.is_file():
        return base_model
    try:
        return str(json.loads(config.read_bytes()).get("base_model_name_or_path") or base_model)
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{config} is no JSON object ({error}); restore it") from error
