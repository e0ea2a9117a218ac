"""The whole path over HTTP: ragged rollouts against `transformers.generate`, and publishing an adapter.

Peer of the rollouts: the loop a user would write with `generate`: it renders each full history, pads the
batch on the left and waits for its longest reply. Both draw exactly as many tokens for each reply.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import art
from art.engine.nano_models import resolve
from bench.rows import Row, write_rows

ROLLOUTS, TURNS, REPETITIONS = 64, 6, 3
PROMPT_WORDS = ("board", "move", "cell", "free", "row", "column", "yes", "no", "maybe", "play")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What the user says, and how many tokens are drawn for the reply."""

    text: str
    tokens: int


def conversations(seed: int) -> list[list[Turn]]:
    draw = random.Random(seed)
    return [
        [
            Turn(text=" ".join(draw.choices(PROMPT_WORDS, k=draw.randint(4, 16))), tokens=draw.randint(4, 40))
            for _ in range(TURNS)
        ]
        for _ in range(ROLLOUTS)
    ]


def random_model(folder: Path) -> None:
    """The shape of art/nano-games with random weights: it does not stop early, so lengths are as planned."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    source = resolve("art/nano-games")
    shutil.copytree(source, folder)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(source)
    config.max_position_embeddings = 2048
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


async def rollout(model: art.TrainableModel, system: str, turns: Sequence[Turn]) -> int:
    """One conversation; returns the tokens drawn."""
    messages: list = [{"role": "system", "content": system}]
    drawn = 0
    for turn in turns:
        messages.append({"role": "user", "content": turn.text})
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=messages, max_tokens=turn.tokens
        )
        messages.append(completion.choices[0].message.model_dump(exclude_none=True))
        drawn += completion.usage.completion_tokens
    return drawn


async def ours(model: art.TrainableModel, system: str, plan: list[list[Turn]]) -> float:
    """Tokens a second through client, gateway, ledger and engine."""
    begin = time.perf_counter()
    drawn = sum(await asyncio.gather(*(rollout(model, system, turns) for turns in plan)))
    return drawn / (time.perf_counter() - begin)


def peer(folder: Path, system: str, plan: list[list[Turn]]) -> float:
    """Tokens a second of batched `generate`, turn by turn; only the planned tokens count."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    histories: list[list[dict[str, str]]] = [[{"role": "system", "content": system}] for _ in plan]
    begin = time.perf_counter()
    for number in range(TURNS):
        for history, turns in zip(histories, plan, strict=True):
            history.append({"role": "user", "content": turns[number].text})
        batch = tokenizer.apply_chat_template(
            histories, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        longest = max(turns[number].tokens for turns in plan)
        with torch.inference_mode():
            output = model.generate(
                **batch,
                do_sample=True,
                max_new_tokens=longest,
                min_new_tokens=longest,
                pad_token_id=tokenizer.pad_token_id,
            )
        for history, turns, row in zip(histories, plan, output, strict=True):
            new = row[batch["input_ids"].shape[1] :][: turns[number].tokens]
            history.append({"role": "assistant", "content": tokenizer.decode(new, skip_special_tokens=True)})
    return sum(turn.tokens for turns in plan for turn in turns) / (time.perf_counter() - begin)


async def rollout_row(folder: Path) -> Row:
    system = " ".join(PROMPT_WORDS * 10)
    random_model(folder / "model")
    model = art.TrainableModel(name="ragged", project="bench", base_model=str(folder / "model"))
    ratios, figures = [], []
    async with art.LocalBackend(path=folder / "data") as backend:
        await model.register(backend)
        await ours(model, system, conversations(99)[:4])
        for repetition in range(REPETITIONS):
            plan = conversations(repetition)
            figures.append(
                (
                    await ours(model, system, plan),
                    await asyncio.to_thread(peer, folder / "model", system, plan),
                )
            )
            ratios.append(figures[-1][0] / figures[-1][1])
    return Row(
        name=f"{ROLLOUTS} ragged rollouts of {TURNS} turns over HTTP, against transformers.generate",
        ours=statistics.median(figure[0] for figure in figures),
        peer=statistics.median(figure[1] for figure in figures),
        unit="tokens/s",
        ratio=statistics.median(ratios),
        goal=3.0,
    )


async def publish_row(folder: Path) -> Row:
    """From the end of the gradient step to the first token that the new adapter draws."""
    model = art.TrainableModel(name="publish", project="bench", base_model="art/nano")
    seconds = []
    async with art.LocalBackend(path=folder / "data-publish") as backend:
        await model.register(backend)
        for _ in range(8):
            group = art.TrajectoryGroup([await attempt(model, reward) for reward in (0.0, 1.0, 0.0, 1.0)])
            result = await model.train([group], config=art.TrainConfig(learning_rate=1e-4))
            begin = time.perf_counter()
            await attempt(model, 0.0)
            seconds.append(result.metrics["time/promote_s"] + time.perf_counter() - begin)
    ours_seconds = statistics.median(seconds[2:])
    return Row(
        name="gradient step to the new adapter's first reply",
        ours=1000 * ours_seconds,
        unit="ms",
        goal=100.0,
        at_most=True,
    )


async def attempt(model: art.TrainableModel, reward: float) -> art.Trajectory:
    messages = [{"role": "user", "content": "yes, no or maybe?"}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=1
    )
    return art.Trajectory(messages_and_choices=[*messages, completion.choices[0]], reward=reward)


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        folder = Path(name)
        return [await rollout_row(folder), await publish_row(folder)]


def main() -> None:
    write_rows("loop", asyncio.run(measure()))


if __name__ == "__main__":
    main()
