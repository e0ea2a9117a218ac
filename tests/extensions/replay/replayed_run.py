"""Runs whose servers have ended: three steps by rewards, one by examples and one without a signal; or steps
by examples and by preferences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import art
from art_extensions.preferences import train_dpo, train_kto, train_reward_model

KEY = "games/player"
STEPS = 3
BY_EXAMPLES, WITHOUT_SIGNAL = 4, 5
KEPT = 3
"""The server keeps the requests of the newest steps, so that steps 2 and 3 have theirs in a file."""
ASK = {"role": "user", "content": "answer with yes or no"}
Model = art.TrainableModel[Any, Any]


async def play(model: Model, seed: int, reward: float) -> art.Trajectory:
    """A rollout of two turns, whose reward is known before it is played."""
    said = art.Trajectory(messages_and_choices=[ASK], reward=reward)
    for turn in range(2):
        reply = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=said.messages(), max_tokens=8, seed=10 * seed + turn
        )
        said.messages_and_choices.append(reply.choices[0])
        if not turn:
            said.messages_and_choices.append({"role": "user", "content": "and why?"})
    return said


async def play_groups(model: Model, rewards: list[float]) -> list[art.TrajectoryGroup]:
    return [
        await art.TrajectoryGroup([play(model, 10 * group + n, one) for n, one in enumerate(rewards)])
        for group in range(2)
    ]


async def make_run(
    data_dir: Path, *, dropout: float = 0.0, trainer: dict[str, Any] | None = None, **options: Any
) -> None:
    """Trains a nano model; trainer: options of the worker; options: of the steps by rewards."""
    model = art.TrainableModel(
        name="player",
        project="games",
        base_model="art/nano",
        _internal_config={"peft_args": {"lora_dropout": dropout}},
    )
    server = {"control": {"replay_steps": KEPT}, "trainer": {"options": trainer or {}}}
    async with art.LocalBackend(path=str(data_dir), server_options=server) as backend:
        await model.register(backend)
        for _ in range(STEPS):
            groups = await play_groups(model, [0.0, 0.25, 0.5, 1.0])
            await backend.train(model, groups, learning_rate=1e-3, **options)
        said = [ASK, {"role": "assistant", "content": "yes"}]
        await model.train_sft([art.Trajectory(messages_and_choices=said, reward=0.0)])
        await backend.train(model, await play_groups(model, [0.5] * 4), learning_rate=1e-3, **options)


async def make_short_run(data_dir: Path, **server: Any) -> None:
    """Trains one step by rewards, of a server with these options."""
    model = art.TrainableModel(name="player", project="games", base_model="art/nano")
    async with art.LocalBackend(path=str(data_dir), server_options=server) as backend:
        await model.register(backend)
        await backend.train(model, await play_groups(model, [0.0, 0.25, 0.5, 1.0]), learning_rate=1e-3)


BY_CONVERSATIONS = {1: "sft", 2: "dpo", 3: "kto", 4: "reward_model"}
"""Step -> what it learned from, in `make_run_of_conversations`."""
PAIRS = [
    {"prompt": f"is {number} even?", "chosen": said, "rejected": other}
    for number, said, other in ((1, "no", "yes, it is"), (2, "yes", "no"), (3, "no", "yes"))
]


async def make_run_of_conversations(data_dir: Path) -> None:
    """Trains a nano model with dropout; each step has several updates."""
    model = art.TrainableModel(
        name="player",
        project="games",
        base_model="art/nano",
        _internal_config={"peft_args": {"lora_dropout": 0.2}},
    )
    server = {"control": {"replay_steps": KEPT}}
    async with art.LocalBackend(path=str(data_dir), server_options=server) as backend:
        await model.register(backend)
        sampled = await play(model, 1, 1.0)
        said = [ASK, {"role": "assistant", "content": "yes"}]
        examples = [sampled, *(art.Trajectory(messages_and_choices=said, reward=0.0) for _ in range(2))]
        await model.train_sft(examples, art.TrainSFTConfig(learning_rate=1e-3, batch_size=2))
        options: dict[str, Any] = {"learning_rate": 1e-3, "batch_size": 2}
        await train_dpo(model, PAIRS, reference=1, **options)
        labelled = [
            {"prompt": one["prompt"], "completion": one[side], "label": side == "chosen"}
            for one in PAIRS
            for side in ("chosen", "rejected")
        ]
        await train_kto(model, labelled, **options)
        await train_reward_model(model, PAIRS, **options)
