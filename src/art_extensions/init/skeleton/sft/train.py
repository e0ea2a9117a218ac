"""Fine-tune a model on the conversations in data.jsonl, and measure it before and after."""

from __future__ import annotations

import argparse

import art
from art.utils.sft import create_sft_dataset_iterator, iterate_file

TEST = [
    ("just respond with yes, no or maybe", "maybe"),
    ("just respond with maybe, yes or no", "no"),
    ("just respond with no, maybe or yes", "yes"),
]
"""Questions that are not in data.jsonl, with the right answers."""


async def ask(model: art.Model, question: str) -> str:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=[{"role": "user", "content": question}],
        max_tokens=8,
        temperature=0,
    )
    return completion.choices[0].message.content or ""


async def evaluate(model: art.Model) -> None:
    answers = [await ask(model, question) for question, _ in TEST]
    right = sum(said == wanted for said, (_, wanted) in zip(answers, TEST, strict=True))
    print(f"step {await model.get_step()}: {right} of {len(TEST)} answers are right", flush=True)


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="agent-001", project="__PROJECT__", base_model=options.base_model)
    async with art.LocalBackend() as backend:
        await model.register(backend)
        await evaluate(model)
        chunks = create_sft_dataset_iterator(  # one chunk is one step: here one pass over the data
            list(iterate_file("data.jsonl", shuffle_buffer_size=1)),
            chunk_size=1000,
            epochs=10,
            batch_size=8,
            peak_lr=options.learning_rate,
        )
        for step, chunk in enumerate(chunks):
            if await model.get_step() <= step < options.steps:  # a stopped run continues here
                await model.train_sft(chunk.trajectories, chunk.config)
        await evaluate(model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", default="__BASE_MODEL__")
    parser.add_argument("--steps", type=int, default=10, help="passes over the data, at most 10")
    parser.add_argument("--learning-rate", type=float, default=float("__LEARNING_RATE__"))
    art.run(main(parser.parse_args()))  # as asyncio.run; Ctrl-C ends it in one line
