"""Goes on with a checkpoint of ART's own model, with the real SDK.

    python art_checkpoint.py RUN STEP PROMPT [KEY_OF_ANOTHER]

RUN is art:PROJECT:MODEL, PROMPT a list of ids as JSON. Prints `wait` where the test does something and
answers with a line; then what was seen, as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

warnings.simplefilter("ignore")

import tinker  # noqa: E402
from method_calls import message_of  # noqa: E402
from tinker import types  # noqa: E402

MOST = 6


def answer(sampler: tinker.SamplingClient, prompt: list[int]) -> list[int]:
    params = types.SamplingParams(max_tokens=MOST, temperature=0.0)
    return list(sampler.sample(types.ModelInput.from_ints(prompt), 1, params).result().sequences[0].tokens)


def datum(prompt: list[int], said: list[int]) -> types.Datum:
    ids = [*prompt, *said]
    columns: dict[str, Any] = {
        "target_tokens": ids[1:],
        "weights": [0.0] * (len(prompt) - 1) + [1.0] * len(said),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=columns)


def logprobs(client: tinker.TrainingClient, one: types.Datum) -> list[float]:
    output = client.forward([one], "cross_entropy").result()
    return list(map(float, output.loss_fn_outputs[0]["logprobs"].to_numpy()))


def refusal(attempt: Callable[[], Any]) -> list[str]:
    try:
        attempt()
    except tinker.TinkerError as error:
        return [type(error).__name__, message_of(error)]
    return ["works", ""]


def main() -> None:
    run, step, prompt = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    path = f"tinker://{run}/weights/{step}"
    service, rest = tinker.ServiceClient(), tinker.RestClient()
    sampler = service.create_sampling_client(model_path=path).result()
    said = answer(sampler, prompt)
    print("wait", flush=True)
    sys.stdin.readline()
    told: dict[str, Any] = {"said": said, "said after a restart": answer(sampler, prompt)}
    first = service.create_sampling_client(model_path=f"tinker://{run}/sampler_weights/0").result()
    told["said at first"], one = answer(first, prompt), datum(prompt, said)
    told["sampled logprobs"] = sampler.compute_logprobs(types.ModelInput.from_ints(prompt + said)).result()[
        1:
    ]
    fresh = service.create_training_client_from_state(path).result()
    going_on = service.create_training_client_from_state_with_optimizer(path).result()
    loaded = service.create_lora_training_client("art/nano-games", rank=4, seed=9).result()
    told["other"] = logprobs(loaded, one)
    loaded.load_state(path).result()
    clients = {"fresh": fresh, "going on": going_on, "loaded": loaded}
    told["logprobs"] = {name: logprobs(client, one) for name, client in clients.items()}
    told["info"] = [fresh.get_info().model_data.model_name, fresh.get_info().lora_rank]
    for name, client in clients.items():
        client.forward_backward([one], "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        told[f"trained {name}"] = logprobs(client, one)
    told["answers"] = answer(fresh.save_weights_and_get_sampling_client().result(), prompt)
    saved = fresh.save_state("mine").result().path
    told["from there"] = logprobs(service.create_training_client_from_state(saved).result(), one)
    found = rest.get_weights_info_by_tinker_path(path).result()
    told["weights"] = [found.base_model, found.is_lora, found.lora_rank]
    told["listed"] = [found.tinker_path for found in rest.list_checkpoints(run).result().checkpoints]
    described = rest.get_training_run(run).result()
    assert described.last_checkpoint is not None
    told["run"] = [described.base_model, described.last_checkpoint.tinker_path]
    told["among saved"] = [
        one.tinker_path
        for one in rest.list_user_checkpoints().result().checkpoints
        if "art:" in one.tinker_path
    ]
    sample = service.create_sampling_client
    told["refused"] = {
        "train on a missing step": refusal(
            lambda: service.create_training_client_from_state(f"tinker://{run}/weights/77").result()
        ),
        "a missing step": refusal(lambda: sample(model_path=f"tinker://{run}/weights/77").result()),
        "a missing model": refusal(lambda: sample(model_path="tinker://art:no:one/weights/1").result()),
        "a missing run": refusal(lambda: rest.list_checkpoints("art:no:one").result()),
        "no step": refusal(lambda: sample(model_path=f"tinker://{run}/weights/last").result()),
        "a way up": refusal(lambda: sample(model_path="tinker://art:..:agent/weights/1").result()),
        "a hidden way up": refusal(lambda: sample(model_path="tinker://art:flow:%2e%2e/weights/1").result()),
        "deleting": refusal(lambda: rest.delete_checkpoint_from_tinker_path(path).result()),
        "publishing": refusal(lambda: rest.publish_checkpoint_from_tinker_path(path).result()),
    }
    for key in sys.argv[4:]:
        other, their = tinker.ServiceClient(api_key=key), tinker.RestClient(api_key=key)
        attempts: dict[str, Callable[[], Any]] = {
            "sample": lambda other=other: other.create_sampling_client(model_path=path).result(),
            "train": lambda other=other: other.create_training_client_from_state(path).result(),
            "list": lambda their=their: their.list_checkpoints(run).result(),
            "info": lambda their=their: their.get_weights_info_by_tinker_path(path).result(),
            "with a tenant's name": lambda: sample(
                model_path="tinker://art:ann~flow:agent/weights/2"
            ).result(),
        }
        told["foreign"] = {name: refusal(attempt) for name, attempt in attempts.items()}
    print(json.dumps(told), flush=True)
    service.close("success").result()


if __name__ == "__main__":
    main()
