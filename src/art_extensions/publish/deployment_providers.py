"""The providers of deployed adapters: together.ai, and Weights & Biases.

together.ai fetches a zip file of the adapter from a signed URL, as a job that is asked after:

    POST {base_url}/models       {model_name, model_source, model_type: "adapter", base_model, description}
                                 -> {"data": {"job_id": ..., "model_name": ...}}
    GET  {base_url}/jobs/{id}    -> {"status": "Queued" or "Running" or "Complete" or "Failed",
                                     "status_updates": [{"message": ...}]}

Weights & Biases takes the adapter as an artifact with the alias `step{n}`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import Field

from art.client.publishing import LoRADeploymentJob
from art.errors import ConfigurationError, DeploymentError, LoRADeploymentTimedOutError, extra_needed
from art.extensions import STORAGE, load_extension
from art.process.environment import TOGETHER_API_KEY, TOGETHER_BASE_URL, WANDB_API_KEY, variable
from art.process.foreign_files import ask_foreign_blocking, parse_json
from art.wire.models import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from art_extensions.publish.deployment import (
    DeployedAdapter,
    DeploymentConfig,
    LoRADeploymentProvider,
    start_deployment,
)

if TYPE_CHECKING:
    import httpx

    from art.backend import AnyTrainableModel

BASE_URL = "https://api.together.xyz/v1"
SIGNED_S = 4 * 3600
REQUEST_S = 60.0
MOST_BYTES = 4 << 20
"""Limit of one answer of a provider."""
_ENDED = ("Complete", "Failed")


class TogetherDeploymentConfig(DeploymentConfig):
    """s3_bucket (None: `BACKUP_BUCKET`), prefix: where the archive is put for the provider to fetch.

    wait_for_completion: return when the provider is done, asking every `poll_s` seconds, at most `wait_s`.
    base_url: `TOGETHER_BASE_URL` or together's own.
    """

    s3_bucket: str | None = None
    prefix: str | None = None
    wait_for_completion: bool = True
    base_url: str = Field(default_factory=lambda: variable(TOGETHER_BASE_URL) or BASE_URL)
    poll_s: float = 15.0
    wait_s: float = 300.0


class Together:
    """See `art_extensions.publish.deployment.DeploymentProvider`."""

    base_models: Mapping[str, str] = MappingProxyType(
        {
            "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B-Instruct-Reference",
            "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B-Instruct-Reference",
            "meta-llama/Meta-Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B-Instruct-Reference",
            "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B-Instruct-Reference",
            "Qwen/Qwen2.5-14B-Instruct": "Qwen/Qwen2.5-14B-Instruct",
            "Qwen/Qwen2.5-72B-Instruct": "Qwen/Qwen2.5-72B-Instruct",
        }
    )

    def configured(self, config: DeploymentConfig | None) -> TogetherDeploymentConfig:
        if not isinstance(config, TogetherDeploymentConfig):
            raise ConfigurationError(
                f"provider 'together' needs config=TogetherDeploymentConfig(s3_bucket=...), not {config!r}"
            )
        if variable(TOGETHER_API_KEY) is None:
            raise ConfigurationError(f"provider 'together' needs its key in {TOGETHER_API_KEY}")
        return config

    def deploy(self, adapter: DeployedAdapter, base_model: str, config: Any) -> LoRADeploymentJob:
        source = load_extension(STORAGE, "sign")(
            adapter.folder,
            (adapter.project, adapter.name),
            adapter.step,
            bucket=config.s3_bucket,
            prefix=config.prefix,
            seconds=SIGNED_S,
        )
        reply = _ask(
            config,
            "POST",
            "/models",
            {
                "model_name": f"{adapter.project}-{adapter.name}-{adapter.step}",
                "model_source": source,
                "model_type": "adapter",
                "base_model": base_model,
                "description": f"{adapter.project}/{adapter.name}, step {adapter.step}",
            },
        )
        data = reply.get("data")
        made = data if isinstance(data, dict) else reply
        try:
            job = LoRADeploymentJob(
                status="Queued", job_id=str(made["job_id"]), model_name=str(made["model_name"])
            )
        except KeyError as error:
            raise DeploymentError(f"together answered without {error}: {sorted(made)}") from error
        return _wait(config, job) if config.wait_for_completion else job


def _wait(config: TogetherDeploymentConfig, job: LoRADeploymentJob) -> LoRADeploymentJob:
    until = time.monotonic() + config.wait_s
    while True:
        reply = _ask(config, "GET", f"/jobs/{job.job_id}", None)
        status = str(reply.get("status"))
        if status in _ENDED:
            reason = None if status == "Complete" else _reason(reply)
            return job.model_copy(update={"status": status, "failure_reason": reason})
        if time.monotonic() + config.poll_s > until:
            raise LoRADeploymentTimedOutError(
                f"job {job.job_id} of {job.model_name!r} is {status!r} after {config.wait_s:g} s; together "
                "may still finish it"
            )
        time.sleep(config.poll_s)


def _reason(reply: Mapping[str, Any]) -> str:
    updates = reply.get("status_updates") or []
    last = updates[-1] if isinstance(updates, list) and updates else {}
    return str(
        last.get("message") if isinstance(last, dict) and last.get("message") else "no reason was given"
    )


def _ask(
    config: TogetherDeploymentConfig, method: str, path: str, body: dict[str, Any] | None
) -> dict[str, Any]:
    import httpx

    headers = {"Authorization": f"Bearer {variable(TOGETHER_API_KEY)}"}
    url = f"{config.base_url.rstrip('/')}{path}"
    with httpx.Client(headers=headers, timeout=REQUEST_S) as client:
        return ask_provider(client, method, url, body)


def ask_provider(client: httpx.Client, method: str, url: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """Returns what the provider answers. Raises DeploymentError."""
    import httpx

    try:
        reply = ask_foreign_blocking(
            client, method, url, most_bytes=MOST_BYTES, deadline_s=REQUEST_S, body=body
        )
        found = parse_json(reply.content) if reply.status_code < 400 else {}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise DeploymentError(f"{method} {url} failed: {error!r:.500}") from error
    if reply.status_code >= 400:
        raise DeploymentError(
            f"{method} {url} was answered with {reply.status_code}: {reply.text[:500]}", reply.status_code
        )
    return found if isinstance(found, dict) else {"data": found}


UPLOAD_S = 1800


class WandbDeploymentConfig(DeploymentConfig):
    """provenance: what made the model, kept in the artifact's metadata."""

    provenance: list[str] = Field(default_factory=list)


class WeightsAndBiases:
    """See `art_extensions.publish.deployment.DeploymentProvider`."""

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

    def deploy(self, adapter: DeployedAdapter, base_model: str, config: Any) -> LoRADeploymentJob:
        with extra_needed("wandb", "provider 'wandb'"):
            wandb = import_module("wandb")

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


async def deploy_step(
    model: AnyTrainableModel,
    folder: Path,
    step: int,
    provider: LoRADeploymentProvider | str,
    *,
    s3_bucket: str | None,
    prefix: str | None,
    wait_for_completion: bool,
    verbose: bool,
) -> LoRADeploymentJob:
    """Starts a deployment for `LocalBackend._experimental_deploy`. Its settings are those of together.ai."""
    config = None
    if provider == LoRADeploymentProvider.TOGETHER:
        config = TogetherDeploymentConfig(
            s3_bucket=s3_bucket, prefix=prefix, wait_for_completion=wait_for_completion
        )
    return await start_deployment(model, folder, step, provider, config, verbose=verbose)
