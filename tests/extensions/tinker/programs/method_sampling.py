"""Checks of the methods of SamplingClient."""

from __future__ import annotations

import asyncio
import base64
import pickle
import subprocess
import sys
from typing import Any

import tinker
from method_calls import BASE, Clients, both, checks, finite, near, same
from tinker import types

ELSEWHERE = """
import base64, pickle, sys, warnings
warnings.simplefilter("ignore")
from tinker import types
sampler = pickle.loads(base64.b64decode(sys.stdin.read()))
ids = [int(one) for one in sys.argv[1].split(",")]
params = types.SamplingParams(max_tokens=6, seed=5)
found = sampler.sample(types.ModelInput.from_ints(ids), 2, params).result()
print([one.tokens for one in found.sequences])
"""


@checks("SamplingClient.sample", "SamplingClient.sample_async")
def sample(clients: Clients) -> str:
    params = types.SamplingParams(max_tokens=6, seed=1, temperature=1.0)
    first, second = both(clients.sampler, "sample", clients.prompt, 4, params)
    same([one.tokens for one in first.sequences], [one.tokens for one in second.sequences])
    assert len({tuple(one.tokens) for one in first.sequences}) > 1, "four equal samples"
    assert len({one.sequence_id for one in first.sequences}) == 4
    for one in first.sequences:
        same(len(one.tokens), len(one.logprobs))
        assert finite(one.logprobs)
    other = clients.answers(clients.sampler, seed=2, max_tokens=24)
    assert other != clients.answers(clients.sampler, seed=3, max_tokens=24), "the seed changes nothing"
    same(clients.answers(clients.sampler, top_k=1), clients.answers(clients.sampler, temperature=0.0))
    stops(clients)
    scores(clients)
    other_ids(clients)
    return (
        "seed, stop, temperature, top_k, top_p, top-k logprobs and prompt logprobs; of the prompt's places "
        "also logprobs of chosen ids, and draws"
    )


def stops(clients: Clients) -> None:
    """A stop ends a sample, and its tokens are part of it."""
    base = clients.service.create_sampling_client(base_model=BASE).result()
    (greedy, _) = clients.answers(base, temperature=0.0, max_tokens=12)
    place = next(at for at in range(1, len(greedy)) if greedy[at] not in greedy[:at])
    stop = greedy[place]
    for given in ([stop], clients.tokenizer.decode([stop]), [clients.tokenizer.decode([stop]), "@@@"]):
        params = types.SamplingParams(max_tokens=12, temperature=0.0, stop=given)
        (found,) = base.sample(clients.prompt, 1, params).result().sequences
        same([found.tokens, found.stop_reason], [greedy[: place + 1], "stop"])
        same(len(found.logprobs), place + 1)
    (cut,) = (
        base.sample(clients.prompt, 1, types.SamplingParams(max_tokens=3, temperature=0.0)).result().sequences
    )
    same([cut.tokens, cut.stop_reason], [greedy[:3], "length"])
    endless = types.SamplingParams(max_tokens=200, seed=4, stop=[])
    for one in base.sample(clients.prompt, 2, endless).result().sequences:
        same([len(one.tokens), one.stop_reason], [200, "length"])


def scores(clients: Clients) -> None:
    """Logprobs of the prompt, of its last tokens, and the likeliest ones beside prompt and sample."""
    ids = clients.prompt.to_ints()
    found = clients.sampler.sample(
        clients.prompt,
        1,
        types.SamplingParams(max_tokens=4, temperature=0.0),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
        topk_sample_logprobs=2,
    ).result()
    assert found.prompt_logprobs[0] is None
    assert near(found.prompt_logprobs[1:], clients.logprobs(clients.training)[: len(ids) - 1], 0.05)
    same(len(found.topk_prompt_logprobs), len(ids))
    assert found.topk_prompt_logprobs[0] is None
    for at, top in enumerate(found.topk_prompt_logprobs[1:], 1):
        same(len(top), 3)
        same([score for _, score in top], sorted((score for _, score in top), reverse=True))
        beside = dict(top).get(ids[at], found.prompt_logprobs[at])
        assert near(beside, found.prompt_logprobs[at], 1e-4)
        assert top[-1][1] >= found.prompt_logprobs[at] or ids[at] in dict(top)
    (one,) = found.sequences
    for token, score, top in zip(one.tokens, one.logprobs, one.topk_logprobs, strict=True):
        same([len(top), top[0][0]], [2, token])
        assert near(top[0][1], score, 1e-4)
    last = clients.sampler.sample(
        clients.prompt,
        1,
        types.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        prompt_logprobs_last_n=3,
        topk_prompt_logprobs=2,
    ).result()
    same(last.prompt_logprobs[:-3], [None] * (len(ids) - 3))
    assert near(last.prompt_logprobs[-3:], found.prompt_logprobs[-3:])
    same([one is None for one in last.topk_prompt_logprobs], [True] * (len(ids) - 3) + [False] * 3)


def trained_logprobs(clients: Clients, targets: list[int]) -> Any:
    """Those of one id at each of the prompt's places, as the training client has them."""
    inputs = types.ModelInput.from_ints(clients.prompt.to_ints()[:-1])
    columns: dict[str, Any] = {"target_tokens": targets, "weights": [1.0] * len(targets)}
    datum = types.Datum(model_input=inputs, loss_fn_inputs=columns)
    output = clients.training.forward([datum], "cross_entropy").result()
    return output.loss_fn_outputs[0]["logprobs"].to_numpy()


def other_ids(clients: Clients) -> None:
    """Logprobs of chosen ids at the prompt's places, dense and sparse, and draws there."""
    ids, one = clients.prompt.to_ints(), types.SamplingParams(max_tokens=1, temperature=0.7, seed=3)
    rows = len(ids) - 1

    def asked(**given: Any) -> types.SampleResponse:
        return clients.sampler.sample(clients.prompt, 1, one, **given).result()

    table = [[ids[at + 1], -1, at % 300] for at in range(rows)]
    flat = [token for row in table for token in row]
    dense = types.TensorData(data=flat, dtype="int64", shape=[rows, 3])
    found = asked(target_prompt_logprobs=dense, include_prompt_logprobs=True, prompt_alt_tokens_k=40)
    told = found.target_prompt_logprobs
    same(told.shape, [rows, 3])
    assert near(told.data[0::3], found.prompt_logprobs[1:], 1e-4)
    same(told.data[1::3], [0.0] * rows)
    assert near(told.data[2::3], trained_logprobs(clients, [row[2] for row in table]), 0.05)
    drawn = found.prompt_alt_tokens
    same([drawn.tokens.shape, drawn.logprobs.shape], [[rows, 40], [rows, 40]])
    again = types.TensorData(data=list(drawn.tokens.data), dtype="int64", shape=[rows, 40])
    assert near(asked(target_prompt_logprobs=again).target_prompt_logprobs.data, drawn.logprobs.data, 1e-4)
    same(asked(prompt_alt_tokens_k=40).prompt_alt_tokens.tokens.data, drawn.tokens.data)
    sparse = types.TensorData(
        data=[ids[-1], ids[0]],
        dtype="int64",
        shape=[rows, 9],
        sparse_crow_indices=[0] * rows + [2],
        sparse_col_indices=[2, 8],
    )
    told = asked(target_prompt_logprobs=sparse).target_prompt_logprobs
    same(
        [told.shape, told.sparse_crow_indices, told.sparse_col_indices], [[rows, 9], [0] * rows + [2], [2, 8]]
    )
    assert near(told.data[:1], found.prompt_logprobs[-1:], 1e-4)
    try:
        asked(target_prompt_logprobs=types.TensorData(data=[1], dtype="int64", shape=[1, 1]))
    except tinker.RequestFailedError as error:
        assert f"a prompt of {len(ids)} ids takes {rows} rows" in str(error), error
    else:
        raise AssertionError("a tensor of another prompt was taken")


@checks("SamplingClient.compute_logprobs", "SamplingClient.compute_logprobs_async")
def compute_logprobs(clients: Clients) -> str:
    prompt = types.ModelInput.from_ints(clients.ids)
    for found in both(clients.sampler, "compute_logprobs", prompt):
        assert found[0] is None
        assert near(found[1:], clients.logprobs(clients.training), 0.05)
    last = clients.sampler.compute_logprobs(prompt, prompt_logprobs_last_n=2).result()
    same(last[:-2], [None] * (len(clients.ids) - 2))
    assert near(last[-2:], found[-2:])
    return "equal to those of the training client"


@checks("SamplingClient.create")
def create(clients: Clients) -> str:
    made = tinker.SamplingClient.create(clients.service.holder, base_model=BASE).result()
    joined = tinker.SamplingClient.create(
        clients.service.holder, sampling_session_id=clients.sampler._sampling_session_id
    ).result()
    assert clients.answers(made)
    same(joined.get_base_model(), clients.folder)
    return "samples"


@checks("SamplingClient.get_sampler_handle", "SamplingClient.from_sampler_handle")
def handle(clients: Clients) -> str:
    text = clients.sampler.get_sampler_handle()
    pair = [tinker.SamplingClient.from_sampler_handle(text) for _ in range(2)]
    for one in pair:
        same(clients.answers(one), clients.answers(clients.sampler))
    packed = base64.b64encode(pickle.dumps(clients.sampler))
    ids = ",".join(map(str, clients.prompt.to_ints()))
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, ids], input=packed, capture_output=True, timeout=240, check=True
    )
    same(done.stdout.decode().strip(), str(clients.answers(clients.sampler)))
    return "clients of a handle, and pickled ones of other processes, sample the same"


@checks("SamplingClient.get_base_model", "SamplingClient.get_base_model_async")
def base_model(clients: Clients) -> str:
    same(clients.sampler.get_base_model(), clients.folder)
    same(asyncio.run(clients.sampler.get_base_model_async()), clients.folder)
    named = clients.service.create_sampling_client(base_model=BASE).result()
    same(named.get_base_model(), BASE)
    return "the name that the program gave, else the base model's folder, or its name on the hub"


@checks("SamplingClient.get_tokenizer")
def tokenizer(clients: Clients) -> str:
    path = clients.training.save_weights_for_sampler("tokenizer").result().path
    saved = clients.service.create_sampling_client(model_path=path).result()
    for sampler in (clients.sampler, saved):
        same(
            sampler.get_tokenizer().encode("Of course: 12 + 5."),
            clients.tokenizer.encode("Of course: 12 + 5."),
        )
    named = clients.service.create_sampling_client(base_model=BASE).result()
    try:
        named.get_tokenizer()
    except OSError:
        return "of trained weights, as the training client's; of a base model, by the name that was given"
    raise AssertionError("the hub has such a model")


@checks("SamplingClient.on_queue_state_change")
def queue_state(clients: Clients) -> str:
    for state in tinker.lib.api_future_impl.QueueState:
        clients.sampler.on_queue_state_change(state, None)
    return "the client's own; this server's queues are always active"
