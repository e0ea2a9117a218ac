"""`ServerlessBackend`: a share of a server that others use, too; the tenant's key decides what is seen.

With it, which server it reaches and with which key.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from art.client.backends.remote_backend import RemoteBackend
from art.client.http.connection import model_path
from art.client.requests.jobs import JobDeadlines
from art.client.storage.checkpoint_download import fetch_checkpoint
from art.errors import ConfigurationError
from art.process.environment import API_KEY, BASE_URL, WANDB_API_KEY, variable
from art.tracking.folders import get_model_dir, get_step_checkpoint_dir
from art.types import ServerlessTrainResult, TrainResult
from art.wire.jobs import TrainResultInfo
from art.wire.models import ModelInfo

if TYPE_CHECKING:
    from art.backend import AnyModel, AnyTrainableModel


HOSTED_SERVICE = "api.training.wandb.ai"

_HOW = (
    "Start an ART server (`art serve`, on another machine behind HTTPS), have its operator make a key "
    "(`art keys create NAME`), and give both: ART_BASE_URL=https://gpu.example.org and ART_API_KEY, or "
    "ServerlessBackend(base_url=..., api_key=...)."
)


def choose_endpoint(api_key: str | None, base_url: str | None) -> tuple[str, str]:
    """`(base_url, api_key)` from the arguments, else from the environment.

    Raises ConfigurationError where one is missing, and for the hosted service, whose protocol is another.
    """
    url = base_url or variable(BASE_URL)
    if url is None:
        raise ConfigurationError(
            f"ServerlessBackend has no base_url, and {BASE_URL} is not set. The hosted service of W&B "
            f"Training speaks a protocol of its own, which this library does not. {_HOW}"
        )
    parts = urlsplit(url)
    if parts.hostname == HOSTED_SERVICE:
        raise ConfigurationError(
            f"base_url {url!r} is the hosted service of W&B Training: it speaks a protocol of its own, which "
            f"this library does not. {_HOW}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"base_url {url!r} is no address: it begins with http:// or https://")
    key = api_key or variable(API_KEY) or variable(WANDB_API_KEY)
    if key is None:
        raise ConfigurationError(
            f"ServerlessBackend has no api_key, and neither {API_KEY} nor {WANDB_API_KEY} is set. {_HOW}"
        )
    return url, key


_log = logging.getLogger(__name__)


class ServerlessBackend(RemoteBackend):
    """Sample and train on an ART server as one of its tenants.

    api_key: the tenant's key; else ART_API_KEY, else WANDB_API_KEY. base_url: the server's address; else
    ART_BASE_URL. Everything else is as with every other backend, `train` and its keywords included.

    Raises ConfigurationError (a ValueError) when one of both is not to be had.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        deadlines: JobDeadlines | None = None,
    ) -> None:
        super().__init__(*choose_endpoint(api_key, base_url), deadlines=deadlines)

    async def register(self, model: AnyModel) -> None:
        """Make the model known, and fill its `id` (whose it is, project, name) and `run_id` (its name).

        A model that is only prompted is left alone. `entity` stays what it is: W&B reads it.
        """
        if not model.trainable:
            _log.info("model %r is not trainable: there is nothing to register", model.name)
            return
        await super().register(model)
        info = await self._connection.call("GET", model_path(model), ModelInfo)
        model.id = "/".join(part for part in (info.entity, info.project, info.name) if part)
        model.run_id = model.run_id or model.name

    def _with_artifact(self, model: AnyTrainableModel, result: TrainResult) -> TrainResult:
        if isinstance(result, ServerlessTrainResult):
            result.artifact_name = f"{model.project}/{model.name}:step{result.step}"
        return result

    def _result(self, info: TrainResultInfo, metrics: dict[str, float]) -> ServerlessTrainResult:
        return ServerlessTrainResult(info.step, metrics, sheet=info.sheet)

    async def delete(self, model: AnyModel) -> None:
        """Remove the model from the server with its checkpoints; its logs on this machine stay.

        Raises NotFoundError when it is not there, RequestError while a training job of it is unfinished.
        """
        await self.delete_model(model)

    async def pull_checkpoint(
        self,
        model: AnyModel,
        *,
        step: int | Literal["latest"] | None = None,
        local_path: str | Path | None = None,
        verbose: bool = False,
    ) -> str:
        """Download a checkpoint and return its folder; each file's digest is checked.

        step: None and "latest" take the newest; an untrained step 0 counts as none. local_path: where to;
        by default where `LocalBackend` keeps it, `{base_path}/{project}/models/{name}/checkpoints/{step}`.

        Raises CheckpointMissingError, StepMissingError, CheckpointError (a file is not what the server says),
        DeadlineError.
        """

        def place(found: int) -> Path:
            default = get_step_checkpoint_dir(get_model_dir(model), found)
            return Path(default if local_path is None else local_path)

        return str(await fetch_checkpoint(self._connection, model_path(model), step, place, verbose=verbose))

    async def _experimental_pull_model_checkpoint(
        self,
        model: AnyModel,
        *,
        step: int | Literal["latest"] | None = None,
        local_path: str | None = None,
        verbose: bool = False,
    ) -> str:
        """The older name of `pull_checkpoint`."""
        return await self.pull_checkpoint(model, step=step, local_path=local_path, verbose=verbose)

    async def _experimental_fork_checkpoint(
        self,
        model: AnyModel,
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
        prefix: str | None = None,
    ) -> None:
        """Begin a model where another one of this tenant stands; see `fork_checkpoint`."""
        if from_s3_bucket is not None or prefix is not None:
            raise ConfigurationError(
                f"from_s3_bucket={from_s3_bucket!r}, prefix={prefix!r}: a tenant cannot put files onto the "
                "server; fork from a model of the server, or use art.LocalBackend"
            )
        await self.fork_checkpoint(
            model, from_model, from_project=from_project, not_after_step=not_after_step
        )
