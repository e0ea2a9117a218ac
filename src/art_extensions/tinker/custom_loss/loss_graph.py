"""A custom loss as the SDK traces it: a graph of operations as plain data, checked when it comes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from art.batch.batch_types import FloatArray
from art_extensions.tinker.custom_loss.allowed_operations import ATTRIBUTES, DTYPES, FUNCTIONS, METHODS
from art_extensions.tinker.records import Asked
from art_extensions.tinker.refusals import refusal

MOST_NODES, MOST_INPUTS, DEEPEST = 1000, 16, 8
LARGEST_INTEGER = 2**53
_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")
_CONSTANTS = ("dtype", "device", "layout", "memory_format")


class LossNode(Asked):
    """One operation, as torch.fx records it."""

    op: Literal["placeholder", "call_function", "call_method", "output"]
    name: str = Field(min_length=1, max_length=200)
    target: str = Field(max_length=200)
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)


class LossNodes(Asked):
    format: Literal[1] = 1
    nodes: list[LossNode] = Field(min_length=2, max_length=MOST_NODES)


class LossInput(Asked):
    name: str
    rank: Literal[0, 1, 2]


class CreateCustomLoss(Asked):
    """A request to keep a loss for its session."""

    session_id: str
    custom_loss_seq_id: int
    name: str = Field(max_length=200)
    inputs: list[LossInput] = Field(min_length=1, max_length=MOST_INPUTS)
    graph: LossNodes


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomLossValue:
    """The value of a loss of some datums, and its slopes by their logprobs."""

    loss: float
    metrics: Mapping[str, float]
    slopes: tuple[FloatArray, ...]
    """d loss / d logprob, in the shape of each datum's targets."""


def check_loss(asked: CreateCustomLoss) -> None:
    """Raises RequestError (status 400), which names the node, for a graph that this server does not run."""
    names = [one.name for one in asked.inputs]
    if names[0] != "logprobs" or len(set(names)) != len(names) or asked.inputs[0].rank == 0:
        raise refusal(
            f"inputs are {names}; send 'logprobs' of rank 1 or 2 first, and each once", param="inputs"
        )
    if wrong := [name for name in names if not _INPUT_NAME.fullmatch(name)]:
        raise refusal(f"input {wrong[0]!r} is no lowercase name of letters, digits and underscores")
    known: set[str] = set()
    for number, node in enumerate(asked.graph.nodes):
        _check_node(node, f"graph.nodes[{number}]", known)
        known.add(node.name)
    kinds = [node.op for node in asked.graph.nodes]
    placeholders = [node.target for node in asked.graph.nodes if node.op == "placeholder"]
    if placeholders != names or kinds[: len(names)] != ["placeholder"] * len(names):
        raise refusal(f"the graph begins with {placeholders}, not with its inputs {names}", param="graph")
    if kinds[-1] != "output" or kinds.count("output") != 1:
        raise refusal("the graph does not end with its one output", param="graph")
    _check_output(asked.graph.nodes[-1].args)


def _check_node(node: LossNode, at: str, known: set[str]) -> None:
    if node.name in known:
        raise refusal(f"{at} has the name {node.name!r} of an earlier node", param=at)
    allowed = {"call_function": FUNCTIONS, "call_method": METHODS}.get(node.op)
    if allowed is not None and node.target not in allowed:
        raise refusal(f"{at} calls {node.target!r}, which this server does not run", param=at)
    if node.target == "getattr" and (len(node.args) != 2 or node.args[1] not in ATTRIBUTES):
        raise refusal(f"{at} reads an attribute other than {', '.join(sorted(ATTRIBUTES))}", param=at)
    if node.op != "placeholder":
        for value in (*node.args, *node.kwargs.values()):
            _check_value(value, at, known, DEEPEST)


def _check_value(value: Any, at: str, known: set[str], depth: int) -> None:
    """Checks an argument: a scalar, a list, or one of the encoded forms."""
    if depth == 0:
        raise refusal(f"{at} has an argument of more than {DEEPEST} levels", param=at)
    if value is None or isinstance(value, bool | float | str):
        return
    if isinstance(value, int):
        _check_integer(value, at)
    elif isinstance(value, list):
        for one in value:
            _check_value(one, at, known, depth - 1)
    elif isinstance(value, dict) and len(value) == 1:
        _check_encoded(*next(iter(value.items())), at, known, depth)
    else:
        raise refusal(f"{at} has an argument that is nothing the SDK writes", param=at)


def _check_encoded(kind: str, inner: Any, at: str, known: set[str], depth: int) -> None:
    if kind == "ref":
        if inner not in known:
            raise refusal(f"{at} reads {inner!r}, which is no earlier node", param=at)
    elif kind in ("tuple", "slice") and isinstance(inner, list):
        _check_value(inner, at, known, depth - 1)
        if kind == "slice" and len(inner) != 3:
            raise refusal(f"{at} has a slice of {len(inner)} parts", param=at)
    elif kind == "dict" and isinstance(inner, dict):
        _check_value(list(inner.values()), at, known, depth - 1)
    elif kind == "float":
        if inner not in ("inf", "-inf", "nan"):
            raise refusal(f"{at} has the float {inner!r}", param=at)
    elif kind == "dtype":
        if inner not in DTYPES:
            raise refusal(f"{at} has the dtype {inner!r}; this server knows {sorted(DTYPES)}", param=at)
    elif not (kind == "ellipsis" or (kind in _CONSTANTS and isinstance(inner, str))):
        raise refusal(f"{at} has an argument {kind!r}, which this server does not know", param=at)


def _check_integer(value: int, at: str) -> None:
    if abs(value) > LARGEST_INTEGER:
        raise refusal(f"{at} has an integer beyond 2^53", param=at)


def _check_output(args: Sequence[Any]) -> None:
    """A loss returns a scalar, and metrics by names that say how they are added up."""
    match args:
        case [{"tuple": [{"ref": _}, {"dict": dict() as metrics}]}]:
            pass
        case _:
            raise refusal("the graph returns no pair of a loss and its metrics", param="graph")
    if wrong := [name for name in metrics if not _METRIC.fullmatch(name)]:
        raise refusal(f"the metric {wrong[0]!r} is not named custom/NAME:sum or custom/NAME:mean")
