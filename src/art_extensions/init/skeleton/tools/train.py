"""Train an agent that calls tools: it searches an inbox, reads a mail and answers the question."""

from __future__ import annotations

import argparse
import json

from inbox import SYSTEM_PROMPT, read_mail, scenarios, search_mails

import art


def tool(name: str, parameter: str, description: str) -> dict:
    """The schema of a tool with one text parameter, as OpenAI's API has it."""
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("search", "keyword", "List up to five mails whose subject contains every word of the keyword."),
    tool("read", "id", "Read the mail with this id."),
    tool("answer", "text", "Give the answer to the question; this ends the conversation."),
]
CALLABLE = {"search": search_mails, "read": read_mail}


async def rollout(model: art.Model, project: str, role: str, name: str) -> art.Trajectory:
    """One conversation; its reward is 1 for the right answer."""
    system = {"role": "system", "content": SYSTEM_PROMPT}
    question = {"role": "user", "content": f"Who is the {role} of {project}?"}
    trajectory = art.Trajectory(messages_and_choices=[system, question], tools=TOOLS, reward=0.0)
    for _ in range(6):
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), tools=TOOLS, max_tokens=48
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)  # the choice itself: its tokens are what is trained
        for call in choice.message.tool_calls or []:
            try:
                arguments = json.loads(call.function.arguments)
                if call.function.name == "answer":
                    trajectory.reward = float(arguments["text"] == name)
                    return trajectory
                result = CALLABLE[call.function.name](**arguments)
            except (KeyError, TypeError, ValueError) as error:  # an unknown tool or wrong arguments
                result = f"error: {error!r}"
            trajectory.messages_and_choices.append(
                {"role": "tool", "tool_call_id": call.id, "content": result}
            )
        if not choice.message.tool_calls:
            break
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="agent-001", project="__PROJECT__", base_model=options.base_model)
    async with art.LocalBackend() as backend:
        await model.register(backend)
        for step in range(await model.get_step(), options.steps):  # a stopped run continues here
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(rollout(model, *mail) for _ in range(8)) for mail in scenarios(step)),
                pbar_desc=f"step {step + 1}",
                max_exceptions=0.1,
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", default="__BASE_MODEL__")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=float("__LEARNING_RATE__"))
    art.run(main(parser.parse_args()))  # as asyncio.run; Ctrl-C ends it in one line
