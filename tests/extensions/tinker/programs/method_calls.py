"""What the programs share that call each method of the SDK: their checks by name, and the clients.

A check is known by the methods that it calls. It returns what it saw. An error of the SDK that it lets pass
is a refusal.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tinker
from tinker import types

BASE = "art/nano-games"
RANK = 4
CLIENTS = (tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient)

Check = Callable[["Clients"], str]
CHECKS: dict[str, Check] = {}


def checks(*methods: str) -> Callable[[Check], Check]:
    """The check of these methods, as `RestClient.whoami`."""

    def keep(check: Check) -> Check:
        for method in methods:
            assert method not in CHECKS, method
            CHECKS[method] = check
        return check

    return keep


class Clients:
    """The clients of one session, with a model that has learnt a little."""

    def __init__(self) -> None:
        self.service = tinker.ServiceClient(
            user_metadata={"purpose": "methods"}, project_id="methods", display_name="Every Method"
        )
        self.rest = tinker.RestClient()
        self.training = self.trainer()
        self.tokenizer = self.training.get_tokenizer()
        self.ids: list[int] = self.tokenizer.encode("The quick brown fox jumps over the lazy dog.")
        self.train(self.training, steps=2)
        self.sampler: tinker.SamplingClient = self.training.save_weights_and_get_sampling_client().result()
        self.session_id: str = self.training.holder.get_session_id()

    @property
    def prompt(self) -> types.ModelInput:
        return types.ModelInput.from_ints(self.ids[:8])

    @property
    def folder(self) -> str:
        """That of the base model."""
        return str(self.tokenizer.name_or_path)

    def trainer(self, seed: int = 7) -> tinker.TrainingClient:
        """A new model; the same for the same seed."""
        return self.service.create_lora_training_client(BASE, rank=RANK, seed=seed).result()

    def datum(self, weight: float = 1.0, ids: Sequence[int] | None = None) -> types.Datum:
        ids = self.ids if ids is None else ids
        return types.Datum(
            model_input=types.ModelInput.from_ints(list(ids[:-1])),
            loss_fn_inputs={"target_tokens": list(ids[1:]), "weights": [weight] * (len(ids) - 1)},
        )

    def sampled(self, advantage: float = 1.0) -> types.Datum:
        count = len(self.ids) - 1
        columns = {
            "target_tokens": self.ids[1:],
            "logprobs": [-1.0] * count,
            "advantages": [advantage] * count,
        }
        return types.Datum(
            model_input=types.ModelInput.from_ints(self.ids[:-1]), loss_fn_inputs=dict(columns)
        )

    def train(self, client: tinker.TrainingClient, *, steps: int = 1) -> Any:
        """The result of the last step."""
        for _ in range(steps):
            client.forward_backward([self.datum()], "cross_entropy")
            made = client.optim_step(types.AdamParams(learning_rate=1e-2))
        return made.result()

    def logprobs(self, client: tinker.TrainingClient) -> Any:
        """Those of the text, [N - 1]."""
        output = client.forward([self.datum()], "cross_entropy").result()
        return output.loss_fn_outputs[0]["logprobs"].to_numpy()

    def saved(self, name: str, **options: Any) -> str:
        """The path of the trained model's weights."""
        return self.training.save_state(name, **options).result().path

    def answers(self, sampler: tinker.SamplingClient, **params: Any) -> list[list[int]]:
        params = {"max_tokens": 6, "seed": 5, **params}
        found = sampler.sample(self.prompt, 2, types.SamplingParams(**params)).result()
        return [one.tokens for one in found.sequences]


def both(client: Any, name: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    """What the method returns, and what its async form does."""
    first = getattr(client, name)(*args, **options).result()
    return first, asyncio.run(awaited(getattr(client, f"{name}_async")(*args, **options)))


async def awaited(value: Any) -> Any:
    """What comes of a coroutine, and of the future that it returns."""
    while inspect.isawaitable(value):
        value = await value
    return value


def near(left: Any, right: Any, tolerance: float = 2e-3) -> bool:
    return bool(np.allclose(np.asarray(left), np.asarray(right), atol=tolerance))


def same(left: Any, right: Any) -> None:
    assert left == right, f"{left!r} is not {right!r}"


def public_methods() -> list[str]:
    """The methods of the four clients, by name."""
    return [
        f"{client.__name__}.{name}"
        for client in CLIENTS
        for name, _ in inspect.getmembers(client, callable)
        if not name.startswith("_")
    ]


def tell(method: str, outcome: str, detail: str) -> None:
    print(json.dumps({"method": method, "outcome": outcome, "detail": detail}), flush=True)


def message_of(error: BaseException) -> str:
    """The server's own words, where the error has them."""
    body = getattr(error, "body", None)
    if isinstance(body, dict) and "detail" in body:
        return str(body["detail"])
    return str(error).strip()


def run_check(methods: Sequence[str], check: Check, clients: Clients) -> None:
    """Tells the outcome of a check for each of its methods."""
    try:
        outcome, detail = "works", check(clients)
    except tinker.TinkerError as error:
        outcome, detail = "refused", f"{type(error).__name__}: {message_of(error)}"
    except Exception:  # noqa: BLE001  what fails is told, and the others go on
        outcome, detail = "fails", traceback.format_exc()[-1500:]
    for method in methods:
        tell(method, outcome, detail)


def finite(values: Sequence[float | None]) -> bool:
    return all(one is not None and math.isfinite(one) and one <= 1e-4 for one in values)
