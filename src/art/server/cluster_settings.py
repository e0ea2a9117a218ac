"""The settings of a cluster: where it is, what each worker takes of a node, and how far the network is
trusted. What places the workers is an extension of the kind `placer`.

They are part of `ServerSettings`, and said once for `art serve --cluster` and `LocalBackend(cluster=...)`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, Field

from art.extensions import PLACER, load_extension
from art.process.worker import WorkerSpec
from art.wire.records import Strict

_ADDRESS = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")
_BUCKET = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]*://[^@\s]+")  # a password has no place in settings
RAY_CLIENT = "ray://"
"""The spelling of Ray Client's addresses, which some programs use for every cluster."""
GCS_PORT = 6379


def checked_address(value: str) -> str:
    """Returns `auto` or HOST:PORT. Raises ValueError, which says what an address is.

    `ray://HOST` is accepted as a spelling of HOST:6379. With the port of Ray Client it is refused: that one
    is a proxy, through which nothing here goes.
    """
    bare = value.removeprefix(RAY_CLIENT)
    if bare != value and bare.endswith(":10001"):
        raise ValueError(
            f"{value!r} is the address of Ray Client, a proxy that is not used here; give the address of the "
            f"head node, {bare.removesuffix('10001')}{GCS_PORT}"
        )
    if bare != value and ":" not in bare:
        bare = f"{bare}:{GCS_PORT}"
    if bare == "auto" or _ADDRESS.fullmatch(bare):
        return bare
    raise ValueError(
        f"{value!r} is no address of a Ray cluster: give auto, on a node of it, or HOST:{GCS_PORT}"
    )


Address = Annotated[str, AfterValidator(checked_address)]


def checked_bucket(value: str) -> str:
    """Returns an `fsspec` URL. Raises ValueError, which says what one is."""
    if not _BUCKET.fullmatch(value):
        raise ValueError(
            f"{value!r} is no address of a bucket: give one such as s3://bucket/shelf, and its keys in the "
            "environment of the server and of each node"
        )
    return value.rstrip("/")


BucketUrl = Annotated[str, AfterValidator(checked_bucket)]


class RoleResources(Strict):
    """The share of its node that one worker takes."""

    cpus: float = Field(default=1.0, ge=0)
    gpus: float | None = Field(default=None, ge=0)
    """None: one where the cluster has GPUs, none elsewhere."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Resources of the cluster's own, by name, such as `{"engine_slot": 1}`."""


class ClusterSettings(Strict):
    """A Ray cluster whose nodes run the workers. Times are in seconds."""

    address: Address
    """`auto`: the cluster of this machine. Otherwise HOST:6379, the head node."""
    engine: RoleResources = RoleResources()
    trainer: RoleResources = RoleResources()
    host: str | None = None
    """The address by which nodes reach this machine. None: the one that Ray knows it by."""
    trust_network: bool = False
    """Use a cluster without token authentication: whoever reaches its ports runs programs on its nodes."""
    lease: float = Field(default=60.0, ge=1)
    """A worker whose server has not renewed its lease for so long ends."""
    silence: float = Field(default=15.0, gt=0)
    """A node that gave no sign of life for so long is taken for dead."""
    place: float = Field(default=300.0, gt=0)
    """Longest wait for a node with room."""
    shelf: str | None = None
    """The folder of a node's copies, in which `{node}` stands for its address. None: `~/.cache/art/shelf`."""
    shelf_gb: float = Field(default=200.0, gt=0)
    """Most that a node keeps, in units of 10^9 bytes."""
    bucket: BucketUrl | None = None
    """An `fsspec` URL, such as `s3://bucket/shelf`, that all nodes read: the server puts large folders there
    once, and nodes fetch them from it. Nothing is deleted there. None: from the server and from each other.
    """
    bucket_from_gb: float = Field(default=1.0, ge=0)
    """The least size of what goes through the bucket, in units of 10^9 bytes."""


RENEWALS = 6
"""A lease is renewed so often before it would end."""


class DrainedPlaces(Protocol):
    """The nodes that get no more workers."""

    def change(self, node: str, *, drained: bool) -> None:
        """Adds a node by its id, or uses it again. Blocking. Raises: DiskError."""
        ...


class PlacedNode(Protocol):
    """A machine of the cluster."""

    @property
    def id(self) -> str:
        """Returns its name in the cluster."""
        ...

    @property
    def address(self) -> str:
        """Returns its network address."""
        ...


class WorkerPlacer(Protocol):
    """Starts workers on the machines of a cluster."""

    drained: DrainedPlaces

    async def launch(self, spec: WorkerSpec) -> Any:
        """Starts a worker on a node that has room. Raises: ARTError."""
        ...

    def find_node(self, address: str) -> PlacedNode:
        """Returns a node by its address or id. Raises: NotFoundError."""
        ...

    def health(self) -> dict[str, Any]:
        """Returns what `/health` shows of the cluster."""
        ...

    async def close(self) -> None:
        """Lets go of the cluster. Workers that still run end."""
        ...


async def start_placer(settings: ClusterSettings, folder: Path, logs: Path) -> WorkerPlacer:
    """Returns the placer of a cluster, connected. folder: the server's own.

    Raises: ConfigurationError, WorkerDiedError, DeadlineError.
    """
    placer: WorkerPlacer = await load_extension(PLACER, "ray").start(settings, folder, logs)
    return placer
