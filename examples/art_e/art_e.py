# %% [markdown]
# # ART-E: a mail agent
#
# An agent answers questions about a mail archive of 80 mails with three tools: it searches the full text,
# reads a mail and answers. First it learns from noisy demonstrations, then from its own conversations.
#
#     python examples/art_e/art_e.py                       # a written reward, 3 minutes on two cores
#     python examples/art_e/art_e.py --reward ruler        # a judge ranks the rollouts of a group instead
#     python examples/art_e/art_e.py --agent langgraph     # the same agent as a graph
#     python examples/art_e/art_e.py --model Qwen/Qwen3-1.7B --engine vllm --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from mail_archive import TOOLS, MailArchive, MailQuestion, demonstration, draw_question, quality_of, read_call

import art
from art.local import LocalBackend
from art.rewards import Ruler
from art.testing import LlmServer, TruthfulJudge

MOST_TURNS = 6

# %% [markdown]
# A rollout is one conversation. The agent calls tools until it answers, breaks a rule or has no turn left.


# %%
async def ask_with_tools(model: art.Model, question: MailQuestion) -> art.Trajectory:
    archive = MailArchive(question)
    trajectory = art.Trajectory(messages_and_choices=list(question.opening), tools=TOOLS, reward=0.0)
    answer, broken, turns = None, False, 0
    while answer is None and turns < MOST_TURNS:
        turns += 1
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), tools=TOOLS, max_tokens=48
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        calls = [(call, read_call(call.model_dump())) for call in choice.message.tool_calls or []]
        if broken := not calls or any(read is None for _, read in calls):
            break
        for call, read in calls:
            name, value = read or ("", "")
            if name == "answer":
                answer = value
                break
            text = archive.search(value) if name == "search" else archive.read(value)
            result = {"role": "tool", "tool_call_id": call.id, "content": text}
            trajectory.messages_and_choices.append(result)
    archive.close()
    return score(trajectory, question, answer, broken=broken, turns=turns)


# %% [markdown]
# The written reward: a right answer counts 1, each turn costs 0.05, a broken conversation costs 1.


# %%
def score(
    trajectory: art.Trajectory, question: MailQuestion, answer: str | None, *, broken: bool, turns: int
) -> art.Trajectory:
    right = answer is not None and answer.strip().lower() == question.wanted.name
    trajectory.reward = -1.0 if broken else right * 1.0 - 0.05 * turns
    trajectory.metrics.update({"right": right, "broken": broken, "turns": turns})
    lines = [question.text]
    for message in trajectory.messages():
        functions = [call["function"] for call in message.get("tool_calls") or []]
        lines += [f"  {function['name']} {function['arguments']}" for function in functions]
        lines += [f"    {message['content']}"] if message["role"] == "tool" else []
    wrong = "out of turns" if answer is None else f"wrong, {question.wanted.name} is right"
    lines.append(f"result: {'broken' if broken else 'right' if right else wrong}")
    trajectory.metadata["show"] = "\n".join(lines)
    return trajectory


async def evaluate(model: art.Model, rollout: Any, stage: str, held_out: int) -> None:
    """Log one rollout on each held-out question, and print the share of right answers."""
    questions = [draw_question("held out", number) for number in range(held_out)]
    trajectories = await art.gather_trajectories(
        [rollout(question) for question in questions], pbar_desc=None
    )
    for trajectory in trajectories:
        trajectory.metadata["stage"] = stage
    await model.log([art.TrajectoryGroup([one]) for one in trajectories], split="val")
    right, turns = (
        sum(float(one.metrics[name]) for one in trajectories) / len(trajectories)
        for name in ("right", "turns")
    )
    print(f"{stage}, step {await model.get_step()}: {right:.1%} right, {turns:.2f} turns", flush=True)


# %% [markdown]
# The judge of `--reward ruler`. Any model will do: `--judge openai/o3`. By default a judge runs here that
# reads the conversations by a rule, so that the example needs no network.


# %%
async def open_ruler(stack: AsyncExitStack, judge: str | None) -> Ruler:
    rubric = "- A right answer, read from a mail, is better than a wrong one.\n- Fewer turns are better."
    if judge is not None:
        return Ruler(judge, rubric=rubric)
    server = await stack.enter_async_context(LlmServer(TruthfulJudge(quality_of)))
    return Ruler("openai/judge", rubric=rubric, base_url=server.base_url, api_key=server.key)


# %% [markdown]
# The training: one step of supervised fine-tuning on the demonstrations, then reinforcement learning.
# Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"art-e-{options.reward}-{options.agent}-{options.seed}",
        project="art_e",
        base_model=options.model,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    engine = {"engine": {"name": options.engine}}
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(LocalBackend(path=options.path, server_options=engine))
        await model.register(backend)
        ruler = await open_ruler(stack, options.judge) if options.reward == "ruler" else None
        if options.agent == "langgraph":
            from mail_graph import rollout_with

            rollout = rollout_with(model, score)
        else:

            def rollout(question: MailQuestion) -> Any:
                return ask_with_tools(model, question)

        if await model.get_step() == 0:
            await evaluate(model, rollout, "base", options.held_out)
        if await model.get_step() == 0 and options.demonstrations:
            shown = [{"messages": demonstration(n), "tools": TOOLS} for n in range(options.demonstrations)]
            rates = art.TrainSFTConfig(learning_rate=options.learning_rate / 2, batch_size=8)
            await model.train_sft(shown, rates)
            await evaluate(model, rollout, "SFT", options.held_out)
        for step in range(await model.get_step(), options.steps):
            questions = [
                draw_question(f"train {options.seed}", step * options.groups + n)
                for n in range(options.groups)
            ]
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(rollout(question) for _ in range(options.group_size))
                    for question in questions
                ),
                pbar_desc=None,
                after_each=None if ruler is None else ruler.score_group,
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))
            if (step + 1) % 5 == 0 or step + 1 == options.steps:
                await evaluate(model, rollout, "RL", options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model to answer questions about a mail archive.")
    parser.add_argument(
        "--model", default="art/nano-tools", help="the base model: shipped, of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--reward", default="written", choices=("written", "ruler"))
    parser.add_argument("--judge", help="the judge's model, such as openai/o3; by default one that runs here")
    parser.add_argument("--agent", default="loop", choices=("loop", "langgraph"))
    parser.add_argument(
        "--seed", type=int, default=0, help="of the adapter's first weights and the questions"
    )
    parser.add_argument("--steps", type=int, default=30, help="the first is supervised")
    parser.add_argument("--demonstrations", type=int, default=960)
    parser.add_argument("--groups", type=int, default=12, help="questions of a step")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of each question")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--held-out", type=int, default=128, help="questions of an evaluation")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))
