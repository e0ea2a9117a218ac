"""What a provider is, and the ones that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from art.errors import UnsupportedBaseModelDeploymentError, UnsupportedLoRADeploymentProviderError


class LoRADeploymentProvider(StrEnum):
    """Providers by the names that programs use."""

    TOGETHER = "together"
    WANDB = "wandb"


class DeploymentConfig(BaseModel):
    """Base of the providers' settings. Unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """What is deployed."""

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


class LoRADeploymentJob(BaseModel):
    """How an older program is told: `status` is Queued, Running, Complete or Failed."""

    status: str
    job_id: str
    model_name: str
    failure_reason: str | None = None


class Provider(Protocol):
    """Where adapters are deployed. Registered below by its name."""

    base_models: Mapping[str, str]
    """Base models that adapters may have here, and what the provider calls them."""

    def configured(self, config: DeploymentConfig | None) -> DeploymentConfig:
        """Its own settings, checked. Raises ConfigurationError."""

    def deploy(self, adapter: Adapter, base_model: str, config: Any) -> LoRADeploymentJob:
        """Upload and, unless told otherwise, wait. Blocks; `base_model` is the provider's name.

        Raises DeploymentError, LoRADeploymentTimedOutError, StorageError, ConfigurationError.
        """


PROVIDERS: Mapping[str, str] = MappingProxyType(
    {
        "together": "art.deployment.together:Together",
        "wandb": "art.deployment.weights_and_biases:WeightsAndBiases",
    }
)
"""Name -> module and class."""


def provider_named(name: str | LoRADeploymentProvider) -> Provider:
    """Raises UnsupportedLoRADeploymentProviderError that lists the known ones."""
    key = name.value if isinstance(name, LoRADeploymentProvider) else name
    if key not in PROVIDERS:
        raise UnsupportedLoRADeploymentProviderError(
            f"no deployment provider {key!r}; known: {', '.join(sorted(PROVIDERS))}"
        )
    module, _, kind = PROVIDERS[key].partition(":")
    found: Provider = getattr(import_module(module), kind)()
    return found


def base_model_at(provider: Provider, name: str, base_model: str) -> str:
    """What the provider calls a base model. Raises UnsupportedBaseModelDeploymentError."""
    if base_model not in provider.base_models:
        raise UnsupportedBaseModelDeploymentError(
            f"{name} serves no adapters of {base_model!r}; it does of: "
            f"{', '.join(sorted(provider.base_models))}"
        )
    return provider.base_models[base_model]
