"""A folder of files behind a URL: what a push and a pull need of `fsspec`, and where a model lies in it.

With deadlines, tries and errors that name the file.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from art.errors import (
    ConfigurationError,
    DeadlineError,
    ForbiddenBucketCreationError,
    StorageError,
    extra_needed,
    install_command,
)
from art.process.environment import BACKUP_BUCKET, variable
from art.tracking.folders import check_part

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def bucket_of(bucket: str | None) -> str:
    """The bucket that is meant: the one given, or `BACKUP_BUCKET`. Raises ConfigurationError for neither."""
    chosen = bucket or variable(BACKUP_BUCKET)
    if not chosen:
        raise ConfigurationError(
            "no bucket: give `s3_bucket=` (a name, or a URL such as s3://..., gs://..., file:///...), or set "
            f"{BACKUP_BUCKET}"
        )
    return chosen


def model_url(project: str, name: str, *, bucket: str | None = None, prefix: str | None = None) -> str:
    """`{bucket}/{prefix}/{project}/models/{name}`.

    >>> model_url("games", "agent", bucket="backups", prefix="runs/a")
    's3://backups/runs/a/games/models/agent'
    """
    root = bucket_of(bucket).rstrip("/")
    base = root if "://" in root else f"s3://{root}"
    parts = [part for part in (prefix or "").split("/") if part]
    for what, part in (*(("prefix", part) for part in parts), ("project", project), ("name", name)):
        check_part(what, part)
    return "/".join((base, *parts, project, "models", name))


@dataclass(frozen=True, kw_only=True)
class StorageLimits:
    """total_s: a whole push or pull. attempts: tries of one file, with a pause of `pause_s` that doubles.

    parallel: files at once. connect_s, read_s: of one request to S3, which `botocore` tries `requests` times.
    """

    total_s: float = 6 * 3600.0
    attempts: int = 3
    pause_s: float = 0.5
    parallel: int = 4
    connect_s: float = 10.0
    read_s: float = 60.0
    requests: int = 3


_log = logging.getLogger(__name__)

Result = TypeVar("Result")
OnProgress = Callable[[int, int], None]
"""`told(done, total)`: how far a transfer is, in checkpoints."""
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Trying again does not help."""
_S3 = ("s3", "s3a")
_USER = re.compile(r"//[^/@]*@")


class Store:
    """Files below `url`, by their relative paths. Blocks; not for an event loop's own thread."""

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        limits: StorageLimits | None = None,
    ) -> None:
        """Raises ConfigurationError when the URL's file system is unknown or not installed."""
        self.limits = limits or StorageLimits()
        self.url = _USER.sub("//", url).rstrip("/")
        """The URL without user and password, as messages show it."""
        self._until = time.monotonic() + self.limits.total_s
        self._fs, self._root = _file_system(url, dict(storage_options or {}), self.limits)
        self._root = self._root.rstrip("/")

    # -- one file --

    def sizes(self) -> dict[str, int]:
        """Every file below the URL and its size in bytes; empty when nothing is there."""
        try:
            found = self._try("list", "", lambda: self._fs.find(self._root, detail=True))
        except FileNotFoundError:
            return {}
        start = len(self._root) + 1
        rows = {path[start:]: int(row.get("size") or 0) for path, row in found.items()}
        return {path: size for path, size in rows.items() if path}

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError, StorageError."""
        content: bytes = self._try("read", path, lambda: self._fs.cat_file(self._full_path(path)))
        return content

    def write(self, path: str, content: bytes) -> None:
        """Raises StorageError."""
        self._try("write", path, lambda: self._fs.pipe_file(self._full_path(path), content))

    def upload(self, file: Path, path: str) -> None:
        """Raises StorageError, and FileNotFoundError when `file` is gone."""
        self._try("upload", path, lambda: self._fs.put_file(str(file), self._full_path(path)))

    def download(self, path: str, file: Path) -> None:
        """Raises StorageError, FileNotFoundError."""
        self._try("download", path, lambda: self._fs.get_file(self._full_path(path), str(file)))

    def copy(self, path: str, target: str) -> None:
        """Copies a file there. Raises StorageError, FileNotFoundError."""
        self._try("copy", path, lambda: self._fs.cp_file(self._full_path(path), self._full_path(target)))

    def remove(self, path: str) -> None:
        """A file that is not there is removed already."""
        try:
            self._try("remove", path, lambda: self._fs.rm_file(self._full_path(path)))
        except FileNotFoundError:
            _log.debug("%s was removed already", path)

    def signed_url(self, path: str, seconds: int) -> str:
        """A URL that gives the file to whoever has it, for so long.

        Raises ConfigurationError where the file system knows no such thing.
        """
        try:
            return str(
                self._try("sign", path, lambda: self._fs.sign(self._full_path(path), expiration=seconds))
            )
        except NotImplementedError as error:
            raise ConfigurationError(
                f"{self.url!r} has no signed URLs, from which the provider reads the adapter: take an S3 "
                "bucket"
            ) from error

    def make_bucket(self) -> None:
        """Make the bucket of an S3 URL where it is missing. Raises ForbiddenBucketCreationError."""
        bucket = self._root.partition("/")[0]
        if not set(_S3).intersection(_protocols(self._fs)):
            return
        try:
            if self._try("find the bucket of", "", lambda: self._fs.exists(bucket)):
                return
        except PermissionError:
            return  # it exists; what may be done in it, its files will tell
        try:
            self._try("make the bucket of", "", lambda: self._fs.mkdir(bucket))
        except PermissionError as error:
            raise ForbiddenBucketCreationError(
                f"bucket {bucket!r} does not exist, and these credentials may not make it ({error}): make it "
                "yourself, or name another one"
            ) from error

    def stop(self) -> None:
        """Ends all waiting: every later operation raises DeadlineError."""
        self._until = time.monotonic()

    # -- several at once --

    def run_each(self, work: Callable[[str], Result], names: list[str]) -> list[Result]:
        """`work(name)` for each, a few at once, in the order of the names. The first failure ends it."""
        pool = ThreadPoolExecutor(max_workers=self.limits.parallel, thread_name_prefix="storage")
        try:
            futures: list[Future[Result]] = [pool.submit(work, name) for name in names]
            done, _ = wait(futures, timeout=self._seconds_left(), return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if len(done) < len(futures):
                raise self._deadline_error("")
            return [future.result() for future in futures]
        finally:
            # What has not begun never does; what has begun ends by its own deadline.
            pool.shutdown(wait=False, cancel_futures=True)

    def _try(self, what: str, path: str, call: Callable[[], Result]) -> Result:
        """A call, again after a failure that may pass.

        Raises the file system's FileNotFoundError and PermissionError as they are, else StorageError.
        """
        pause = self.limits.pause_s
        for attempt in range(1, self.limits.attempts + 1):
            if self._seconds_left() <= 0:
                raise self._deadline_error(path)
            try:
                return call()
            except _FINAL:
                raise
            except NotImplementedError:
                raise
            except Exception as error:
                if attempt == self.limits.attempts:
                    raise StorageError(
                        f"could not {what} {self._quoted_url(path)} in {attempt} attempts: "
                        f"{type(error).__name__}: {error}"
                    ) from error
                _log.warning("%s %s, attempt %d: %r", what, self._quoted_url(path), attempt, error)
            time.sleep(max(0.0, min(pause, self._seconds_left())))
            pause *= 2
        raise AssertionError("attempts is at least 1")

    def _seconds_left(self) -> float:
        return self._until - time.monotonic()

    def _deadline_error(self, path: str) -> DeadlineError:
        return DeadlineError(f"{self._quoted_url(path)} was not done within {self.limits.total_s:g} s")

    def _full_path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _quoted_url(self, path: str) -> str:
        return repr(f"{self.url}/{path}" if path else self.url)


def _file_system(url: str, options: dict[str, Any], limits: StorageLimits) -> tuple[AbstractFileSystem, str]:
    with extra_needed("s3", repr(_USER.sub("//", url))):
        from fsspec.core import url_to_fs
    protocol, shown = url.partition("://")[0], _USER.sub("//", url)
    if protocol in _S3:
        usual = {
            "connect_timeout": limits.connect_s,
            "read_timeout": limits.read_s,
            "retries": {"max_attempts": limits.requests, "mode": "standard"},
        }
        options = {"config_kwargs": usual, **options}
    if protocol in ("file", "local"):
        options = {"auto_mkdir": True, **options}
    try:
        # A fresh one: others may have listed the bucket before it changed.
        file_system, root = url_to_fs(url, skip_instance_cache=True, use_listings_cache=False, **options)
    except ImportError as error:
        raise ConfigurationError(
            f"{shown!r} needs a package that is not installed: {error}. "
            f"For s3:// run: {install_command('s3')}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{shown!r} is no address of files: {error}") from error
    if protocol in _S3:
        file_system.retries = limits.requests  # beside botocore's and our own
    return file_system, root


def _protocols(file_system: AbstractFileSystem) -> tuple[str, ...]:
    found = file_system.protocol
    return (found,) if isinstance(found, str) else tuple(found)
