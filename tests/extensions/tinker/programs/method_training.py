"""Checks of the methods of TrainingClient."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import urllib.request
from typing import Any

import numpy as np
import tinker
from method_calls import BASE, RANK, Clients, awaited, both, checks, near, same
from tinker import types

ADAM = types.AdamParams(learning_rate=1e-2)


def values(output: types.ForwardBackwardOutput, at: int = 0) -> Any:
    return output.loss_fn_outputs[at]["logprobs"].to_numpy()


@checks("TrainingClient.get_info", "TrainingClient.get_info_async")
def info(clients: Clients) -> str:
    for found in (clients.training.get_info(), asyncio.run(clients.training.get_info_async())):
        same([found.model_id, found.model_name], [clients.training.model_id, BASE])
        same([found.model_data.model_name, found.model_data.tokenizer_id], [clients.folder] * 2)
        same([found.is_lora, found.lora_rank], [True, RANK])
    return "base model, rank and tokenizer"


@checks("TrainingClient.get_tokenizer")
def tokenizer(clients: Clients) -> str:
    text = "Of course: 12 + 5."
    same(clients.tokenizer.decode(clients.tokenizer.encode(text)), text)
    return "where the client sees this machine's files; of models of the hub, everywhere"


@checks("TrainingClient.forward", "TrainingClient.forward_async")
def forward(clients: Clients) -> str:
    model = clients.trainer(seed=31)
    before = clients.logprobs(model)
    data = [clients.datum(), clients.datum(weight=0.5)]
    for output in both(model, "forward", data, "cross_entropy"):
        assert near(values(output), before)
        assert near(output.metrics["loss:sum"], -1.5 * before.sum(), 1e-2), output.metrics
    model.forward_backward([clients.datum(weight=0.0)], "cross_entropy")
    made = model.optim_step(ADAM).result()
    same(made.metrics["unclipped_grad_l2:mean"], 0.0)
    assert near(clients.logprobs(model), before), "a forward left a gradient"
    return "logprobs and the loss, a sum; it leaves no gradient"


@checks("TrainingClient.forward_backward", "TrainingClient.forward_backward_async")
def forward_backward(clients: Clients) -> str:
    apart, whole = clients.trainer(seed=32), clients.trainer(seed=32)
    texts = [clients.ids, clients.ids[3:], clients.ids[:5]]
    first = apart.forward_backward([clients.datum(ids=texts[0])], "cross_entropy")
    second = asyncio.run(
        awaited(apart.forward_backward_async([clients.datum(ids=one) for one in texts[1:]], "cross_entropy"))
    )
    parts = apart.optim_step(ADAM).result()
    output = whole.forward_backward([clients.datum(ids=one) for one in texts], "cross_entropy").result()
    made = whole.optim_step(ADAM).result()
    for left, right in zip([first.result(), second, second], (0, 0, 1), strict=True):
        assert near(values(left, right), values(output, 0 if left is not second else right + 1))
    norm = "unclipped_grad_l2:mean"
    assert abs(parts.metrics[norm] / made.metrics[norm] - 1) < 1e-2, (parts.metrics, made.metrics)
    assert near(clients.logprobs(apart), clients.logprobs(whole), 1e-2)
    mixed(clients)
    return f"gradients add up until the step, also of several losses; {chunked(clients)}"


def mixed(clients: Clients) -> None:
    """Each loss, and all of them before one step."""
    model = clients.trainer(seed=33)
    before, clip = clients.logprobs(model), {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}
    ratio = float(np.exp(before + 1.0).sum())
    output = model.forward_backward([clients.sampled()], "importance_sampling").result()
    assert abs(output.metrics["loss:sum"] / -ratio - 1) < 1e-2, (output.metrics, ratio)
    clipped = float(np.minimum(np.exp(before + 1.0), 2.0).sum())
    output = model.forward_backward([clients.sampled()], "ppo", clip).result()
    assert abs(output.metrics["loss:sum"] / -clipped - 1) < 1e-2, (output.metrics, clipped)
    model.forward_backward([clients.sampled(-1.0)], "cispo", clip)
    model.forward_backward([clients.sampled()], "dro", {"beta": 0.1})
    model.forward_backward([clients.datum()], "cross_entropy")
    assert model.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"] > 0
    assert not near(clients.logprobs(model), before)


def chunked(clients: Clients) -> str:
    """More datums than one request takes; their logprobs come back in order."""
    model = clients.trainer(seed=34)
    most = model.holder.get_client_config().fwdbwd_max_chunk_len
    texts = [[clients.ids[at % 7], clients.ids[at % 5], clients.ids[at % 3]] for at in range(most + 76)]
    output = model.forward_backward([clients.datum(ids=one) for one in texts], "cross_entropy").result()
    same(len(output.loss_fn_outputs), len(texts))
    for at in (0, 1, most - 1, most, most + 75):
        alone = model.forward([clients.datum(ids=texts[at])], "cross_entropy").result()
        assert near(values(output, at), values(alone)), at
    total = -sum(float(values(output, at).sum()) for at in range(len(texts)))
    assert abs(output.metrics["loss:sum"] / total - 1) < 1e-3, (output.metrics, total)
    model.optim_step(ADAM).result()
    return f"{len(texts)} datums come in two requests"


@checks("TrainingClient.forward_backward_custom", "TrainingClient.forward_backward_custom_async")
def custom(clients: Clients) -> str:
    theirs, ours = clients.trainer(seed=35), clients.trainer(seed=35)

    def loss(data: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        total = -sum(one.sum() for one in logprobs)
        return total, {"total": float(total)}

    for output in both(theirs, "forward_backward_custom", [clients.datum()], loss):
        assert near(output.metrics["total"], -clients.logprobs(ours).sum(), 1e-2)
    ours.forward_backward([clients.datum(weight=2.0)], "cross_entropy")
    left, right = theirs.optim_step(ADAM).result(), ours.optim_step(ADAM).result()
    norm = "unclipped_grad_l2:mean"
    assert abs(left.metrics[norm] / right.metrics[norm] - 1) < 1e-2
    return "its gradient is that of the same loss of the server"


@checks("TrainingClient.optim_step", "TrainingClient.optim_step_async")
def optim_step(clients: Clients) -> str:
    def after(*, trained: int = 1, **options: Any) -> tuple[Any, Any]:
        """The logprobs after a step of a model that had some, and the norm of its gradient."""
        model = clients.trainer(seed=36)
        if trained:
            clients.train(model)
        model.forward_backward([clients.datum()], "cross_entropy")
        made = asyncio.run(awaited(model.optim_step_async(types.AdamParams(**options))))
        return clients.logprobs(model), made.metrics["unclipped_grad_l2:mean"]

    plain, norm = after(trained=0, learning_rate=1e-2, eps=1e5)
    clipped, unclipped_norm = after(trained=0, learning_rate=1e-2, eps=1e5, grad_clip_norm=1e-2 * norm)
    assert abs(unclipped_norm / norm - 1) < 1e-2, "the norm is told before it is clipped"
    base, _ = after(trained=0, learning_rate=0.0)
    assert not near(plain, base, 1e-4), f"a step of {norm} moves nothing"
    assert np.abs(clipped - base).max() < 0.5 * np.abs(plain - base).max(), "clipping changes nothing"
    still, _ = after(learning_rate=0.0)
    decayed, _ = after(learning_rate=0.5, eps=1e9, weight_decay=1.0)
    assert not near(decayed, still, 1e-3), "weight decay changes nothing"
    quick, _ = after(learning_rate=1e-2, beta1=0.1)
    slow, _ = after(learning_rate=1e-2, beta1=0.99)
    assert not near(quick, slow, 1e-4), "beta1 changes nothing"
    return "learning rate, betas, eps, weight decay and clipping act"


@checks("TrainingClient.save_state", "TrainingClient.save_state_async")
def save_state(clients: Clients) -> str:
    first, second = both(
        clients.training, "save_state", "kept", ttl_seconds=7200, overwrite=True, user_metadata={"k": "v"}
    )
    same(first.path, second.path)
    same(first.path, f"tinker://{clients.training.model_id}/weights/kept")
    (found,) = [
        one
        for one in clients.rest.list_checkpoints(clients.training.model_id).result().checkpoints
        if one.tinker_path == first.path
    ]
    same([found.checkpoint_type, found.user_metadata], ["training", {"k": "v"}])
    assert 7000 < (found.expires_at - found.time).total_seconds() < 7300
    try:
        clients.saved("kept")
    except tinker.RequestFailedError as error:
        assert "overwrite" in str(error), error
    else:
        raise AssertionError("it was overwritten")
    return "with time to live, metadata and overwrite"


@checks(
    "TrainingClient.load_state",
    "TrainingClient.load_state_async",
    "TrainingClient.load_state_with_optimizer",
    "TrainingClient.load_state_with_optimizer_async",
)
def load_state(clients: Clients) -> str:
    model = clients.trainer(seed=37)
    clients.train(model, steps=2)
    before, path = clients.logprobs(model), model.save_state("before").result().path
    for name in ("load_state", "load_state_with_optimizer"):
        clients.train(model)
        assert not near(clients.logprobs(model), before)
        loaded, _ = both(model, name, path)
        same(loaded.path, path)
        assert near(clients.logprobs(model), before)
    clients.train(model)
    return "the run goes on with the saved weights; and with their optimizer"


@checks("TrainingClient.save_weights_for_sampler", "TrainingClient.save_weights_for_sampler_async")
def save_for_sampler(clients: Clients) -> str:
    first, second = both(clients.training, "save_weights_for_sampler", "for-sampler", ttl_seconds=3600)
    same(first.path, second.path)
    same(first.path, f"tinker://{clients.training.model_id}/sampler_weights/for-sampler")
    return "the path samples with ServiceClient.create_sampling_client"


@checks(
    "TrainingClient.save_weights_and_get_sampling_client",
    "TrainingClient.save_weights_and_get_sampling_client_async",
)
def save_and_sample(clients: Clients) -> str:
    old = clients.trainer(seed=38)
    first, second = both(old, "save_weights_and_get_sampling_client")
    same(clients.answers(first), clients.answers(second))
    before = clients.answers(first)
    clients.train(old, steps=3)
    newer = old.save_weights_and_get_sampling_client().result()
    scored = newer.compute_logprobs(types.ModelInput.from_ints(clients.ids)).result()
    assert near(scored[1:], clients.logprobs(old), 0.05), "the sampler has other weights"
    same(clients.answers(first), before)
    return "samples the weights of that moment, also after later steps"


@checks("TrainingClient.create_sampling_client", "TrainingClient.create_sampling_client_async")
def create_sampling(clients: Clients) -> str:
    path = clients.training.save_weights_for_sampler("own").result().path
    for one in both(clients.training, "create_sampling_client", path):
        same(clients.answers(one, temperature=0.0), clients.answers(clients.sampler, temperature=0.0))
    return "samples saved weights"


@checks(
    "TrainingClient.save_weights_external",
    "TrainingClient.save_weights_external_async",
    "RestClient.get_external_weights_urls",
    "RestClient.get_external_weights_urls_async",
)
def external(clients: Clients) -> str:
    first, second = both(clients.training, "save_weights_external", "files", ttl_seconds=3600)
    same(first.path, second.path)
    for found in both(clients.rest, "get_external_weights_urls", first.path):
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(found.urls), found.urls
        same(json.loads(fetched(found.urls["adapter_config.json"]))["r"], RANK)
        weights = fetched(found.urls["adapter_model.safetensors"])
        header = json.loads(weights[8 : 8 + struct.unpack("<Q", weights[:8])[0]])
        assert any("lora_A" in name for name in header), header
        changed = found.urls["adapter_config.json"].replace("expires=", "expires=9")
        same(refused(changed), 403)
    return f"the files of a PEFT adapter: {', '.join(sorted(found.urls))}"


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return io.BytesIO(reply.read()).getvalue()


def refused(url: str) -> int:
    try:
        fetched(url)
    except urllib.error.HTTPError as error:
        return error.code
    return 200
