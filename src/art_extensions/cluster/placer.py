"""`python -m art.process.child art_extensions.cluster.placer`: the one process that imports ray.

It is told on standard input which hosts to place and which to release (`messages.py`), and ends
with it. The hosts are detached actors with names, so they outlive it, and the next placer finds them again.
Calls carry JSON text and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import ray
from pydantic import ValidationError
from ray.exceptions import AuthenticationError, GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
)

from art.errors import ARTError, ConfigurationError, DeadlineError, WorkerDiedError, WorkerError
from art.process.environment import inherited_variables
from art.process.resources import resume_collector
from art.wire.engine import to_body
from art.wire.records import flaws_without_values
from art_extensions.cluster.host import NodeHost
from art_extensions.cluster.messages import (
    HostAddress,
    PlaceOrder,
    PlacerLine,
    PlacerOrder,
    PlacerReady,
    PlacerStart,
)
from art_extensions.cluster.plan import NodeRow, WorkerBundle, describe_amounts

_log = logging.getLogger(__name__)
NAMESPACE = "art"
NODE_LABEL = "ray.io/node-id"
_THREADS = 64
_LOOK_S = 1.0
"""Seconds between two looks at the nodes."""
_ANSWER_S = 20.0
"""Seconds in which a host that exists must say which one it is."""
_GONE_S = 30.0
_PROBE_S = 60.0
_UNAUTHENTICATED_PROBE = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_get(b"art", namespace=b"art", timeout=20)
print("open")
"""


class HostActor(NodeHost):
    """The host as an actor: it asks Ray where it is."""

    async def open(self, order: str) -> str:
        """Returns the address of the host, as JSON; `order` says what it is told."""
        address = ray.util.get_node_ip_address()
        return await self.serve(order, address, ray.get_runtime_context().get_node_id())


class Placer:
    """Places hosts on the nodes of one cluster, each order in a thread of its own."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers
        self._writing = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="order")
        self._names = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self._nodes: list[NodeRow] = []

    def write_line(self, line: PlacerLine | PlacerReady) -> None:
        """Writes a line. Any thread may."""
        with self._writing:
            self._answers.write(line.model_dump_json(exclude_none=True) + "\n")
            self._answers.flush()

    def serve(self, orders: Iterator[str]) -> None:
        """Takes orders until there are no more."""
        threading.Thread(target=self._watch_nodes, name="nodes", daemon=True).start()
        for line in orders:
            try:
                self._threads.submit(self._obey, PlacerOrder.model_validate_json(line))
            except ValidationError as error:
                self._refuse(line, f"the placer did not understand its order: {flaws_without_values(error)}")

    def _refuse(self, line: str, words: str) -> None:
        """Answers an order that is none, so that nobody waits for it."""
        _log.error("%s", words)
        with contextlib.suppress(ValueError):  # not even JSON: nobody to answer
            number = json.loads(line).get("id")
            self.write_line(PlacerLine(id=number, error=to_body(WorkerError(words))))

    def _obey(self, order: PlacerOrder) -> None:
        try:
            answer = PlacerLine(id=order.id, released=[])
            if order.place is not None:
                with self._only_one(order.place.name):
                    answer = PlacerLine(id=order.id, placed=place_host(order.place))
            elif order.release is not None:
                with self._only_one(order.release):
                    answer = PlacerLine(id=order.id, released=release_host(order.release))
            elif order.sweep is not None:
                answer = PlacerLine(id=order.id, released=sweep_hosts(order.sweep))
        except ARTError as error:
            answer = PlacerLine(id=order.id, error=to_body(error))
        except (RayError, ValueError, RuntimeError, OSError) as error:
            failure = WorkerDiedError(f"Ray did not do what it was asked ({type(error).__name__}: {error})")
            answer = PlacerLine(id=order.id, error=to_body(failure))
        self.write_line(answer)

    @contextlib.contextmanager
    def _only_one(self, name: str) -> Iterator[None]:
        with self._names:
            lock = self._busy.setdefault(name, threading.Lock())
        with lock:
            yield

    def _watch_nodes(self) -> None:
        while True:
            try:
                nodes = list_nodes()
            except (RayError, RuntimeError, OSError) as error:
                _log.error("the cluster does not answer: %s", error)
                os._exit(3)  # the server starts another placer, which connects anew
            if nodes != self._nodes:
                self._nodes = nodes
                self.write_line(PlacerLine(nodes=nodes))
            time.sleep(_LOOK_S)


def list_nodes() -> list[NodeRow]:
    """Returns the nodes of the cluster, dead ones too."""
    return [
        NodeRow(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            alive=bool(node["Alive"]),
            totals={str(name): float(amount) for name, amount in node["Resources"].items()},
            why_dead=str(node.get("DeathReasonMessage") or ""),
        )
        for node in ray.nodes()
    ]


def place_host(order: PlaceOrder) -> HostAddress:
    """The address of the host of that name, which is made if it is not there.

    One that has the name and is of an earlier start ends first. Raises WorkerDiedError, DeadlineError,
    ConfigurationError.
    """
    if (found := _find(order.name)) is not None:
        known = _ask(found, order, _ANSWER_S)
        if isinstance(known, HostAddress) and known.nonce == order.host.nonce:
            return known
        release_host(order.name)
    # Ray gives no worker more threads than it takes CPUs, and no GPU that it does not take.
    made = ray.remote(HostActor).options(
        name=order.name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=0,
        max_task_retries=0,
        num_cpus=order.bundle.cpus,
        num_gpus=order.bundle.gpus,
        resources=order.bundle.resources or None,
        scheduling_strategy=choose_strategy(order.bundle),
    )
    address = _ask(made.remote(), order, order.deadline)
    if isinstance(address, HostAddress):
        return address
    release_host(order.name)
    if isinstance(address, GetTimeoutError):
        raise DeadlineError(
            f"no node took {order.name!r} within {order.deadline:g} s; it needs "
            f"{describe_amounts(order.bundle.needs) or 'nothing'}"
        )
    raise WorkerDiedError(f"the host {order.name!r} did not start: {address}")


def _ask(actor: Any, order: PlaceOrder, seconds: float) -> HostAddress | Exception:
    try:
        reply = ray.get(actor.open.remote(order.host.model_dump_json()), timeout=seconds)
        address: HostAddress = HostAddress.model_validate_json(reply)
        return address
    except (GetTimeoutError, RayActorError, RayError) as error:
        failure: Exception = error
        return failure


def release_host(name: str) -> list[str]:
    """Ends a host, and its worker with it. Returns its name if there was one. Raises DeadlineError."""
    if (found := _find(name)) is None:
        return []
    ray.kill(found, no_restart=True)
    end = time.monotonic() + _GONE_S
    while _find(name) is not None:
        if time.monotonic() > end:
            raise DeadlineError(f"the host {name!r} did not end within {_GONE_S:g} s")
        time.sleep(0.05)
    return [name]


def sweep_hosts(beginning: str) -> list[str]:
    """Ends the hosts whose names begin so, which an earlier server has left. Returns their names."""
    named = ray.util.list_named_actors(all_namespaces=True)
    names = [one["name"] for one in named if one["namespace"] == NAMESPACE]
    return [name for name in names if name.startswith(beginning) and release_host(name)]


def _find(name: str) -> Any:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def choose_strategy(bundle: WorkerBundle) -> Any:
    """Returns how Ray is to choose the node."""
    if bundle.only_on is not None:
        return NodeAffinitySchedulingStrategy(bundle.only_on, soft=False)
    if bundle.never_on or bundle.rather_not_on:
        hard = {NODE_LABEL: NotIn(*bundle.never_on)} if bundle.never_on else {}
        soft = {NODE_LABEL: NotIn(*bundle.rather_not_on)} if bundle.rather_not_on else {}
        return NodeLabelSchedulingStrategy(hard=hard, soft=soft)
    return "SPREAD" if bundle.spread else "DEFAULT"


def connect(start: PlacerStart) -> PlacerReady:
    """Connects to the cluster, if it is one that may be used.

    Raises ConfigurationError (it asks for no token, or does not take ours), ConnectionError (nobody answers).
    """
    where: dict[str, Any] = {} if start.host is None else {"_node_ip_address": start.host}
    try:
        ray.init(
            address=start.address, namespace=NAMESPACE, log_to_driver=False, logging_level="WARNING", **where
        )
    except AuthenticationError as error:
        raise ConfigurationError(
            f"the cluster at {start.address} did not take this machine's token ({error}). Put the cluster's "
            "token into ~/.ray/auth_token, or into RAY_AUTH_TOKEN, and set RAY_AUTH_MODE=token"
        ) from error
    cluster = ray.get_runtime_context().gcs_address
    authenticated = asks_for_token(cluster)
    if not authenticated and not start.trust_network:
        raise ConfigurationError(
            f"the Ray cluster at {cluster} asks nobody for a token: whoever reaches its ports runs programs "
            "on its nodes. Start each node with RAY_AUTH_MODE=token and one token (`ray get-auth-token "
            "--generate`), or say that you trust the network: --trust-network, "
            "cluster={'trust_network': True}"
        )
    return PlacerReady(
        ready=True,
        node=ray.util.get_node_ip_address(),
        node_id=ray.get_runtime_context().get_node_id(),
        cluster=cluster,
        ray=ray.__version__,
        authenticated=authenticated,
    )


def asks_for_token(cluster: str) -> bool:
    """Returns whether the head node refuses who has no token. Somebody without one asks it."""
    given = {name: value for name, value in inherited_variables().items() if not name.startswith("RAY_AUTH")}
    # A home without a token: Ray takes the one in the home folder by itself.
    nobody = {**given, "RAY_AUTH_MODE": "disabled", "HOME": "/nonexistent"}
    answer = subprocess.run(
        [sys.executable, "-c", _UNAUTHENTICATED_PROBE, cluster],
        env=nobody,
        capture_output=True,
        text=True,
        timeout=_PROBE_S,
        check=False,
    )
    return answer.returncode != 0 and "AuthenticationError" in answer.stderr


def main() -> int:
    """Reads its first line, connects, and serves until standard input ends."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    # What Ray and its libraries print belongs to the log.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    placer = Placer(answers)
    try:
        start = PlacerStart.model_validate_json(sys.stdin.readline())
        ready = connect(start)
    except (ConfigurationError, ValidationError) as error:
        placer.write_line(PlacerReady(ready=False, error=str(error), refused=True))
        return 2
    except (RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        words = f"no Ray cluster answers ({type(error).__name__}: {error})"
        placer.write_line(PlacerReady(ready=False, error=words))
        return 3
    resume_collector()
    placer.write_line(ready)
    placer.serve(iter(sys.stdin.readline, ""))
    answers.flush()
    os._exit(0)  # a thread that waits for Ray would keep it


if __name__ == "__main__":
    # The actor's class is to be this module's, and not of a program's `__main__`: it travels by its name.
    from art_extensions.cluster.placer import main as run_placer

    sys.exit(run_placer())
