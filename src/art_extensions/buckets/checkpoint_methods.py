"""The methods of `LocalBackend` by which notebooks of older releases reach checkpoints."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from art.client.storage.bucket_store import Wanted
from art.errors import CheckpointMissingError, ConfigurationError
from art.extensions import PUBLISHER, load_extension
from art.process.environment import BACKUP_BUCKET, variable
from art.tracking.folders import stored_name
from art.tracking.progress import show_log
from art_extensions.buckets.bucket_pull import copy_checkpoint, local_checkpoint, newest_of
from art_extensions.buckets.bucket_push import local_steps
from art_extensions.buckets.transfers import store_of

if TYPE_CHECKING:
    from art.backend import AnyModel, AnyTrainableModel
    from art.client.backends.local_backend import LocalBackend
    from art.client.publishing import LoRADeploymentJob

log = logging.getLogger("art.client.storage")
"""Below `art`, so that `show_log` shows its lines."""


async def fork_checkpoint(
    self: LocalBackend,
    model: AnyModel,
    from_model: str,
    from_project: str | None = None,
    from_s3_bucket: str | None = None,
    not_after_step: int | None = None,
    verbose: bool = False,
    prefix: str | None = None,
) -> None:
    """`fork_checkpoint` of the newest step up to `not_after_step`, pulled from a bucket first if one is
    given.
    """
    project = from_project or model.project
    if from_s3_bucket is not None:
        wanted = Wanted(not_after=not_after_step, newest=not_after_step is None, side_files=False)
        await self._pull(project, from_model, wanted, from_s3_bucket, prefix, verbose)
    await self.fork_checkpoint(model, from_model, from_project=project, not_after_step=not_after_step)


async def pull_model_checkpoint(
    self: LocalBackend,
    model: AnyModel,
    *,
    step: int | Literal["latest"] | None = None,
    local_path: str | None = None,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    verbose: bool = False,
) -> str:
    """The folder of a checkpoint: here if it is here, else from the bucket. None and "latest": the newest
    of both; an untrained step 0 counts as none. local_path: a copy there, which is returned.
    """
    _check_step("step", step)
    folder = self._folder(model.project, stored_name(model))
    wanted_step = step if isinstance(step, int) else None
    if wanted_step is None:
        backed_up = s3_bucket or variable(BACKUP_BUCKET)
        place = (model.project, stored_name(model), s3_bucket, prefix)
        store = await asyncio.to_thread(store_of, *place) if backed_up else None
        wanted_step = await asyncio.to_thread(newest_of, folder, store)
    if wanted_step not in local_steps(folder):
        if not (s3_bucket or variable(BACKUP_BUCKET)):
            raise CheckpointMissingError(
                f"No checkpoints found for model {model.name} at step {wanted_step} in {folder}, and no "
                f"bucket is given. Available steps: {list(local_steps(folder))}"
            )
        wanted = Wanted(step=wanted_step, side_files=False)
        await self._pull(model.project, stored_name(model), wanted, s3_bucket, prefix, verbose)
    checkpoint = local_steps(folder)[wanted_step]
    if local_path is None:
        return str(checkpoint)
    return str(await asyncio.to_thread(copy_checkpoint, checkpoint, Path(local_path)))


def _check_step(option: str, step: int | str | None) -> None:
    if not (step is None or step == "latest" or (isinstance(step, int) and step >= 0)):
        raise ConfigurationError(f"{option}={step!r}: it is a number, 'latest' or None")


async def pull_from_s3(
    self: LocalBackend,
    model: AnyModel,
    *,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    verbose: bool = False,
    delete: bool = False,
    only_step: int | Literal["latest"] | None = None,
    step: int | None = None,
    exclude: Sequence[str] | None = None,
    latest_only: bool = False,
) -> None:
    """`pull_model`. only_step: this checkpoint, or the newest one, and no other file. A bucket without the
    model is no error where no step is named by its number: a first run pulls too.
    """
    for option, value in (("only_step", only_step), ("step", step)):
        _check_step(option, value)
    number = step if only_step is None else only_step
    warnings.warn(
        "_experimental_pull_from_s3 is an older name: use backend.pull_model, or "
        "_experimental_pull_model_checkpoint for one checkpoint",
        DeprecationWarning,
        stacklevel=2,
    )
    wanted = Wanted(
        step=number if isinstance(number, int) else None,
        newest=latest_only or number == "latest",
        side_files=only_step is None,
        delete=delete,
        exclude=tuple(exclude or ()),
    )
    try:
        await self._pull(model.project, stored_name(model), wanted, s3_bucket, prefix, verbose)
    except CheckpointMissingError as error:
        if wanted.step is not None:
            raise
        show_log()
        log.info("nothing was pulled: %s", error)


async def push_to_s3(
    self: LocalBackend,
    model: AnyModel,
    *,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    verbose: bool = False,
    delete: bool = False,
) -> None:
    """`push_model`."""
    await self.push_model(model, bucket=s3_bucket, prefix=prefix, verbose=verbose, delete=delete)


async def deploy(
    self: LocalBackend,
    deploy_to: str,
    model: AnyTrainableModel,
    step: int | None = None,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    verbose: bool = False,
    pull_s3: bool = True,
    wait_for_completion: bool = True,
) -> LoRADeploymentJob:
    """An older name of `art.utils.deployment.deploy_model`. pull_s3: take the checkpoint from the bucket
    where it is newer there, or not here.
    """
    if pull_s3:
        folder = Path(
            await pull_model_checkpoint(
                self, model, step=step, s3_bucket=s3_bucket, prefix=prefix, verbose=verbose
            )
        )
    else:
        folder = local_checkpoint(self._folder(model.project, stored_name(model)), step)
    job: LoRADeploymentJob = await load_extension(PUBLISHER, "deploy")(
        model,
        folder,
        int(folder.name),
        deploy_to,
        s3_bucket=s3_bucket,
        prefix=prefix,
        wait_for_completion=wait_for_completion,
        verbose=verbose,
    )
    return job
