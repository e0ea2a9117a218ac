"""The server's settings: the only module that reads the environment.

A parent process hands `ServerSettings` over as one JSON line on standard input; `art serve` builds the same
record from its options. Unknown names are refused. Every wait of the control half has a deadline in
`ControlSettings`; times are in seconds.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from art.errors import ConfigurationError
from art.process.files import disk_error, write_first
from art.server.cluster_settings import ClusterSettings
from art.wire.engine import Transfer
from art.wire.models import SHORTEST_KEY
from art.wire.records import Strict, flaws_without_values
from art.wire.training import Sharding


class ControlSettings(Strict):
    """Defaults fit a laptop and a GPU machine alike; a large model needs a longer `start`."""

    serve_registered: bool = False
    """Serve the models of the data folder from the start on, not only when they are registered again."""
    base_models: list[str] = Field(default_factory=list)
    """Base models served under their own names from the start on."""
    models: list[str] = Field(default_factory=list)
    """Names `project/name`: of the data folder's models, serve these from the start on. Empty: all."""
    resume_jobs: bool = False
    """Go on at once with the training jobs that an earlier server left unfinished. Otherwise each waits for
    its program. Servers that share a database do so in any case: one takes over from another."""
    new_ledger: bool = False
    """Begin a new ledger where the folder's is lost. Otherwise the server refuses to start without it."""
    start: float = Field(default=300.0, gt=0)
    """Seconds until a worker must serve, its model loaded."""
    stop: float = Field(default=10.0, gt=0)
    """Seconds until a worker must have ended after its stdin was closed."""
    ending: float = Field(default=60.0, gt=0)
    """Seconds from SIGTERM or the end of stdin to the end of the process, whatever is stuck in it."""
    health_interval: float = Field(default=2.0, gt=0)
    health_deadline: float = Field(default=60.0, gt=0)
    """A worker that has not answered for so long has stalled: its stacks are kept, it is started again."""
    restarts: int = Field(default=5, ge=0)
    """The number of restarts within ten minutes after which the worker is given up."""
    restart_wait: float = Field(default=0.2, ge=0)
    """The seconds before the first restart; they double with each restart, up to ten seconds."""
    call: float = Field(default=120.0, gt=0)
    """Longest wait for a worker to open, save, score or load."""
    train_idle: float = Field(default=600.0, gt=0)
    """Longest silence of a running training step; then the trainer has stalled."""
    job: float = Field(default=6 * 3600.0, gt=0)
    """Longest run of one attempt at a training job."""
    job_attempts: int = Field(default=3, ge=1)
    """How often a job is tried when a worker fails under it."""
    queued_jobs: int = Field(default=64, ge=1)
    """Unfinished training jobs of one model; more are refused with 429."""
    tenant_models: int = Field(default=100, ge=1)
    """Registered models of one tenant; more are refused with 403. Not the operator's."""
    heartbeat: float = Field(default=5.0, gt=0)
    """A blank line in an event stream that has nothing to tell."""
    drain: float = Field(default=600.0, gt=0)
    """Longest wait for the last request of an old adapter."""
    keep_loaded: int = Field(default=3, ge=1)
    """Newest steps of a model that stay in the engine; older ones are loaded again when asked for."""
    parity: Literal["refuse", "warn"] = "refuse"
    """What becomes of a model whose engine and trainer compute different logprobs when it is first served."""
    sleep_engine: Literal["auto", "always", "never"] = "auto"
    """Whether the engine gives its memory back while a step is trained; requests wait until it is saved.
    auto: where an engine and the trainer share a GPU."""
    max_off_policy_steps: int = Field(default=16, ge=0)
    """Rollouts with samples of older steps than so many before the current one are not trained: they are
    stale, whatever a job allows."""
    keep_samples_steps: int | None = Field(default=None, ge=1)
    """Samples of a model's older steps than so many are removed from the ledger. Samples stay that a kept
    checkpoint's step or an unfinished job names, and those of the newest `max_off_policy_steps`. None: all
    stay."""
    token_steps: int = Field(default=100, ge=0)
    """The number of a model's newest steps whose records of tokens are kept; older ones are deleted. 0: no
    step has one."""
    replay_steps: int = Field(default=0, ge=0)
    """The number of a model's newest steps whose whole requests are kept, so that they can be done again. 0:
    the table of jobs alone has requests, and of one of more than 1 MiB the settings only."""
    token_record: float = Field(default=30.0, gt=0)
    """Longest wait for the trainer to hand out the record of a step's tokens; without it the step goes on."""


class TeacherSettings(Strict):
    """A training job names its teacher's URL: one on this machine, or one of those listed here."""

    urls: list[str] = Field(default_factory=list)
    """Endpoints such as "https://teacher.example.org/v1". The key is sent to these alone."""
    key: str | None = Field(default=None, repr=False)
    concurrency: int = Field(default=8, ge=1)
    """Requests at once."""
    request: float = Field(default=300.0, gt=0)
    """Deadline of one request."""
    total: float = Field(default=3600.0, gt=0)
    """Deadline of a whole batch."""
    attempts: int = Field(default=5, ge=1)
    """How often a request is tried when the teacher is full (429), fails (5xx) or does not answer."""
    retry_wait: float = Field(default=1.0, ge=0)
    """The seconds before the second attempt; they double from then on, unless the teacher says how long."""


KEY_VARIABLE = "ART_API_KEY"
TEACHER_KEY_VARIABLE = "ART_TEACHER_KEY"
TEACHER_URL_VARIABLE = "ART_TEACHER_URL"
DATABASE_VARIABLE = "ART_DATABASE_URL"


def _origin(value: str) -> str:
    if value != "*" and re.fullmatch(r"https?://[^/\s*?#@]+", value) is None:
        raise ValueError(
            "an origin is http:// or https://, a host and perhaps a port, with nothing behind it"
        )
    return value


Origin = Annotated[str, AfterValidator(_origin)]


class EngineSettings(Strict):
    """The engine that serves the base models, and its options."""

    name: str = "builtin"
    options: dict[str, Any] = Field(default_factory=dict)
    """Handed to the engine's worker, which refuses what it does not know."""
    replicas: int = Field(default=1, ge=1)
    """Engine processes for each base model, behind one address."""
    devices: list[str] | None = None
    """Where each replica computes, such as `["cuda:0", "cuda:1"]`; None: all where `options` say."""
    transfer: Transfer = "shelf"
    """How a new adapter comes to the engines: `shelf`, as a folder, which reaches other machines by its
    content."""


class TrainerSettings(Strict):
    """The settings of trainer workers.

    >>> TrainerSettings(ranks=8, nodes=2, sharding="fsdp").nodes
    2
    """

    options: dict[str, Any] = Field(default_factory=dict)
    """Handed to the trainer's worker, which refuses what it does not know."""
    ranks: int = Field(default=1, ge=1, le=1024)
    """Processes that train together, each with a GPU of its own where there are GPUs."""
    nodes: int = Field(default=1, ge=1, le=1024)
    """Machines that they are spread over evenly; more than one needs a cluster."""
    sharding: Sharding = "none"
    """fsdp: each rank keeps a part of the base model, for one that does not fit a GPU."""

    @model_validator(mode="after")
    def _ranks_fit(self) -> TrainerSettings:
        if self.ranks % self.nodes:
            raise ValueError(
                f"trainer.ranks {self.ranks} cannot be spread evenly over trainer.nodes {self.nodes}: give a "
                "multiple of nodes"
            )
        device = str(self.options.get("device", ""))
        if self.ranks > 1 and device.startswith("cuda:"):
            raise ValueError(
                f"trainer.options.device {device!r} is one GPU for trainer.ranks {self.ranks}: give 'cuda', "
                "and each rank takes its own"
            )
        if self.sharding != "none" and self.ranks == 1:
            raise ValueError(
                f"trainer.sharding {self.sharding!r} divides the base model among ranks, and trainer.ranks "
                "is 1: give at least 2, or leave sharding out"
            )
        return self


class LimitSettings(Strict):
    """Bounds on what a request may ask for and on what the server keeps in memory."""

    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    max_n: int = Field(default=128, ge=1)
    """Completions of one request."""
    tenant_in_flight: int = Field(default=1024, ge=1)
    """Requests, and completions, of one tenant at a time; more are refused with 429. Not the operator's."""
    tenant_body_bytes: int = Field(default=256 * 1024 * 1024, ge=1024)
    """Bytes of request bodies of one tenant at a time; more are refused with 429. Not the operator's."""
    body_bytes: int = Field(default=1024 * 1024 * 1024, ge=1024)
    """Bytes of the bodies of all requests at a time; more are refused with 429."""
    keep_alive: float = Field(default=75.0, gt=0)
    """Seconds an idle connection is kept open."""
    max_head_bytes: int = Field(default=64 * 1024, ge=1024)
    """Request line and headers together."""
    head_seconds: float = Field(default=20.0, gt=0)
    """Seconds within which they must come, on a new connection and once a request has begun."""
    remembered_tokens: int = Field(default=16_000_000, ge=0)
    """Ids of answered conversations kept in memory for stitching, four bytes each; a reply counts as 240
    more. Older ones are read from the ledger."""
    stored_responses: int = Field(default=64 * 1024 * 1024, ge=0)
    """Bytes of responses (/v1/responses) kept in memory to be continued by their id; the oldest go first."""
    strict_requests: bool = False
    """Refuse unknown fields and tools of providers, which completions, responses and messages leave out."""
    rollout_text_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """What one scoped rollout may say and be told, as text kept until its trajectory is made."""


class ServerSettings(Strict):
    """All settings of a server, given at its start."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free port; the ready line names it."""
    key: str | None = Field(default=None, min_length=SHORTEST_KEY, repr=False)
    """The bearer key of every route. None: from the environment, or one made and kept in the data folder."""
    data_dir: Path = Path(".art")
    role: Literal["all", "gateway"] = "all"
    """`gateway`: no models and no jobs of its own; it samples from the engines of the server that is the
    controller of the same database, and passes everything else on to that."""
    database: str | None = Field(default=None, repr=False)
    """URL of the Postgres that keeps samples and jobs, so that another server can take over. None: from the
    environment, or SQLite in the data folder."""
    allow_origins: list[Origin] = Field(default_factory=list)
    """Pages of browsers that may ask: `https://chat.example.org`; `*`, where it is said, is every page."""
    engine: EngineSettings = EngineSettings()
    trainer: TrainerSettings = TrainerSettings()
    limits: LimitSettings = LimitSettings()
    control: ControlSettings = ControlSettings()
    teacher: TeacherSettings = TeacherSettings()
    cluster: ClusterSettings | None = None
    """Workers run on the nodes of a Ray cluster. None: on this machine."""
    log_file: Path | None = None
    """The file that whoever started the server writes its log to: errors that it met name the place. None:
    standard error."""

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
    """Returns whether only this machine can reach the address."""
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
    return _stored_key(settings.server_dir / "key")


def resolve_teacher(settings: ServerSettings) -> TeacherSettings:
    """The teacher's settings, its key and one more endpoint from the environment where they are not given."""
    given = settings.teacher
    url = os.environ.get(TEACHER_URL_VARIABLE)
    key = given.key or os.environ.get(TEACHER_KEY_VARIABLE) or None
    return given.model_copy(update={"urls": [*given.urls, *([url] if url else [])], "key": key})


def resolve_database(settings: ServerSettings) -> str | None:
    """The database's URL: given, or from the environment; None: SQLite in the data folder."""
    return settings.database or os.environ.get(DATABASE_VARIABLE) or None


def key_source(settings: ServerSettings) -> str:
    """Returns the source of the key, for messages; never the key itself."""
    if settings.key:
        return "the settings"
    if os.environ.get(KEY_VARIABLE):
        return f"the environment variable {KEY_VARIABLE}"
    return str(settings.server_dir / "key")


def is_key(value: str) -> bool:
    """Returns whether a text may be a key: what everybody could guess, or no header can hold, is none."""
    return len(value) >= SHORTEST_KEY and value.isascii() and value.isprintable() and " " not in value


def _stored_key(path: Path) -> str:
    try:
        if not path.exists():
            write_first(path, f"art-{secrets.token_urlsafe(32)}\n")
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
