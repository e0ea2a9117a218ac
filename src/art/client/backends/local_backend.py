"""`LocalBackend`: a server of our own on this machine, reached like any other.

With it, a local model's checkpoints: copied to buckets and back, given to providers, and adapters from
elsewhere on this machine put where the server may read them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from art.client.backends.local_server import SupervisorLimits, check_options, local_server
from art.client.backends.remote_backend import FORK_S, RemoteBackend
from art.client.http.connection import PerLoop, ServerConnection, named_path
from art.client.requests.jobs import JobDeadlines
from art.client.requests.registration import ServerConfig
from art.client.storage.bucket_store import Wanted
from art.compat.deferred_method import DeferredMethod
from art.errors import ARTError, ConfigurationError, require_extra
from art.extensions import MIGRATION, STORAGE, load_extension, load_extensions
from art.process.files import create_private, make_private_folder
from art.process.running_server import SERVER_OPTIONS
from art.tracking.folders import model_folder, stored_name
from art.tracking.model_files import delete_logs, write_model_file
from art.types import LocalTrainResult
from art.wire.jobs import TrainResultInfo
from art.wire.models import ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdoptReply, AdoptRequest, ModelSummary

if TYPE_CHECKING:
    from art.backend import AnyModel, AnyTrainableModel
    from art.client.storage.bucket_store import PullReport, PushReport


_OLDER = "art_extensions.buckets.checkpoint_methods"
ADAPTER_FILES = (ADAPTER_CONFIG_FILE, ADAPTER_FILE)
"""What PEFT writes."""


def copy_reference_adapter(data_dir: Path, project: str, path: Path) -> Path:
    """The folder itself where it lies in the project; otherwise a copy, named by what it holds, in
    `server/references`. Raises ConfigurationError when it holds no LoRA.
    """
    folder = path.expanduser().resolve()
    missing = [name for name in ADAPTER_FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"train(kl_ref_adapter_path={str(path)!r}): {folder} has no {' and no '.join(missing)}; it is to "
            "be the folder of a LoRA, as PEFT writes it"
        )
    if folder.is_relative_to((data_dir / project).resolve()):
        return folder
    digest = hashlib.sha256()
    for name in ADAPTER_FILES:
        digest.update((folder / name).read_bytes())
    copy = data_dir / "server" / "references" / digest.hexdigest()[:32]
    if not copy.is_dir():
        partial = copy.with_name(f".{copy.name}.{uuid4().hex[:8]}")
        make_private_folder(partial)
        for name in ADAPTER_FILES:
            create_private(partial / name)
            shutil.copyfile(folder / name, partial / name)
        if copy.is_dir():  # somebody else was faster
            shutil.rmtree(partial)
        else:
            partial.rename(copy)
    return copy


log = logging.getLogger(__name__)

_ELSEWHERE = ". For a server on another machine, use art.RemoteBackend(base_url, api_key)"


class LocalBackend(RemoteBackend):
    """Sample and train on this machine: a server in a process of its own, started when it is first needed.

    path: where models, checkpoints and logs are kept (`.art` in the current folder). gpu_cost_per_hour_usd:
    of one GPU; each logged training step then tells `costs/gpu`. server_options: `engine`, `trainer`,
    `control`, `limits`, `teacher` and `allow_origins` of the server's settings. cluster: the Ray cluster
    whose nodes run the workers, `"auto"` or `"HOST:6379"`, or all its settings (`{"address": "auto",
    "engine": {"gpus": 1}}`); None: this machine runs them. in_process and enable_expert_replay have no
    effect, and are there for other programs: the server always has a process of its own, and the trainer
    computes the routing of a mixture of experts again.

    The server ends with `close()`, with the `with` block, or with the program, whichever comes first. One
    that died is started again with its models, and training jobs that are waited for go on. Backends on one
    folder share one server, also those of other programs and the one of `art serve`: the second attaches to
    it. When the first program ends, the second starts the successor at the same address, with the same key.
    The log has a link to the pages of the runs, which opens one browser.
    """

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        in_process: bool = False,
        gpu_cost_per_hour_usd: float | None = None,
        server_options: Mapping[str, Any] | None = None,
        cluster: str | Mapping[str, Any] | None = None,
        deadlines: JobDeadlines | None = None,
        supervisor_limits: SupervisorLimits | None = None,
        enable_expert_replay: bool = True,
    ) -> None:
        if in_process:
            log.info("in_process=True has no effect: the server always has a process of its own")
        require_extra("local", "LocalBackend()", remedy=_ELSEWHERE)
        options = dict(server_options or {})
        check_options(options, SERVER_OPTIONS)
        if cluster is not None:
            require_extra("cluster", f"LocalBackend(cluster={cluster!r})")
            options["cluster"] = {"address": cluster} if isinstance(cluster, str) else dict(cluster)
        super().__init__("http://127.0.0.1", "", deadlines=deadlines)
        self._path = Path(path or ".art").absolute()
        self.gpu_cost_per_hour_usd = gpu_cost_per_hour_usd
        self._shared = local_server(self._path, options, supervisor_limits)
        self._server, self._registered = self._shared.process, self._shared.registered
        self._starting = PerLoop(asyncio.Lock)
        self._connection = ServerConnection(self._address, self._revive, self._server.state)

    async def _address(self) -> tuple[str, str]:
        await self._ensure_server()
        return self._server.url, self._server.key

    async def _revive(self) -> None:
        await self._ensure_server()

    async def _ensure_server(self) -> None:
        self._connection.check_open()
        if self._shared.is_ready:
            return
        # One thread for all who wait: they are as many as there are rollouts.
        async with self._starting.get():
            if not self._shared.is_ready:
                await asyncio.to_thread(self._shared.bring_up)

    async def _start_server(self, begin_phase: Callable[[str], None]) -> None:
        if not self._shared.is_ready:
            begin_phase("starting the server")
            await self._ensure_server()
            with suppress(ARTError):  # another release's server, or one that has no pages
                log.info("see the runs in a browser: %s", await self.pages_link())

    async def register(self, model: AnyModel) -> None:
        """Make the model known; its files are kept in the backend's folder.

        Logs and checkpoints that an older program left there are brought into today's layout first.
        """
        model.base_path = str(self._path)
        folder = model_folder(self._path, model.project, stored_name(model))
        for migrate in load_extensions(MIGRATION).values():
            await asyncio.to_thread(migrate, folder)
        await super().register(model)
        write_model_file(model)

    def _place(self, server: ServerConfig) -> None:
        own = {"host": self._server.host, "port": self._server.port, "api_key": self._server.key}
        other = {name: value for name, value in server.place.items() if value != own[name]}
        if other and self._server.port:
            raise ConfigurationError(
                f"_openai_client_config['server_args'] gives another {' and '.join(other)}, but the server "
                f"of this backend runs already, at {self._server.url}; give it with the first register, or "
                "make another LocalBackend"
            )
        self._server.host = server.host or self._server.host
        self._server.port = server.port or self._server.port
        self._server.key = server.api_key or self._server.key

    async def _reference_folder(self, model: AnyTrainableModel, path: str) -> str:
        return str(await asyncio.to_thread(copy_reference_adapter, self._path, model.project, Path(path)))

    def _result(self, info: TrainResultInfo, metrics: dict[str, float]) -> LocalTrainResult:
        return LocalTrainResult(info.step, metrics, sheet=info.sheet, checkpoint_path=info.checkpoint_path)

    # -- buckets --

    async def push_model(
        self,
        model: AnyModel,
        *,
        bucket: str | None = None,
        prefix: str | None = None,
        delete: bool = False,
        exclude: Collection[str] = (),
        verbose: bool = False,
    ) -> PushReport:
        """Copy the model's checkpoints, history and trajectories to a bucket: what changed, and no key.

        bucket: a name (of S3), any URL that fsspec knows, or None for `BACKUP_BUCKET`. delete: what is not
        here goes there too. Raises StorageError, ForbiddenBucketCreationError, CheckpointMissingError,
        ConfigurationError, DeadlineError.
        """
        push = load_extension(STORAGE, "push")
        report: PushReport = await push(
            self._folder(model.project, stored_name(model)),
            (model.project, stored_name(model)),
            bucket=bucket,
            prefix=prefix,
            delete=delete,
            exclude=exclude,
            shown=f"push {model.name}" if verbose else None,
        )
        return report

    async def pull_model(
        self,
        model: AnyModel,
        *,
        bucket: str | None = None,
        prefix: str | None = None,
        step: int | None = None,
        latest_only: bool = False,
        delete: bool = False,
        exclude: Collection[str] = (),
        verbose: bool = False,
    ) -> PullReport:
        """Copy a model from a bucket into this backend's folder; it then goes on exactly where it stood.

        step, latest_only: this checkpoint alone, or the newest alone. delete: what is not there goes here
        too. A running job is waited for. Raises CheckpointMissingError, StepMissingError, StorageError (also
        when both went on by themselves), ConfigurationError, DeadlineError.
        """
        wanted = Wanted(step=step, newest=latest_only, delete=delete, exclude=tuple(exclude))
        return await self._pull(model.project, stored_name(model), wanted, bucket, prefix, verbose)

    async def _pull(
        self,
        project: str,
        name: str,
        wanted: Wanted,
        bucket: str | None,
        prefix: str | None,
        verbose: bool,
    ) -> PullReport:
        pull, loop = load_extension(STORAGE, "pull"), asyncio.get_running_loop()
        path = f"{named_path(project, name)}/adopt"

        def commit(steps: Sequence[int], set_aside: Sequence[int]) -> None:
            # The server moves them: only it knows whether the model is being trained.
            asked = AdoptRequest(steps=list(steps), set_aside=list(set_aside))
            call = self._connection.call("POST", path, AdoptReply, asked, deadline_s=FORK_S)
            asyncio.run_coroutine_threadsafe(call, loop).result(FORK_S + 60)

        report: PullReport = await pull(
            self._folder(project, name),
            (project, name),
            wanted,
            commit,
            bucket=bucket,
            prefix=prefix,
            shown=f"pull {name}" if verbose else None,
        )
        return report

    def _folder(self, project: str, name: str) -> Path:
        return model_folder(self._path, project, name)

    async def delete_model(
        self, model: AnyModel | str, *, dry_run: bool = False, logs: bool = False
    ) -> ModelSummary:
        """Delete a model, given itself or as `"project/name"`, with its checkpoints; returns what is deleted.

        logs: its trajectories, history and state, too; without it they stay. dry_run: delete nothing. Raises
        NotFoundError when it is not registered, RequestError while a training job of it is unfinished.
        """
        deleted = await super().delete_model(model, dry_run=dry_run)
        if logs and not dry_run:
            await asyncio.to_thread(delete_logs, self._folder(deleted.project, deleted.name))
        return deleted

    async def close(self) -> None:
        """End the server and its workers."""
        await super().close()
        await asyncio.to_thread(self._server.stop)

    def __enter__(self) -> LocalBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.refuse_calls()
        self._server.stop()

    async def __aenter__(self) -> LocalBackend:
        return self

    # By these names notebooks reach checkpoints.
    _choose_runtime = DeferredMethod("art_extensions.compat.external_vllm:choose_runtime")
    _experimental_fork_checkpoint = DeferredMethod(f"{_OLDER}:fork_checkpoint")
    _experimental_pull_model_checkpoint = DeferredMethod(f"{_OLDER}:pull_model_checkpoint")
    _experimental_pull_from_s3 = DeferredMethod(f"{_OLDER}:pull_from_s3")
    _experimental_push_to_s3 = DeferredMethod(f"{_OLDER}:push_to_s3")
    _experimental_deploy = DeferredMethod(f"{_OLDER}:deploy")
