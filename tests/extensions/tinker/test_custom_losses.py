"""Custom losses: a graph gives what torch gives of the program's own function, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from traced_losses import traced

from art.errors import RequestError
from art_extensions.tinker.custom_loss.allowed_operations import FUNCTIONS, METHODS
from art_extensions.tinker.custom_loss.loss_graph import CreateCustomLoss, check_loss
from art_extensions.tinker.custom_loss.loss_runner import find_function, run_loss

Pair = tuple[torch.Tensor, dict[str, torch.Tensor]]


def importance(logprobs: Any, old: Any, advantages: Any) -> Pair:
    ratio = torch.exp(logprobs - old)
    return -(ratio * advantages).sum(), {"custom/ratio:mean": ratio.mean()}


def clipped(logprobs: Any, old: Any, advantages: Any) -> Pair:
    ratio = (logprobs - old).exp()
    lower = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    share = ((ratio < 0.8) | (ratio > 1.2)).float().mean()
    return -lower.sum(), {"custom/clipped:mean": share, "custom/total:sum": lower.sum()}


def sequence(logprobs: Any, old: Any, mask: Any, reward: Any) -> Pair:
    count = mask.sum().clamp(min=1)
    ratio = (((logprobs - old) * mask).sum() / count).exp()
    return -ratio * reward, {}


def preference(logprobs: Any, weights: Any, beta: Any) -> Pair:
    return -F.logsigmoid(beta * (logprobs * weights).sum()) + F.softplus(logprobs).mean(), {}


def shaped(logprobs: Any, old: Any) -> Pair:
    both = torch.stack([logprobs, old], dim=-1)
    tail = both[1:, 0] - both[:-1, 1]
    masked = torch.where(tail > float("-inf"), tail, torch.zeros_like(tail))
    spread = logprobs.softmax(0).square().sum() + logprobs.shape[0] ** 0.5
    return masked.pow(2).sum() + 0.5 * spread, {"custom/rows:sum": logprobs.new_ones(()).sum()}


def picked(logprobs: Any, mask: Any) -> Pair:
    chosen = logprobs[mask > 0]
    return -chosen.sum() + F.huber_loss(logprobs, mask, reduction="sum", delta=0.5), {}


def distilled(logprobs: Any, teacher: Any) -> Pair:
    weights = torch.softmax(teacher, dim=-1)
    return -(weights * logprobs).sum(dim=1).mean(), {"custom/peak:mean": weights.max()}


LOSSES: list[tuple[Callable[..., Pair], dict[str, int]]] = [
    (importance, {}),
    (clipped, {}),
    (sequence, {"reward": 0}),
    (preference, {"beta": 0}),
    (shaped, {}),
    (picked, {}),
    (distilled, {"logprobs": 2, "teacher": 2}),
]


def values(names: dict[str, int], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    dice = np.random.default_rng(seed)
    size = int(dice.integers(2, 9))
    found = {name: dice.normal(size=(size, 3)[:rank]).astype(np.float32) for name, rank in names.items()}
    if "mask" in found:
        found["mask"] = (found["mask"] > 0).astype(np.float32)
    return {**found, "logprobs": -np.abs(found["logprobs"])}


@pytest.mark.parametrize(("loss", "ranks"), LOSSES, ids=[one.__name__ for one, _ in LOSSES])
def test_a_graph_gives_what_its_function_gives(loss: Callable[..., Pair], ranks: dict[str, int]) -> None:
    asked = CreateCustomLoss.model_validate(traced(loss, **ranks))
    check_loss(asked)
    names = {one.name: one.rank for one in asked.inputs}
    data = [values(names, seed) for seed in range(4)]
    found = run_loss(asked, [one["logprobs"] for one in data], data)
    total, metrics = 0.0, {}
    for one, slope in zip(data, found.slopes, strict=True):
        leaf = torch.tensor(one["logprobs"], requires_grad=True)
        own, told = loss(leaf, *(torch.tensor(one[name]) for name in list(names)[1:]))
        own.backward()
        assert leaf.grad is not None and np.array_equal(slope, leaf.grad.numpy())
        total += float(own.detach())
        for name, value in told.items():
            metrics[name] = metrics.get(name, 0.0) + float(value.detach())
    expected = {name: one / 4 if name.endswith(":mean") else one for name, one in metrics.items()}
    assert found.loss == total and found.metrics == expected


def test_every_allowed_name_is_there() -> None:
    for name in FUNCTIONS:
        assert callable(find_function(name)), name
    for name in METHODS:
        assert callable(getattr(torch.Tensor, name)) and not name.endswith("_"), name


def test_a_loss_without_logprobs_in_it_has_no_slope() -> None:
    asked = CreateCustomLoss.model_validate(traced(lambda logprobs, old: (old.sum(), {})))
    data = [values({"logprobs": 1, "old": 1}, 0)]
    assert not run_loss(asked, [data[0]["logprobs"]], data).slopes[0].any()


# ---------------------------------------------------------------- what is refused when it comes


def graph(*nodes: dict[str, Any], output: Any = None) -> dict[str, Any]:
    """A graph of one input with these nodes; the last one is the loss."""
    last = {"ref": nodes[-1]["name"] if nodes else "logprobs"}
    ends = {"tuple": [last, {"dict": {}}]} if output is None else output
    return {
        "session_id": "s",
        "custom_loss_seq_id": 0,
        "name": "loss",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": {
            "nodes": [
                {"op": "placeholder", "name": "logprobs", "target": "logprobs"},
                *nodes,
                {"op": "output", "name": "output", "target": "output", "args": [ends]},
            ]
        },
    }


X: dict[str, Any] = {"ref": "logprobs"}


def call(
    target: str, *args: Any, name: str = "a", op: str = "call_function", **kwargs: Any
) -> dict[str, Any]:
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": kwargs}


REFUSED = {
    "another module": graph(call("os.system", "true")),
    "eval": graph(call("eval", "1")),
    "torch.load": graph(call("torch.load", "file")),
    "torch.ops": graph(call("torch.ops.aten.exp", X)),
    "dunder": graph(call("__reduce__", X, op="call_method")),
    "in place": graph(call("add_", X, 1, op="call_method")),
    "numpy": graph(call("numpy", X, op="call_method")),
    "another attribute": graph(call("getattr", X, "__class__")),
    "data of an attribute": graph(call("getattr", X, "data")),
    "an unknown node": graph(call("torch.exp", {"ref": "later"})),
    "the node itself": graph(call("torch.exp", {"ref": "a"})),
    "the same name": graph(call("torch.exp", X), call("torch.log", X)),
    "an unknown form": graph(call("torch.exp", {"code": "1"})),
    "two forms": graph(call("torch.exp", {"ref": "logprobs", "float": "inf"})),
    "a dtype": graph(call("to", X, {"dtype": "complex128"}, op="call_method")),
    "a float": graph(call("torch.add", X, {"float": "1e9"})),
    "an integer": graph(call("torch.add", X, 2**60)),
    "depth": graph(call("torch.stack", [[[[[[[[[[1]]]]]]]]]])),
    "no loss": graph(output={"tuple": [1.0, {"dict": {}}]}),
    "no metrics": graph(output=X),
    "a metric's name": graph(output={"tuple": [X, {"dict": {"loss:sum": X}}]}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_is_not_run_is_refused_when_it_comes(name: str) -> None:
    with pytest.raises(RequestError):
        check_loss(CreateCustomLoss.model_validate(REFUSED[name]))


@pytest.mark.parametrize("op", ["call_module", "get_attr", "eval"])
def test_other_kinds_of_nodes_are_no_records(op: str) -> None:
    with pytest.raises(ValidationError):
        CreateCustomLoss.model_validate(graph(call("torch.exp", X, op=op)))


def test_a_graph_has_at_most_so_many_nodes() -> None:
    nodes = [call("torch.exp", X, name=f"n{number}") for number in range(1000)]
    with pytest.raises(ValidationError):
        CreateCustomLoss.model_validate(graph(*nodes))


# ---------------------------------------------------------------- what is refused when it is run


def chain(target: str, start: Any, count: int) -> list[dict[str, Any]]:
    nodes = [call(target, start, start, name="n0")]
    for number in range(1, count):
        last = {"ref": f"n{number - 1}"}
        nodes.append(call(target, last, last, name=f"n{number}"))
    return nodes


BOMBS = {
    "a large expansion": graph(call("repeat", X, 10**6, 10**6, op="call_method")),
    "a longer one": graph(call("repeat", X, 2**40, op="call_method")),
    "products of lists": graph(call("operator.mul", [1], 10**9)),
    "lists of tensors": graph(*chain("operator.add", [X], 40)),
    "a text": graph(call("operator.mod", "%0999999999d", 1)),
    "powers": graph(call("operator.pow", 3, 10**9)),
    "integers": graph(*chain("operator.mul", 10**9, 30)),
    "many results": graph(*[call("repeat", X, 2**21, op="call_method", name=f"n{at}") for at in range(40)]),
    "a grid of a grid": graph(
        call("repeat", X, 2000, op="call_method", name="x"),
        call("torch.outer", {"ref": "x"}, {"ref": "x"}),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_take_all_memory_is_refused_before_it_does(name: str) -> None:
    asked = CreateCustomLoss.model_validate(BOMBS[name])
    check_loss(asked)
    logprobs = np.full(8, -1.0, np.float32)
    with pytest.raises(RequestError, match=r"data\[0\]"):
        run_loss(asked, [logprobs], [{"logprobs": logprobs}])


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (graph(call("torch.exp", X)), "is no scalar"),
        (graph(call("torch.add", X, "one")), "node 'a'"),
        (graph(call("sum", 1.0, op="call_method")), "not on a tensor"),
        (graph(call("operator.getitem", X, 99)), "out of bounds|out of range"),
        (graph(call("torch.log", X, name="b"), call("torch.sum", {"ref": "b"})), "is nan"),
        (graph(call("operator.add", 1, 2)), "no tensor"),
    ],
)
def test_what_does_not_fit_names_datum_and_node(asked: dict[str, Any], problem: str) -> None:
    loss = CreateCustomLoss.model_validate(asked)
    check_loss(loss)
    logprobs = np.full(4, -1.0, np.float32)
    with pytest.raises(RequestError, match=problem) as refused:
        run_loss(loss, [logprobs], [{"logprobs": logprobs}])
    assert refused.value.status == 400
