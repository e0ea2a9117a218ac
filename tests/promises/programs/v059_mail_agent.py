"""A mail agent with tools: `backend.train` and `model.log` apart, a judge for each group, validation.

python v059_mail_agent.py [MAX_STEPS]
"""

import asyncio
import json
import random
import sys

import art
from art.api_costs import track_api_cost
from art.local import LocalBackend
from art.tasks import mail
from art.utils import iterate_dataset
from art.utils.litellm import convert_litellm_choice_to_openai  # noqa: F401 - as the notebook imports it

MAX_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
ROLLOUTS_PER_GROUP = 6
VALIDATION_EVERY = 2


class ProjectTrajectory(art.Trajectory):
    final_answer: str | None = None


async def rollout(model: art.Model, scenario: mail.Scenario, step: int = 0) -> ProjectTrajectory:
    traj = ProjectTrajectory(
        messages_and_choices=[
            {"role": "system", "content": mail.SYSTEM_PROMPT},
            {"role": "user", "content": scenario.question},
        ],
        tools=mail.TOOLS,
        reward=0,
        metadata={"scenario_id": str(scenario.index), "step": step},
        scenario=scenario,  # no such field: ignored
    )
    client = model.openai_client()
    num_turns = 0
    while num_turns < mail.TURN_LIMIT and traj.final_answer is None:
        num_turns += 1
        async with traj.track_duration("llm"):
            response = await client.chat.completions.create(
                model=model.get_inference_name(),
                messages=traj.messages(),
                tools=traj.tools,
                max_completion_tokens=48,
                temperature=1.0,
            )
        message = response.choices[0].message
        traj.messages_and_choices.append(response.choices[0])
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            argument = mail.parse_call(call.model_dump())
            if argument is None:
                result = "error: no such tool or argument"
            elif call.function.name == "search":
                result = mail.search(scenario.inbox, argument[1])
            elif call.function.name == "read":
                result = mail.read(scenario.inbox, argument[1])
            else:
                traj.final_answer = json.loads(call.function.arguments)["text"]
                break
            traj.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": result})
    correct = traj.final_answer is not None and traj.final_answer.strip().lower() == scenario.wanted.name
    traj.metrics["correct"] = correct
    traj.metrics["num_turns"] = num_turns
    traj.reward = float(correct) + 0.1 * (1 - num_turns / mail.TURN_LIMIT)
    return traj.finish()


@track_api_cost(
    source="llm_judge/politeness",
    provider="openai",
    model_name="openai/gpt-4.1",
    prompt_price_per_million=2.0,
    completion_price_per_million=8.0,
)
async def ask_judge(question: str) -> dict[str, object]:
    """What an API answered."""
    return {"usage": {"prompt_tokens": 1000, "completion_tokens": 100}, "text": question}


@track_api_cost(source="llm_judge/correctness", provider="openai", model_name="openai/o4-mini")
async def ask_another(question: str) -> dict[str, object]:
    return await ask_judge(question)


async def judge(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
    """Scores the group as a whole; one without any trajectory is given up."""
    if not group.trajectories:
        return None
    group.metrics["judge/answered"] = sum(t.final_answer is not None for t in group) / len(group)
    group.log("judged")
    await ask_another("Is it right?")
    return group


async def main() -> None:
    random.seed(0)
    training = [mail.scenario(1, index) for index in range(16)]
    validation = [mail.scenario(2, index) for index in range(4)]
    model = art.TrainableModel(
        name="mail-agent-001", project="mail-search-agent", base_model="art/nano-tools"
    )
    async with LocalBackend() as backend:
        await model.register(backend)
        iterator = iterate_dataset(
            training, groups_per_step=4, num_epochs=1, initial_step=await model.get_step(), use_tqdm=False
        )
        for batch in iterator:
            if batch.step >= MAX_STEPS:
                break
            costs = model.activate_metrics_context("train")
            train_groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(
                        (rollout(model, scenario, batch.step) for _ in range(ROLLOUTS_PER_GROUP)),
                        metadata={"scenario_id": str(scenario.index)},
                    )
                    for scenario in batch.items
                ),
                pbar_desc=f"train step {batch.step}",
                max_exceptions=ROLLOUTS_PER_GROUP * len(batch.items),
                after_each=judge,
            )
            costs.var.reset(costs)
            if batch.step % VALIDATION_EVERY == 0:
                val_groups = await art.gather_trajectory_groups(
                    (art.TrajectoryGroup([rollout(model, scenario)]) for scenario in validation),
                    pbar_desc="validation",
                    max_exceptions=0.5,
                )
                await model.log(val_groups, split="val")
            result = await backend.train(model, train_groups, learning_rate=1e-3)
            await model.log(train_groups, metrics=result.metrics, step=result.step, split="train")
            await model.delete_checkpoints(best_checkpoint_metric="val/correct")
            correct = [t.metrics["correct"] for group in train_groups for t in group]
            print(f"step {result.step}: {sum(correct)} of {len(correct)} right")
        print(f"trained to step {await model.get_step()}")


asyncio.run(main())
