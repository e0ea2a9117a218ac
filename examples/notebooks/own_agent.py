# %% [markdown]
# # An agent of your own
#
# An agent is a function that asks the model, looks at the reply and returns a trajectory with a reward.
# This one asks for a word. You can replace it with your own code: several turns, tools, any library that
# speaks OpenAI's protocol.

# %%
from itertools import permutations

import matplotlib.pyplot as plt

import art

STEPS = 15

# %% [markdown]
# The scenarios are what the agent is asked to do. Keep some of them out of the training, to see whether
# the model has learned more than these sentences.

# %%
ORDERS = [f"{a}, {b} or {c}" for a, b, c in permutations(("yes", "no", "maybe"))]
TRAIN = [f"{verb} with {order}" for verb in ("respond", "answer") for order in ORDERS]
TEST = [f"just respond with {order}" for order in ORDERS]
REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}

# %% [markdown]
# The rollout. Append the choice itself to the trajectory, not only its text: it refers to the sampled
# tokens, which are what is trained.


# %%
async def rollout(model: art.Model, question: str) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}], reward=0.0)
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=8
    )
    choice = completion.choices[0]
    trajectory.messages_and_choices.append(choice)
    trajectory.reward = REWARDS.get((choice.message.content or "").strip().lower(), 0.0)
    return trajectory


async def evaluate(model: art.Model) -> float:
    rollouts = [rollout(model, question) for question in TEST for _ in range(8)]
    trajectories = await art.gather_trajectories(rollouts, pbar_desc=None)
    await model.log(trajectories, split="val")
    return sum(trajectory.reward for trajectory in trajectories) / len(trajectories)


# %%
model = art.TrainableModel(name="agent", project="notebooks", base_model="art/nano-games")
backend = art.LocalBackend()
await model.register(backend)
before = await evaluate(model)
print(f"mean reward on the test scenarios before training: {before:.2f}")

# %%
rewards = []
for _ in range(await model.get_step(), STEPS):
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, question) for _ in range(8)) for question in TRAIN),
        pbar_desc=None,
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=4e-4))
    trajectories = [trajectory for group in groups for trajectory in group]
    rewards.append(sum(trajectory.reward for trajectory in trajectories) / len(trajectories))

# %%
plt.figure(figsize=(6, 3))
plt.plot(range(1, len(rewards) + 1), rewards)
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1.05)
plt.show()

# %%
print(f"mean reward on the test scenarios after training: {await evaluate(model):.2f}")
await backend.close()
