# %% [markdown]
# # Text to SQL
#
# A question about a table becomes an SQL query, which SQLite really runs: the query is right if it finds what
# the right one finds. The student learns in three stages: from a noisy data set, from the replies of a
# teacher, and at last from the teacher's opinion of what the student itself writes.
#
#     python examples/text_to_sql/text_to_sql.py                    # on-policy distillation at the end
#     python examples/text_to_sql/text_to_sql.py --last rewards     # or rewards for what SQLite finds
#     python examples/text_to_sql/text_to_sql.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4 \
#         --sft-rate 3e-4 --teacher-url http://127.0.0.1:8100/v1 --teacher-model Qwen/Qwen3-32B

# %%
from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI
from table_questions import TableQuestion, demonstrations, draw_question, is_right, write_rows

import art
from art.local import LocalBackend
from art.utils.sft import train_sft_from_file

# %% [markdown]
# A rollout is one query. SQLite runs it on a connection that only reads, with a limit of work. On-policy
# distillation takes no notice of the reward; it is what the chart shows.


# %%
async def rollout(model: art.Model, question: TableQuestion, stage: str = "") -> art.Trajectory:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=question.messages, max_tokens=48
    )
    choice = completion.choices[0]
    query = choice.message.content or ""
    right = is_right(question, query)
    return art.Trajectory(
        messages_and_choices=[*question.messages, choice],
        reward=float(right),
        metrics={"right": right},
        metadata={"stage": stage, "show": f"{question.prompt}\n\n{query}\n\n{'right' if right else 'wrong'}"},
    )


async def evaluate(model: art.Model, stage: str, held_out: int) -> None:
    """Log one query for each held-out question, and print the share of right ones."""
    asked = [draw_question("held out", number) for number in range(held_out)]
    queries = await art.gather_trajectories([rollout(model, one, stage) for one in asked], pbar_desc=None)
    await model.log([art.TrajectoryGroup([one]) for one in queries], split="val")
    right = sum(one.reward for one in queries) / len(queries)
    print(f"{stage}, step {await model.get_step()}: {right:.2f} of the queries are right", flush=True)


# %% [markdown]
# The teacher is any OpenAI-compatible endpoint. To score the student's tokens it must share the student's
# tokenizer and return `prompt_logprobs`, as vLLM and ART's own server do. By default it is a second adapter
# on the same base, fine-tuned on many right queries and served by a server of its own. It stands for a larger
# model of the student's family.


# %%
@dataclass(frozen=True)
class Teacher:
    url: str
    model: str
    key: str

    async def query(self, question: TableQuestion) -> str:
        async with AsyncOpenAI(base_url=self.url, api_key=self.key, max_retries=5) as client:
            completion = await client.chat.completions.create(
                model=self.model, messages=question.messages, max_tokens=48, temperature=0
            )
        return completion.choices[0].message.content or ""


async def open_teacher(stack: AsyncExitStack, options: argparse.Namespace) -> Teacher:
    if options.teacher_url:
        key = os.environ.get("ART_TEACHER_KEY", "no-key-set")
        return Teacher(options.teacher_url, options.teacher_model, key)
    path = Path(options.path) / "teacher"
    model = art.TrainableModel(name="teacher", project="teacher", base_model=options.model)
    backend = LocalBackend(path=str(path), server_options={"engine": {"name": options.engine}})
    await model.register(await stack.enter_async_context(backend))
    if await model.get_step() == 0:
        write_rows(path / "right.jsonl", demonstrations("school", options.teacher_rows, noisy=False))
        await train_sft_from_file(model, path / "right.jsonl", batch_size=8, peak_lr=options.teacher_rate)
    return Teacher(str(model.inference_base_url), model.get_inference_name(), str(model.inference_api_key))


async def ask_teacher(teacher: Teacher, options: argparse.Namespace) -> Path:
    """Write the teacher's replies that SQLite finds right to a file of rows for fine-tuning."""
    asked = [draw_question(f"replies {options.seed}", number) for number in range(options.replies)]
    queries = await asyncio.gather(*(teacher.query(question) for question in asked))
    rows = [
        {"messages": [*question.messages, {"role": "assistant", "content": query}]}
        for question, query in zip(asked, queries, strict=True)
        if is_right(question, query)
    ]
    print(f"{len(rows)} of the teacher's {len(queries)} replies are right and kept", flush=True)
    path = Path(options.path) / "rows" / f"replies-{options.seed}.jsonl"
    write_rows(path, rows)
    return path


# %% [markdown]
# Step 1 is the data set, step 2 the teacher's replies. In each further step the student writes queries.
# Either the teacher's logprob of each token less the student's is the token's advantage, or the queries that
# find the right rows are made more likely. Started again, it goes on at the newest step.


# %%
async def train_step(
    model: art.TrainableModel, step: int, teacher: Teacher | None, options: argparse.Namespace
) -> str:
    """Train step `step` and return the name of its stage."""
    if step == 0:
        path = Path(options.data or Path(options.path) / "rows" / "noisy.jsonl")
        if not options.data:
            write_rows(path, demonstrations("careless", options.demonstrations, noisy=True))
        await train_sft_from_file(model, path, batch_size=8, peak_lr=options.sft_rate)
        return "SFT"
    assert teacher is not None
    if step == 1:
        path = await ask_teacher(teacher, options)
        await train_sft_from_file(model, path, batch_size=8, peak_lr=options.sft_rate)
        return "replies"
    asked = [draw_question(f"train {options.seed}", step * options.groups + n) for n in range(options.groups)]
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, one) for _ in range(options.group_size)) for one in asked),
        pbar_desc=None,
    )
    scored_by = {"kind": "server", "url": teacher.url, "model": teacher.model}
    on_policy = {"name": "distillation", "teacher": scored_by} if options.last == "distillation" else None
    await model.train(
        groups, config=art.TrainConfig(learning_rate=options.learning_rate, algorithm=on_policy)
    )
    return "on-policy" if on_policy else "RL"


async def main(options: argparse.Namespace) -> None:
    adapter = art.dev.PeftArgs(random_state=options.seed, r=16, lora_alpha=32)
    model = art.TrainableModel(
        name=f"text_to_sql-{options.last}-{options.seed}",
        project="text_to_sql",
        base_model=options.model,
        _internal_config=art.dev.InternalModelConfig(peft_args=adapter),
    )
    async with AsyncExitStack() as stack:
        teacher = await open_teacher(stack, options) if options.steps > 1 else None
        server: dict[str, object] = {"engine": {"name": options.engine}}
        if teacher:
            server["teacher"] = {"urls": [teacher.url], "key": teacher.key}
        backend = await stack.enter_async_context(LocalBackend(path=options.path, server_options=server))
        await model.register(backend)
        if await model.get_step() == 0:
            await evaluate(model, "base", options.held_out)
        for step in range(await model.get_step(), options.steps):
            stage = await train_step(model, step, teacher, options)
            if step < 2 or step % 5 == 1 or step + 1 == options.steps:
                await evaluate(model, stage, options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model to write SQL queries.")
    parser.add_argument("--model", default="art/nano-words", help="the base: shipped, of the hub, a folder")
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--last", default="distillation", choices=("distillation", "rewards"))
    parser.add_argument("--teacher-url", help="such as http://127.0.0.1:8100/v1; by default one is trained")
    parser.add_argument("--teacher-model", help="the teacher's name there; its key is in ART_TEACHER_KEY")
    parser.add_argument("--teacher-rows", type=int, default=4000, help="right queries to train it on")
    parser.add_argument("--teacher-rate", type=float, default=3e-3, help="of its fine-tuning")
    parser.add_argument("--data", help="a file of rows for step 1; by default noisy ones are written")
    parser.add_argument("--demonstrations", type=int, default=2400, help="rows of the noisy data set")
    parser.add_argument("--replies", type=int, default=800, help="questions that the teacher answers")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the questions")
    parser.add_argument("--steps", type=int, default=32, help="one SFT, one with replies, the rest on-policy")
    parser.add_argument("--groups", type=int, default=24, help="questions of a step")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of each question")
    parser.add_argument("--learning-rate", type=float, default=7e-4)
    parser.add_argument("--sft-rate", type=float, default=2e-3)
    parser.add_argument("--held-out", type=int, default=256, help="questions of an evaluation")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    options = parser.parse_args(arguments)
    if options.teacher_url and not options.teacher_model:
        parser.error("--teacher-url needs --teacher-model, the name of the model at that address")
    return options


# %%
if __name__ == "__main__":
    art.run(main(read_options()))
