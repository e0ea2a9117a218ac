"""`art resume`: training jobs that a stopped server left unfinished are trained to their end.

They wait for the program that sent them, which goes on with them when it registers its model again. This verb
is for jobs whose program will not come back.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli.model_summaries import Url, read_summaries, server_backend
from art.cli.model_verbs import DataDir, readable_errors
from art.cli.run_options import DATA_DIR
from art.errors import require_extra

if TYPE_CHECKING:
    from art.client.backends.remote_backend import RemoteBackend
    from art.wire.models import ModelSummary


def resume(
    model: Annotated[str | None, typer.Argument(help="The model, PROJECT/NAME. Default: all models.")] = None,
    data_dir: DataDir = DATA_DIR,
    url: Url = None,
) -> None:
    """Finish training jobs that a stopped server left unfinished. Without MODEL those of all models.

    You do not need it for a program that you start again: it goes on with its own jobs.
    """
    from art.wire.models import find_summary

    with readable_errors():
        found = read_summaries(data_dir, url)
        asked = found if model is None else [find_summary(model, found)]
        if not asyncio.run(_resume(asked, data_dir, url)):
            typer.echo("Nothing to resume: no training job is unfinished.")


async def _resume(asked: list[ModelSummary], data_dir: Path, url: str | None) -> int:
    """Returns the number of jobs. Raises the error of a job that fails."""
    if not asked:
        return 0
    async with AsyncExitStack() as stack:
        backend: RemoteBackend
        if url is not None:
            backend = await stack.enter_async_context(server_backend(url))
        else:
            require_extra("local", "art resume", remedy=". For a server on another machine, use --url")
            from art.client.backends.local_backend import LocalBackend

            backend = await stack.enter_async_context(LocalBackend(path=data_dir))
        return sum([await _resume_model(backend, one) for one in asked])


async def _resume_model(backend: RemoteBackend, model: ModelSummary) -> int:
    from art.client.http.connection import named_path
    from art.client.requests.jobs import JobDeadlines, follow_job
    from art.tracking.progress import open_progress
    from art.wire.models import ModelInfo

    info = await backend._connection.call("GET", named_path(model.project, model.name), ModelInfo)
    for job_id in info.unfinished_jobs:
        with open_progress(f"{model.key}, job {job_id}", None) as progress:
            # Whoever follows a job's events wants it: the server resumes it.
            done = await follow_job(
                backend._connection,
                job_id,
                lambda event: progress.move_to(event.done, event.total, event.phase),
                JobDeadlines(),
            )
        typer.echo(f"{model.key}: job {job_id} made step {done.step}")
    return len(info.unfinished_jobs)
