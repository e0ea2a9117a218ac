"""The server's settings, and the only place of the project that reads the environment.

A parent process hands them over as one JSON line on standard input; `art serve` builds the same record from
its options. Unknown names are refused.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from art.errors import ConfigurationError
from art.process.disk import disk_error
from art.process.durable import write_first
from art.server.control_settings import ControlSettings
from art.server.jobs.teacher_settings import TeacherSettings
from art.wire.flaws import flaws_without_values
from art.wire.strict import Strict

KEY_VARIABLE = "ART_API_KEY"
TEACHER_KEY_VARIABLE = "ART_TEACHER_KEY"
TEACHER_URL_VARIABLE = "ART_TEACHER_URL"
SHORTEST_KEY = 8
"""Characters."""


def _origin(value: str) -> str:
    if value != "*" and re.fullmatch(r"https?://[^/\s*?#@]+", value) is None:
        raise ValueError(
            "an origin is http:// or https://, a host and perhaps a port, with nothing behind it"
        )
    return value


Origin = Annotated[str, AfterValidator(_origin)]


class EngineSettings(Strict):
    """Which engine serves the base models."""

    name: str = "builtin"
    options: dict[str, Any] = Field(default_factory=dict)
    """Handed to the engine's worker, which refuses what it does not know."""
    replicas: int = Field(default=1, ge=1, le=64)
    """Engine processes for each base model, behind one address."""
    devices: list[str] | None = None
    """Where each replica computes, such as `["cuda:0", "cuda:1"]`; None: all where `options` say."""


class TrainerSettings(Strict):
    """How trainer workers are started."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Handed to the trainer's worker, which refuses what it does not know."""


class LimitSettings(Strict):
    """Bounds on what a request may ask for and on what the server keeps in memory."""

    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    max_n: int = Field(default=128, ge=1)
    """Completions of one request."""
    tenant_in_flight: int = Field(default=1024, ge=1)
    """Requests, and completions, of one tenant at a time; more are refused with 429. Not the operator's."""
    keep_alive: float = Field(default=75.0, gt=0)
    """Seconds an idle connection is kept open."""
    max_head_bytes: int = Field(default=64 * 1024, ge=1024)
    """Request line and headers together."""
    head_seconds: float = Field(default=20.0, gt=0)
    """Seconds within which they must come, on a new connection and once a request has begun."""
    remembered_tokens: int = Field(default=16_000_000, ge=0)
    """Ids of answered conversations kept in memory for stitching; older ones are read from the ledger."""
    stored_responses: int = Field(default=64 * 1024 * 1024, ge=0)
    """Bytes of responses (/v1/responses) kept in memory to be continued by their id; the oldest go first."""
    rollout_text_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """What one scoped rollout may say and be told, as text kept until its trajectory is made."""


class ServerSettings(Strict):
    """Everything a server is told at its start."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free port; the ready line names it."""
    key: str | None = Field(default=None, min_length=SHORTEST_KEY, repr=False)
    """The bearer key of every route. None: from the environment, or one made and kept in the data folder."""
    data_dir: Path = Path(".art")
    allow_origins: list[Origin] = Field(default_factory=list)
    """Pages of browsers that may ask: `https://chat.example.org`; `*`, where it is said, is every page."""
    engine: EngineSettings = EngineSettings()
    trainer: TrainerSettings = TrainerSettings()
    limits: LimitSettings = LimitSettings()
    control: ControlSettings = ControlSettings()
    teacher: TeacherSettings = TeacherSettings()

    @property
    def server_dir(self) -> Path:
        """The server's own folder: ledger, jobs, logs, lock and key."""
        return self.data_dir / "server"


def parse_settings(line: bytes | str) -> ServerSettings:
    """Settings from one JSON line. Raises: ConfigurationError, naming what is wrong, never a value."""
    try:
        return ServerSettings.model_validate_json(line)
    except ValidationError as error:
        # Values stay out of the message: one of them is the key.
        known = ", ".join(ServerSettings.model_fields)
        raise ConfigurationError(
            f"server settings refused: {flaws_without_values(error)}. Known settings: {known}"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def resolve_key(settings: ServerSettings) -> str:
    """The bearer key: given, from the environment, or made once and kept (mode 0600) in the data folder.

    Raises: ConfigurationError when other machines could connect and nobody chose a key.
    """
    given = settings.key or os.environ.get(KEY_VARIABLE)
    if given:
        if not is_key(given):
            raise ConfigurationError(
                f"the key in {KEY_VARIABLE} must be at least {SHORTEST_KEY} printable ASCII characters "
                "without spaces"
            )
        return given
    if not is_loopback(settings.host):
        raise ConfigurationError(
            f"host {settings.host!r} can be reached from other machines: choose a key, in the environment "
            f"variable {KEY_VARIABLE}, or listen on 127.0.0.1"
        )
    return _kept_key(settings.server_dir / "key")


def resolve_teacher(settings: ServerSettings) -> TeacherSettings:
    """The teacher's settings, its key and one more endpoint from the environment where they are not given."""
    given = settings.teacher
    url = os.environ.get(TEACHER_URL_VARIABLE)
    key = given.key or os.environ.get(TEACHER_KEY_VARIABLE) or None
    return given.model_copy(update={"urls": [*given.urls, *([url] if url else [])], "key": key})


def key_source(settings: ServerSettings) -> str:
    """Where the key comes from, for people; never the key itself."""
    if settings.key:
        return "the settings"
    if os.environ.get(KEY_VARIABLE):
        return f"the environment variable {KEY_VARIABLE}"
    return str(settings.server_dir / "key")


def is_key(value: str) -> bool:
    """Whether a text may be a key: what everybody could guess, or no header can hold, is none."""
    return len(value) >= SHORTEST_KEY and value.isascii() and value.isprintable() and " " not in value


def _kept_key(path: Path) -> str:
    try:
        if not path.exists():
            write_first(path, f"art-{secrets.token_urlsafe(32)}\n", mode=0o600)
        key = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        key = ""
    except OSError as error:
        raise disk_error(error, path, "the server's key cannot be kept") from error
    if not is_key(key):
        raise ConfigurationError(
            f"{path} holds no key of at least {SHORTEST_KEY} printable ASCII characters: it was cut, or "
            f"written by something else. Delete the file for a new key, restore it, or set {KEY_VARIABLE}"
        )
    return key
