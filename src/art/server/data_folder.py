"""The paths in the data folder, and the lock that lets one server at a time use it.

    {data_dir}/server/jobs.sqlite, tenants.json, logs/
    {data_dir}/{tenant}~{project}/models/...                       a tenant's project
    {data_dir}/{project}/models/{name}/registration.json
    {data_dir}/{project}/models/{name}/steps/0007/                 the record of a step
    {data_dir}/{project}/models/{name}/checkpoints/0007/           one committed step
    {data_dir}/{project}/models/{name}/checkpoints/.0008.saving    being written: no step yet
    {data_dir}/{project}/models/{name}/checkpoints/.0008.rejected-1
                                                                   its canary failed: never used

Every name from outside passes `check_name` before it becomes a path. The kernel drops the lock when its
holder dies.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from art.errors import FolderInUseError, RequestError
from art.process.files import close_to_others, disk_error, is_open_to_all, make_private_folder, take_lock
from art.process.running_server import LOCK_FILE
from art.server.tenancy import external_name, tenant_of
from art.wire.records import is_name

_LONGEST = 100
_RESERVED_PROJECTS = frozenset({"server"})


def check_name(what: str, value: str) -> str:
    """The value itself, when it is fit for a folder's name and a URL. Raises RequestError (400) otherwise."""
    if len(value) > _LONGEST or not is_name(value):
        raise RequestError(
            f"{what} {value[:_LONGEST]!r} is not a name: use at most {_LONGEST} letters, digits, '.', "
            f"'_' and '-', "
            "beginning with a letter or digit",
            status=400,
            code="invalid_name",
            param=what,
        )
    if what == "project" and value in _RESERVED_PROJECTS:
        raise RequestError(
            f"project {value!r} is the server's own folder; choose another name",
            status=400,
            code="invalid_name",
        )
    return value


@dataclass(frozen=True)
class DataLayout:
    """Paths below one data folder."""

    data_dir: Path

    @property
    def ledger_file(self) -> Path:
        return self.data_dir / "server" / "ledger.sqlite"

    @property
    def jobs_file(self) -> Path:
        return self.data_dir / "server" / "jobs.sqlite"

    def log_file(self, worker: str) -> Path:
        return self.data_dir / "server" / "logs" / f"{worker}.log"

    def probe_folder(self) -> Path:
        """A new name for an adapter that compares engine and trainer, and is gone soon."""
        return self.data_dir / "server" / f".probe-{secrets.token_hex(6)}"

    def model_dir(self, project: str, name: str) -> Path:
        """`project` as it is inside: a tenant's has the tenant in front."""
        tenant = tenant_of(project)
        if tenant is not None:
            check_name("tenant", tenant)
        check_name("project", external_name(tenant, project))
        return self.data_dir / project / "models" / check_name("name", name)

    def registration_file(self, project: str, name: str) -> Path:
        return self.model_dir(project, name) / "registration.json"

    def checkpoints_dir(self, project: str, name: str) -> Path:
        return self.model_dir(project, name) / "checkpoints"

    def origin_file(self, project: str, name: str) -> Path:
        """Returns the file with the checkpoint that the model was forked from, once it was."""
        return self.model_dir(project, name) / ".origin"

    def removals_file(self, project: str, name: str) -> Path:
        """Returns how many models of this name were removed, once one was."""
        return self.model_dir(project, name) / ".removals"

    def removed_dir(self, project: str, name: str) -> Path:
        """A fresh name for the checkpoints of a model that is being removed."""
        return self.model_dir(project, name) / f".removed-{secrets.token_hex(4)}"

    def removed_dirs(self) -> list[Path]:
        """The folders of removed models that a crash left."""
        return sorted(self.data_dir.glob("*/models/*/.removed-*"))

    def trained_here(self) -> Path | None:
        """Returns the evidence that a server has kept samples in this folder: its table of jobs, or a step
        that a job made of one of its models.
        """
        if _has_content(self.jobs_file):
            return self.jobs_file
        steps = (file.parent.glob("checkpoints/*/job.json") for file in self.registration_files())
        return next((note.parent for notes in steps for note in notes), None)

    def registration_files(self) -> list[Path]:
        """Returns the registration files of all models in the folder, in the order of their names."""
        return sorted(self.data_dir.glob("*/models/*/registration.json"))


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


PATIENCE_SECONDS = 2.0
"""A server that is just ending gets so long."""


class DataFolderLock:
    """The lock of a data folder, held from construction until `release` or the process's end."""

    def __init__(self, server_dir: Path, *, patience: float = PATIENCE_SECONDS) -> None:
        """patience: seconds to wait for a server that ends.

        Raises: FolderInUseError naming the folder and the process that holds it, DiskError."""
        lock = server_dir / LOCK_FILE
        try:
            make_private_folder(server_dir)
            close_to_others(server_dir)
            descriptor = take_lock(lock, patience=patience)
        except OSError as error:
            raise disk_error(error, server_dir, "the data folder cannot be used") from error
        if descriptor is None:
            holder = lock.read_bytes()[:32].decode("ascii", "replace").strip() or "unknown"
            raise FolderInUseError(
                f"the data folder {server_dir.parent} is in use by another server (process {holder}): "
                "use that one (art.LocalBackend attaches to it), end its program, or choose another folder"
            )
        self._descriptor = descriptor
        os.ftruncate(self._descriptor, 0)
        _close_older_files(server_dir)
        with contextlib.suppress(OSError):  # on a full disk the lock holds without the holder's name
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Releases the folder for another server."""
        os.close(self._descriptor)


def _close_older_files(server_dir: Path) -> None:
    """Takes what an earlier release left open from other users. Whoever shares it afterwards with a group
    may do so.
    """
    files = [*server_dir.glob("*.sqlite*"), *server_dir.parent.glob("*.sqlite*")]
    if any(is_open_to_all(file) for file in files):
        for path in (*files, *server_dir.parent.glob("*/models/*")):
            close_to_others(path)
