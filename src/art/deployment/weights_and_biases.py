"""Weights & Biases: the adapter as an artifact with the alias `step{n}`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from pydantic import Field

from art.deployment.provider import Adapter, DeploymentConfig, LoRADeploymentJob
from art.environment import WANDB_API_KEY, variable
from art.errors import ConfigurationError, DeploymentError
from art.wire.checkpoint import ADAPTER_CONFIG_FILE, ADAPTER_FILE

UPLOAD_S = 1800


class WandbDeploymentConfig(DeploymentConfig):
    """provenance: what made the model, kept in the artifact's metadata."""

    provenance: list[str] = Field(default_factory=list)


class WeightsAndBiases:
    """See `art.deployment.provider.Provider`."""

    base_models: Mapping[str, str] = MappingProxyType(
        {
            "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
            "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
            "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Llama-3.1-70B-Instruct",
            "meta-llama/Meta-Llama-3.1-70B-Instruct": "meta-llama/Llama-3.1-70B-Instruct",
            "OpenPipe/Qwen3-14B-Instruct": "OpenPipe/Qwen3-14B-Instruct",
            "Qwen/Qwen2.5-14B-Instruct": "Qwen/Qwen2.5-14B-Instruct",
        }
    )

    def configured(self, config: DeploymentConfig | None) -> WandbDeploymentConfig:
        if config is not None and not isinstance(config, WandbDeploymentConfig):
            raise ConfigurationError(f"provider 'wandb' takes a WandbDeploymentConfig, not {config!r}")
        return config or WandbDeploymentConfig()

    def deploy(self, adapter: Adapter, base_model: str, config: Any) -> LoRADeploymentJob:
        try:
            wandb = import_module("wandb")
        except ImportError as error:
            raise ConfigurationError(
                "provider 'wandb' needs wandb: pip install 'agent-reinforcement-trainer[wandb]'"
            ) from error

        offline = wandb.setup().settings.mode == "offline"
        if not offline and variable(WANDB_API_KEY) is None:
            raise ConfigurationError(f"provider 'wandb' needs its key in {WANDB_API_KEY}")
        metadata: dict[str, Any] = {"wandb.base_model": base_model}
        if config.provenance:
            metadata["wandb.provenance"] = list(config.provenance)
        alias = f"step{adapter.step}"
        try:
            run = wandb.init(
                project=adapter.project, entity=adapter.entity, job_type="deployment", reinit="create_new"
            )
            with run:
                artifact = wandb.Artifact(adapter.name, type="lora", metadata=metadata)
                for name in (ADAPTER_FILE, ADAPTER_CONFIG_FILE):
                    artifact.add_file(str(adapter.folder / name))
                logged = run.log_artifact(artifact, aliases=["latest", alias])
                if not offline:
                    logged.wait(timeout=UPLOAD_S)
                entity, project = run.entity, run.project
        except (wandb.Error, ValueError, TimeoutError) as error:
            raise DeploymentError(f"wandb did not take {adapter.name}@{adapter.step}: {error}") from error
        name = f"wandb-artifact:///{entity or adapter.entity or 'offline'}/{project}/{adapter.name}:{alias}"
        return LoRADeploymentJob(status="Queued" if offline else "Complete", job_id=run.id, model_name=name)
