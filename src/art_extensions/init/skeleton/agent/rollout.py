"""One rollout of a scenario: your agent and its reward."""

from __future__ import annotations

import art

REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


async def rollout(model: art.Model, question: str) -> art.Trajectory:
    """Asks the model, keeps the conversation and gives it a reward.

    For a longer conversation, use a loop: append the choice, then the tool's or the user's message as a
    dict, and ask again with `trajectory.messages()`.
    """
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}])
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=8
    )
    choice = completion.choices[0]
    trajectory.messages_and_choices.append(choice)  # the choice itself: its tokens are what is trained
    answer = (choice.message.content or "").strip().lower()
    trajectory.reward = REWARDS.get(answer, 0.0)
    trajectory.metrics["understood"] = answer in REWARDS
    return trajectory.finish()
