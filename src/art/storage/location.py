"""Where a model lies in a bucket and on this machine."""

from __future__ import annotations

from pathlib import Path

from art.environment import BACKUP_BUCKET, variable
from art.errors import ConfigurationError
from art.wire.naming import is_name


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


def model_folder(art_path: str | Path, project: str, name: str) -> Path:
    """`{art_path}/{project}/models/{name}`."""
    check_part("project", project)
    check_part("name", name)
    return Path(art_path) / project / "models" / name


def check_part(what: str, value: str) -> None:
    """One component of a path. Raises ConfigurationError for what would leave its folder."""
    if not is_name(value):
        raise ConfigurationError(
            f"{what} {value!r} is not a name: use letters, digits, '.', '_' and '-', beginning with a letter "
            "or digit"
        )
