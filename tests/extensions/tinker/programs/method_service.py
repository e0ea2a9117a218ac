"""Checks of the methods of ServiceClient."""

from __future__ import annotations

import asyncio
from typing import Any

import tinker
from method_calls import BASE, RANK, Clients, both, checks, near, same
from tinker import types


@checks("ServiceClient.get_server_capabilities", "ServiceClient.get_server_capabilities_async")
def capabilities(clients: Clients) -> str:
    found = [
        clients.service.get_server_capabilities(),
        asyncio.run(clients.service.get_server_capabilities_async()),
        clients.rest.get_server_capabilities().result(),
    ]
    for one in found:
        model = next(one for one in one.supported_models if one.model_name == BASE)
        same([model.model_name, model.trainable, model.sampleable], [BASE, True, True])
        assert model.max_context_length > 100
    return "the base models that are loaded, with their context"


@checks("ServiceClient.create_lora_training_client", "ServiceClient.create_lora_training_client_async")
def create(clients: Clients) -> str:
    first, second = both(
        clients.service, "create_lora_training_client", BASE, rank=RANK, seed=3, user_metadata={"a": "b"}
    )
    for one in (first, second):
        same(one.get_info().lora_rank, RANK)
        same(clients.rest.get_training_run(one.model_id).result().user_metadata, {"a": "b"})
        clients.train(one)
    assert first.model_id != second.model_id
    assert near(clients.logprobs(first), clients.logprobs(second), 1e-6), "the seed does not settle the model"
    attention = clients.service.create_lora_training_client(BASE, rank=RANK, train_mlp=False).result()
    clients.train(attention)
    return "equal seeds train equal models; rank, metadata and train_mlp=False are taken"


@checks(
    "ServiceClient.create_training_client_from_state",
    "ServiceClient.create_training_client_from_state_async",
)
def from_state(clients: Clients) -> str:
    path = clients.saved("from-state")
    pair = both(clients.service, "create_training_client_from_state", path)
    for one in pair:
        assert near(clients.logprobs(one), clients.logprobs(clients.training))
    clients.train(pair[0])
    assert not near(clients.logprobs(pair[0]), clients.logprobs(pair[1])), "it does not train"
    assert near(clients.logprobs(pair[1]), clients.logprobs(clients.training)), "training changed the source"
    return "logprobs equal those of the saved model, and it trains apart from it"


@checks(
    "ServiceClient.create_training_client_from_state_with_optimizer",
    "ServiceClient.create_training_client_from_state_with_optimizer_async",
)
def with_optimizer(clients: Clients) -> str:
    model = clients.trainer(seed=11)
    clients.train(model, steps=3)
    path = model.save_state("moments").result().path
    resumed, again = both(clients.service, "create_training_client_from_state_with_optimizer", path)
    fresh = clients.service.create_training_client_from_state(path).result()
    for one in (model, resumed, again, fresh):
        clients.train(one)
    expected = clients.logprobs(model)
    assert near(clients.logprobs(resumed), expected, 1e-3), "the step after it is another one"
    assert near(clients.logprobs(again), expected, 1e-3)
    assert not near(clients.logprobs(fresh), expected, 1e-3), "without the optimizer it should differ"
    return "the next step is the one that the saved run makes"


@checks("ServiceClient.create_sampling_client", "ServiceClient.create_sampling_client_async")
def sampling(clients: Clients) -> str:
    first, second = both(clients.service, "create_sampling_client", base_model=BASE)
    same(clients.answers(first), clients.answers(second))
    path = clients.training.save_weights_for_sampler("service").result().path
    trained = clients.service.create_sampling_client(model_path=path).result()
    same(clients.answers(trained, temperature=0.0), clients.answers(clients.sampler, temperature=0.0))
    state = clients.service.create_sampling_client(model_path=clients.saved("to-sample")).result()
    same(clients.answers(state, temperature=0.0), clients.answers(clients.sampler, temperature=0.0))
    same(trained.get_base_model(), clients.folder)
    return "samples the base model, sampler weights and saved states"


@checks("ServiceClient.copy_weights")
def copy(clients: Clients) -> str:
    path = clients.saved("to-copy")
    copied = clients.service.copy_weights(path, ttl_seconds=3600).result()
    assert copied != path
    assert copied.endswith("/weights/to-copy")
    model = clients.service.create_training_client_from_state(copied).result()
    assert near(clients.logprobs(model), clients.logprobs(clients.training))
    clients.rest.delete_checkpoint_from_tinker_path(path).result()
    again = clients.service.create_training_client_from_state(copied).result()
    assert near(clients.logprobs(again), clients.logprobs(clients.training))
    return "the copy loads, also when the source is deleted"


def summed(logprobs: Any, weights: Any) -> Any:
    loss = -(logprobs * weights).sum()
    return loss, {"custom/total:sum": loss}


def clipped(logprobs: Any, old: Any, advantages: Any) -> Any:
    ratio = (logprobs - old).exp()
    loss = -(ratio.clamp(0.8, 1.2) * advantages).minimum(ratio * advantages).sum()
    return loss, {"custom/ratio:mean": ratio.mean()}


@checks("ServiceClient.create_custom_loss")
def custom_loss(clients: Clients) -> str:
    handle = clients.service.create_custom_loss(summed, {"logprobs": 1, "weights": 1}).result()
    assert handle.loss_id is not None
    model = clients.trainer(seed=21)
    expected = -clients.logprobs(model).sum()
    output = model.forward_backward_custom([clients.datum()], handle).result()
    assert near(output.metrics["custom/total:sum"], expected, 1e-2), (output.metrics, expected)
    assert near(output.metrics["loss:sum"], expected, 1e-2), (output.metrics, expected)

    ranks = {"logprobs": 1, "old": 1, "advantages": 1}
    handle = clients.service.create_custom_loss(clipped, ranks).result()
    plain = clients.sampled()
    columns = dict(plain.loss_fn_inputs)
    columns["old"] = columns.pop("logprobs")
    own = types.Datum(model_input=plain.model_input, loss_fn_inputs=columns)
    ends = []
    for step in (
        lambda made: made.forward_backward_custom([own], handle),
        lambda made: made.forward_backward([plain], "ppo"),
    ):
        made = clients.trainer(seed=22)
        for _ in range(2):
            step(made).result()
        made.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        ends.append(clients.logprobs(made))
    assert near(*ends, 1e-4), ends
    return "the server runs the loss's graph; `ppo` written as one trains as `ppo`"


@checks("ServiceClient.create_rest_client")
def rest(clients: Clients) -> str:
    made = clients.service.create_rest_client()
    same(clients.training.model_id in listed(made), True)
    return "lists the runs"


def listed(rest_client: tinker.RestClient) -> list[str]:
    return [one.training_run_id for one in rest_client.list_training_runs(limit=100).result().training_runs]


@checks("ServiceClient.get_console_url", "TrainingClient.get_console_url")
def console(clients: Clients) -> str:
    assert clients.session_id in clients.service.get_console_url()
    assert clients.training.model_id in clients.training.get_console_url()
    return "the client makes the URL itself, of the hosted service's console"


@checks(
    "ServiceClient.get_telemetry",
    "TrainingClient.get_telemetry",
    "SamplingClient.get_telemetry",
    "RestClient.get_telemetry",
)
def telemetry(clients: Clients) -> str:
    for one in (clients.service, clients.training, clients.sampler, clients.rest):
        one.get_telemetry()
    return "what it sends is thrown away"


@checks("ServiceClient.close")
def close(clients: Clients) -> str:
    service = tinker.ServiceClient(display_name="to close")
    session_id = service.create_sampling_client(base_model=BASE).result().holder.get_session_id()
    service.close("errored", detail="as planned").result()
    service.close("success").result()
    asked = tinker.types.SessionSearchRequest(session_id=session_id)
    (found,) = clients.rest.search_sessions(asked).result().sessions
    same(
        [found.status.type, found.status.reason.type, found.status.detail],
        ["client_finished", "errored", "as planned"],
    )
    return "ends the session; the first reason counts"
