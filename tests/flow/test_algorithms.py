"""Every algorithm and every way of asking for one makes a step through the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import Qwen3ForCausalLM

import art
from art.batch.algorithms import TABLE
from art.engine.nano_models import resolve
from art.errors import ConfigurationError, NotFoundError, RequestError
from serving import serving_in_a_thread

ROWS = [{"algorithm": name} for name, row in TABLE.items() if not row.needs]
VALUED = ("ppo_value", "turn_gae")
"""They have another critic than `ppo_critic`, and a model has one."""
OF_PROBE = [one for one in ROWS if one["algorithm"] not in VALUED]
PARTS: list[dict[str, Any]] = [
    {"algorithm": {"name": "distillation", "teacher": {"kind": "base"}}},
    {"algorithm": {"name": "distillation", "teacher": {"kind": "step", "step": 1}}},
    {"algorithm": {"name": "gdpo", "reward_parts": {"right": 1.0, "even": 0.5}}},
    {"algorithm": {"name": "reinforce++", "advantage": {"gamma": 0.9}}},
    {"algorithm": {"name": "dapo", "overlong": {"limit": 12, "band": 6}}},
    {"algorithm": {"name": "rloo", "kl": {"estimator": "k1", "coefficient": 0.01, "place": "reward"}}},
    {"algorithm": {"name": "reinforce++", "kl": {"coefficient": 0.01, "place": "reward"}}},
    {"kl_penalty_coef": 0.1},
    {"kl_penalty_coef": 0.1, "kl_penalty_reference_step": 2},
    {"kimi_k2_tau": 0.1},
    {"truncated_importance_sampling": 2.0},
    {"loss_fn": "ppo", "mask_prob_ratio": True},
    {"importance_sampling_level": "sequence"},
    {"advantage_balance": 0.5},
    {"max_negative_advantage_importance_sampling_weight": 3.0},
]


async def play(model: art.TrainableModel, reward: float, **sampling: Any) -> art.Trajectory:
    said = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "yes or no?"}],
        reward=reward,
        metrics={"right": reward, "even": reward != 1},
    )
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=said.messages(), max_tokens=6, **sampling
    )
    said.messages_and_choices.append(completion.choices[0])
    return said


async def plan_and_play(model: art.TrainableModel, reward: float) -> art.Trajectory:
    """Two calls, the first greedy."""
    said = await play(model, reward, temperature=0)
    said.messages_and_choices.append({"role": "user", "content": "sure?"})
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=said.messages(), max_tokens=6
    )
    said.messages_and_choices.append(completion.choices[0])
    return said


async def play_groups(
    model: art.TrainableModel, rollout: Callable[..., Any] = play, **sampling: Any
) -> list[art.TrajectoryGroup]:
    return await art.gather_trajectory_groups(
        art.TrajectoryGroup(rollout(model, float(reward), **sampling) for reward in range(3))
        for _ in range(2)
    )


def replies_differ(group: art.TrajectoryGroup) -> bool:
    """Whether one reply earns more on average than another: a tree of rollouts has no other signal."""
    rewards: dict[str, list[float]] = {}
    for one in group:
        assert isinstance(one.reward, float)
        rewards.setdefault(str(one.messages()), []).append(one.reward)
    return len({sum(some) / len(some) for some in rewards.values()}) > 1


@pytest.mark.slow
async def test_every_algorithm_makes_a_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    internal = {"trainer_args": {"warmup_steps": 1}}
    model = art.TrainableModel(name="a", project="p", base_model="art/nano", _internal_config=internal)
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        for step, options in enumerate([*OF_PROBE, *PARTS], 1):
            groups = await play_groups(model)
            result = await backend.train(model, groups, **{"learning_rate": 1e-4, **options})
            assert result.step == step, options
            least = 4 if options != {"algorithm": "turn_tree"} else 2 * any(map(replies_differ, groups))
            assert result.metrics["trained"] == (least > 0), options
            if least:
                assert result.metrics["loss/learning_rate"] == (5e-5 if step == 1 else 1e-4)
                assert result.sheet.fates["trained"].rollouts >= least
            assert sum(fate.rollouts for fate in result.sheet.fates.values()) == 6

        chosen = await backend.train(model, await play_groups(model), learning_rate=None)
        assert 1e-4 < chosen.metrics["loss/learning_rate"] < 1e-2

        # What it was drawn from is what is trained.
        truncated = await play_groups(model, temperature=0.8, top_p=0.9, extra_body={"top_k": 30})
        agreed = await backend.train(model, truncated)
        assert agreed.metrics["loss/logprob_difference_max"] < 1e-3

        greedy = await play_groups(model, temperature=0)
        with pytest.raises(RequestError, match=r"nothing can be trained.*6 greedy.*temperature = 0\.0"):
            await backend.train(model, greedy)
        # One greedy call of an agent is context: the other is trained, under exactly its own distribution.
        mixed = await play_groups(model, plan_and_play)
        trained = await backend.train(model, [*mixed, *greedy])
        fates, agreed_by = trained.sheet.fates, trained.metrics["loss/logprob_difference_max"]
        assert fates["trained"].rollouts == 4 and fates["context"].tokens > 0 and agreed_by < 1e-3
        assert fates["untrainable"].rollouts == 6
        assert trained.metrics["data/sheet/context_greedy_samples"] == 4 + 6
        assert (
            "10 samples" in caplog.text and "are context and were not trained: drawn greedily" in caplog.text
        )
        assert (await backend.train(model, greedy, algorithm="sft")).metrics["trained"] == 1
        with pytest.raises(NotFoundError, match=r"step = 99.*its steps: \[0, 1, "):
            gone = {"name": "distillation", "teacher": {"kind": "step", "step": 99}}
            await backend.train(model, await play_groups(model), algorithm=gone)


@pytest.mark.slow
async def test_a_value_model_is_warmed_up_saved_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The step of a warm-up serves the same policy."""

    def model() -> art.TrainableModel:
        return art.TrainableModel(name="a", project="p", base_model="art/nano")

    async def step(name: str, backend: art.LocalBackend, trained: art.TrainableModel) -> art.TrainResult:
        groups = await play_groups(trained, plan_and_play)
        asked = {"name": name, "critic": {"warmup_steps": 1}}
        return await backend.train(trained, groups, learning_rate=1e-4, algorithm=asked)

    first, again = model(), model()
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await first.register(backend)
        warming = await step("ppo_value", backend, first)
        assert warming.step == 1 and warming.metrics["loss/grad_norm"] == 0.0
        learned = await step("turn_gae", backend, first)
        assert learned.step == 2 and learned.metrics["loss/grad_norm"] > 0.0
    adapters = [
        (
            tmp_path / "p" / "models" / "a" / "checkpoints" / f"{at:04d}" / "adapter_model.safetensors"
        ).read_bytes()
        for at in range(3)
    ]
    assert adapters[0] == adapters[1] != adapters[2]
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await again.register(backend)
        assert (await step("turn_gae", backend, again)).step == 3
        with pytest.raises(ConfigurationError, match=r"has the critic {.kind.: .adapter., .rank.: 16"):
            await backend.train(again, await play_groups(again), algorithm="ppo_critic")


@pytest.fixture
def teacher() -> Iterator[str]:
    """The untouched model behind the route that vLLM answers."""
    model = Qwen3ForCausalLM.from_pretrained(resolve("art/nano"), dtype=torch.float32).eval()

    async def completions(request: Request) -> JSONResponse:
        ids = (await request.json())["prompt"]
        with torch.no_grad():
            logprobs_TV = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        told = [{str(token): {"logprob": float(logprobs_TV[at, token])}} for at, token in enumerate(ids[1:])]
        return JSONResponse({"choices": [{"prompt_logprobs": [None, *told]}]})

    app = Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])])
    with serving_in_a_thread(app) as url:
        yield f"{url}/v1"


@pytest.mark.slow
async def test_a_teacher_behind_http_pulls_the_student_back(tmp_path: Path, teacher: str) -> None:
    model = art.TrainableModel(name="a", project="p", base_model="art/nano")
    taught = {"name": "distillation", "teacher": {"kind": "server", "url": teacher, "model": "big"}}
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        # The fresh adapter changes nothing: student and teacher are one model, and there is nothing to learn.
        first = await backend.train(model, await play_groups(model), algorithm=taught)
        assert abs(first.metrics["loss/train"]) < 1e-3
        await backend.train(model, await play_groups(model), learning_rate=1e-2)
        away = await backend.train(model, await play_groups(model), algorithm=taught, learning_rate=1e-2)
        # An estimate from a dozen tokens: its sign is chance where the student has moved little.
        assert abs(away.metrics["loss/train"]) > 10 * abs(first.metrics["loss/train"])
        elsewhere = {**taught, "teacher": {**taught["teacher"], "url": "http://10.0.0.1/v1"}}
        with pytest.raises(ConfigurationError, match=r"teacher\.urls"):
            await backend.train(model, await play_groups(model), algorithm=elsewhere)
