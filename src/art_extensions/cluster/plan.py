"""Which worker goes to which shape of node: a pure function from a worker to what Ray is asked for.

An engine, a trainer and a vLLM replica with tensor parallelism are one unit each: all their GPUs are of one
node. Replicas are spread, so that a node's death costs few of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from art.errors import ConfigurationError
from art.server.cluster_settings import ClusterSettings, RoleResources
from art.wire.records import Strict

Role = Literal["engine", "trainer"]


class NodeRow(Strict):
    """A node of the cluster, as the placer sees it."""

    id: str
    """Ray's id of the node."""
    address: str
    alive: bool
    totals: dict[str, float] = Field(default_factory=dict)
    """Resource -> the node's total, in use or not."""
    why_dead: str = ""


class WorkerBundle(Strict):
    """The needs of a worker, which one node fills."""

    cpus: float
    gpus: float
    resources: dict[str, float] = Field(default_factory=dict)
    spread: bool = False
    """Whether a node with few other workers is preferred."""
    never_on: list[str] = Field(default_factory=list)
    """Nodes that are drained, by Ray's id."""
    rather_not_on: list[str] = Field(default_factory=list)
    """Nodes that seem to be dead, by Ray's id: taken only if no other fits."""
    only_on: str | None = None
    """Ray's id of the one node to use; None: any."""

    @property
    def needs(self) -> dict[str, float]:
        """Returns what it takes, by Ray's names, without what it takes none of."""
        named = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in named.items() if amount}


def role_of(worker: str) -> Role:
    """Returns the role of a worker, by its name.

    >>> role_of("trainer-nano-games")
    'trainer'
    """
    return "trainer" if worker.startswith("trainer-") else "engine"


def choose_bundle(
    worker: str,
    settings: ClusterSettings,
    nodes: Sequence[NodeRow],
    *,
    parallel: int = 1,
    drained: Sequence[str] = (),
    suspected: Sequence[str] = (),
) -> WorkerBundle:
    """Returns what a worker needs of its node. parallel: GPUs that hold one copy of its model together.

    Raises ConfigurationError for a part of a GPU per worker where several work together.
    """
    role = role_of(worker)
    given: RoleResources = settings.trainer if role == "trainer" else settings.engine
    gpus = given.gpus
    if gpus is None:
        gpus = 1.0 if any(node.totals.get("GPU") for node in nodes) else 0.0
    if parallel > 1 and gpus:
        if gpus not in (1.0, float(parallel)):
            raise ConfigurationError(
                f"worker {worker!r} computes on {parallel} GPUs together, but cluster.{role}.gpus is "
                f"{gpus:g}: leave it out, or give {parallel}"
            )
        gpus = float(parallel)
    return WorkerBundle(
        cpus=given.cpus,
        gpus=gpus,
        resources=dict(given.resources),
        spread=role == "engine",
        never_on=list(drained),
        rather_not_on=[one for one in suspected if one not in drained],
    )


def place_member(
    bundle: WorkerBundle, nodes: Sequence[NodeRow], *, part: int, size: int, placed: Mapping[int, str]
) -> WorkerBundle:
    """Returns what a member of a gang needs: the node of its own part, and no other part's.

    part: which of the gang's nodes it is for, which holds `size` members. placed: parts that have a node.
    """
    if part in placed:
        return bundle.model_copy(update={"only_on": placed[part]})
    node_needs = {name: amount * size for name, amount in bundle.needs.items()}
    small = [
        node.id
        for node in nodes
        if any(node.totals.get(name, 0.0) < amount for name, amount in node_needs.items())
    ]
    return bundle.model_copy(
        update={"never_on": sorted({*bundle.never_on, *placed.values(), *small}), "spread": False}
    )


def nodes_with_room(bundle: WorkerBundle, nodes: Sequence[NodeRow]) -> list[NodeRow]:
    """Returns the nodes that could hold the bundle if they held nothing else."""
    return [node for node in nodes if node.alive and node.id not in bundle.never_on and _holds(node, bundle)]


def _holds(node: NodeRow, bundle: WorkerBundle) -> bool:
    return all(node.totals.get(name, 0.0) >= amount for name, amount in bundle.needs.items())


def why_no_room(worker: str, bundle: WorkerBundle, nodes: Sequence[NodeRow], seconds: float) -> str:
    """Returns the message for a worker that no node took."""
    needed = describe_amounts(bundle.needs) or "nothing"
    alive = [node for node in nodes if node.alive]
    fitting = nodes_with_room(bundle, nodes)
    shown = "; ".join(f"{node.address} has {describe_amounts(node.totals)}" for node in alive[:8]) or "none"
    if fitting:
        return (
            f"no node had room for worker {worker!r} within {seconds:g} s: it needs {needed}, and the nodes "
            f"that have so much ({', '.join(node.address for node in fitting[:8])}) are in use. Add a node, "
            "or start fewer replicas"
        )
    return (
        f"no node of the cluster can hold worker {worker!r}: it needs {needed}, and of {len(alive)} nodes "
        f"{shown}. Add such a node, or ask for less in cluster.{role_of(worker)}"
    )


def describe_amounts(amounts: Mapping[str, float]) -> str:
    """Returns resources in words, without those that each node has by itself.

    >>> describe_amounts({"CPU": 2.0, "GPU": 1.0, "memory": 1e9, "node:10.0.0.1": 1.0})
    '2 CPU, 1 GPU'
    """
    own = ("memory", "object_store_memory")
    return ", ".join(
        f"{amount:g} {name}"
        for name, amount in amounts.items()
        if name not in own and not name.startswith("node:")
    )
