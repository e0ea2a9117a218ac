"""Wrong requests: which class of error the SDK raises for each, and with what words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tinker
from method_calls import BASE, RANK, Clients, message_of, tell
from tinker import types

Wrong = Callable[[Clients], Any]


def unknown_base(clients: Clients) -> Any:
    return clients.service.create_lora_training_client("nobody/nothing", rank=RANK).result()


def unknown_base_to_sample(clients: Clients) -> Any:
    return clients.service.create_sampling_client(base_model="nobody/nothing").result()


def unknown_path(clients: Clients) -> Any:
    return clients.service.create_training_client_from_state(
        f"tinker://{clients.training.model_id}/weights/none"
    ).result()


def no_path(clients: Clients) -> Any:
    return clients.service.create_sampling_client(model_path="tinker://nothing").result()


def external_path(clients: Clients) -> Any:
    path = clients.training.save_weights_external("not-to-load").result().path
    return clients.service.create_training_client_from_state(path).result()


def wrong_key(clients: Clients) -> Any:
    return tinker.ServiceClient(api_key="tml-wrong").create_sampling_client(base_model=BASE).result()


def too_long(clients: Clients) -> Any:
    ids = (clients.ids * 2000)[:40000]
    return clients.trainer().forward_backward([clients.datum(ids=ids)], "cross_entropy").result()


def too_long_prompt(clients: Clients) -> Any:
    prompt = types.ModelInput.from_ints((clients.ids * 2000)[:40000])
    return clients.sampler.sample(prompt, 1, types.SamplingParams(max_tokens=1)).result()


def id_outside(clients: Clients) -> Any:
    return clients.trainer().forward([clients.datum(ids=[1, 2, 10**7])], "cross_entropy").result()


def nan_advantages(clients: Clients) -> Any:
    return clients.trainer().forward_backward([clients.sampled(math.nan)], "importance_sampling").result()


def wrong_shape(clients: Clients) -> Any:
    datum = clients.sampled()
    columns = {**datum.loss_fn_inputs, "advantages": types.TensorData(data=[1.0], dtype="float32", shape=[1])}
    wrong = types.Datum(model_input=datum.model_input, loss_fn_inputs=columns)
    return clients.trainer().forward_backward([wrong], "importance_sampling").result()


def unknown_loss(clients: Clients) -> Any:
    loss: Any = "no_such_loss"
    return clients.trainer().forward_backward([clients.datum()], loss).result()


def refused_operation(clients: Clients) -> Any:
    def loss(logprobs: Any) -> Any:
        return logprobs.sort()[0].sum(), {}

    return clients.service.create_custom_loss(loss, {"logprobs": 1}).result()


def missing_input(clients: Clients) -> Any:
    def loss(logprobs: Any, reward: Any) -> Any:
        return logprobs.sum() * reward, {}

    own = clients.service.create_custom_loss(loss, {"logprobs": 1, "reward": 0}).result()
    config: Any = {"loss_id": own.loss_id}
    return clients.trainer().forward_backward([clients.datum()], "custom", config).result()


def unknown_config(clients: Clients) -> Any:
    return clients.trainer().forward_backward([clients.sampled()], "ppo", {"clip": 0.1}).result()


def other_optimizer(clients: Clients) -> Any:
    optimizer = types.optimizer.DimuonOptimizerConfig()
    return clients.service.create_lora_training_client(BASE, rank=RANK, optimizer=optimizer).result()


def other_step(clients: Clients) -> Any:
    return clients.trainer().optim_step(types.optimizer.DimuonParams(learning_rate=0.1)).result()


def negative_rate(clients: Clients) -> Any:
    return clients.trainer().optim_step(types.AdamParams(learning_rate=-1.0)).result()


def bad_name(clients: Clients) -> Any:
    return clients.training.save_state("../up").result()


def train_a_copy(clients: Clients) -> Any:
    copied = clients.rest.copy_weights(clients.saved("of-a-copy"), "another project").result()
    run_id = copied.removeprefix("tinker://").partition("/")[0]
    client = tinker.TrainingClient(clients.service.holder, 0, run_id, info=clients.training.get_info())
    return client.optim_step(types.AdamParams()).result()


def closed_session(clients: Clients) -> Any:
    """The client itself would refuse first, so a second one speaks for the session."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(BASE, rank=RANK).result()
    tinker.ServiceClient()
    other = tinker.TrainingClient(clients.service.holder, 0, client.model_id, info=client.get_info())
    service.close("success").result()
    return other.forward_backward([clients.datum()], "cross_entropy").result()


def many_samples(clients: Clients) -> Any:
    return clients.sampler.sample(clients.prompt, 10**6, types.SamplingParams(max_tokens=1)).result()


def unknown_run(clients: Clients) -> Any:
    return clients.rest.get_training_run("nothing:train:0").result()


def unknown_session(clients: Clients) -> Any:
    return clients.rest.get_session("nothing").result()


ERRORS: dict[str, Wrong] = {
    "a base model that is unknown": unknown_base,
    "a base model that is unknown, to sample": unknown_base_to_sample,
    "a path where nothing is": unknown_path,
    "a path that is none": no_path,
    "external weights, to load": external_path,
    "a wrong key": wrong_key,
    "a datum longer than the context": too_long,
    "a prompt longer than the context": too_long_prompt,
    "an id that the model lacks": id_outside,
    "advantages that are NaN": nan_advantages,
    "a column of a wrong shape": wrong_shape,
    "a loss that is unknown": unknown_loss,
    "a custom loss with an operation that the server does not run": refused_operation,
    "a datum without an input of its custom loss": missing_input,
    "a name that the loss's configuration lacks": unknown_config,
    "an optimizer that is not supported": other_optimizer,
    "a step of such an optimizer": other_step,
    "a learning rate below 0": negative_rate,
    "a name that no file can have": bad_name,
    "a step of a copy": train_a_copy,
    "a session that has ended": closed_session,
    "a million samples": many_samples,
    "a run that is unknown": unknown_run,
    "a session that is unknown": unknown_session,
}


def tell_errors(clients: Clients) -> None:
    """Tells the class and the words of each."""
    for name, wrong in ERRORS.items():
        try:
            wrong(clients)
        except Exception as error:  # noqa: BLE001  its class is what is told
            tell(f"error: {name}", type(error).__name__, message_of(error))
        else:
            tell(f"error: {name}", "none", "")
